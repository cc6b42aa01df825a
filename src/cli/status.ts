import type { Command } from "commander";
import type { JobState } from "../core/job.ts";
import type { LockView, QueueOverview } from "../store/store.ts";
import { type Alarm, alarmsOf } from "./alarms.ts";
import { openExisting, pathOf } from "./database.ts";
import { examples } from "./help.ts";
import { type Overview, overviewOf, type ProcessStatus } from "./overview.ts";
import { age, ahead } from "./terminal/age.ts";
import { paint, type Style } from "./terminal/colours.ts";
import { answer } from "./terminal/output.ts";
import { stateStyle } from "./terminal/state.ts";
import { type Column, table, terminalWidth } from "./terminal/table.ts";
import { cut, number, oneLine, plural } from "./terminal/text.ts";

export function statusCommand(parent: Command): void {
  parent
    .command("status")
    .summary("how the queues stand, and what needs attention")
    .description("Show the queues, who works on them, locks, what was recovered, and what needs attention.")
    .addHelpText("after", examples("holdfast status", "holdfast status --db work.db --json"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const overview = await overviewOf(hf);
      const alarms = alarmsOf(overview);
      answer(command, { ...overview, alarms }, () => page(pathOf(command), overview, alarms));
    });
}

function page(path: string, overview: Overview, alarms: readonly Alarm[]): string {
  return [
    headline(path, overview),
    sayAlarms(alarms),
    overview.queues.length === 0 ? paint("dim", "No jobs yet.") : table(queueColumns(overview), overview.queues),
    processes(overview),
    overview.locks.length === 0 ? "" : table(lockColumns(overview.at), overview.locks),
    recovered(overview),
  ]
    .filter((part) => part !== "")
    .join("\n\n");
}

function headline(path: string, { counts, processes }: Overview): string {
  const alive = processes.filter(isThere).length;
  const parts = [`${number(counts.pending)} pending`, `${number(counts.running)} running`, plural(alive, "process", "processes")];
  return `${paint("bold", oneLine(path))}  ${parts.join(paint("dim", " · "))}`;
}

function sayAlarms(alarms: readonly Alarm[]): string {
  const width = Math.max(0, ...alarms.map(({ message }) => message.length));
  return alarms
    .map(({ grave, message, hint }) => {
      return `${paint(grave ? "red" : "yellow", `! ${message.padEnd(width)}`)}  ${paint("dim", hint)}`;
    })
    .join("\n");
}

function queueColumns({ at, queues }: Overview): Column<QueueOverview>[] {
  const columns: Column<QueueOverview>[] = [
    { title: "QUEUE", value: ({ name }) => name, least: 8 },
    count("pending", "PENDING"),
    count("running", "RUNNING"),
    count("succeeded", "SUCCEEDED"),
    count("failed", "FAILED"),
    count("quarantined", "QUARANTINED"),
    { title: "OLDEST", right: true, value: ({ oldestAt }) => (oldestAt === undefined ? "–" : age(at - oldestAt)) },
  ];
  // Rare, and eighty columns are soon full.
  if (queues.some(({ counts }) => counts.cancelled > 0)) columns.splice(6, 0, count("cancelled", "CANCELLED"));
  if (queues.some(({ counts }) => counts.waiting > 0)) columns.splice(1, 0, count("waiting", "WAITING"));
  return columns;
}

function count(state: JobState, title: string): Column<QueueOverview> {
  return {
    title,
    right: true,
    value: ({ counts }) => number(counts[state]),
    style: ({ counts }) => (counts[state] === 0 ? "dim" : stateStyle(state)),
  };
}

function processes({ at, processes, byHand }: Overview): string {
  const parts = [];
  if (processes.length > 0) parts.push(table(processColumns(at), processes));
  if (byHand > 0) parts.push(`${plural(byHand, "job")} claimed by hand`);
  return parts.length === 0 ? paint("dim", "No process has this database open.") : parts.join("\n");
}

function processColumns(at: number): Column<ProcessStatus>[] {
  return [
    { title: "PID", right: true, value: ({ pid }) => String(pid), style: processStyle },
    { title: "HOST", value: ({ host }) => host, least: 8, style: processStyle },
    { title: "PROGRAM", value: ({ program }) => program, least: 16, style: processStyle },
    { title: "LIFE", value: ({ life }) => (life === "unknown" ? "elsewhere" : life), style: processStyle },
    { title: "SINCE", right: true, value: ({ startedAt }) => age(at - startedAt), style: processStyle },
    { title: "RUNNING", right: true, value: ({ running }) => number(running), style: processStyle },
  ];
}

function lockColumns(at: number): Column<LockView>[] {
  return [
    { title: "LOCK", value: ({ name }) => name, least: 8, style: lockStyle },
    { title: "HOLDER", value: ({ holder }) => holder, least: 8, style: lockStyle },
    { title: "SINCE", right: true, value: ({ acquiredAt }) => age(at - acquiredAt), style: lockStyle },
    {
      title: "EXPIRES",
      right: true,
      value: ({ stale, expiresAt }) => (stale ? "expired" : `in ${ahead(expiresAt - at)}`),
      style: lockStyle,
    },
  ];
}

function recovered({ at, recovery }: Overview): string {
  if (recovery.recoveredAt === 0) return paint("dim", "Nothing had to be recovered so far.");
  const totals = `${plural(recovery.entriesReclaimed, "job")} and ${plural(recovery.locksCleaned, "lock")}`;
  const last = `${age(at - recovery.recoveredAt)} ago: ${oneLine(recovery.log[0]?.cause ?? "locks cleaned")}`;
  return `Recovered so far: ${totals}\n${paint("dim", cut(`Last ${last}`, terminalWidth()))}`;
}

function isThere({ life }: ProcessStatus): boolean {
  return life === "alive" || life === "unknown";
}

function processStyle(process: ProcessStatus): Style | null {
  return isThere(process) ? null : "red";
}

function lockStyle({ stale }: LockView): Style | null {
  return stale ? "yellow" : null;
}
