import { age, ahead } from "../../core/age.ts";
import type { Schedule } from "../../core/schedule.ts";
import { number, plural } from "../../core/words.ts";
import type { Alarm } from "../../runtime/status/alarms.ts";
import { isThere, type Overview, type ProcessStatus, workersIn } from "../../runtime/status/overview.ts";
import type { LockView } from "../../store/locks.ts";
import { lastMinute, queueTable, type Rates, sayRate } from "../commands/queues.ts";
import { scheduleTable } from "../commands/schedules.ts";
import { sayReport } from "../recovery/report-page.ts";
import { type Column, oneLine, paint, type Style, table, terminalWidth, truncate } from "../render/table.ts";
import { openBuildTable } from "./open-build-table.ts";

/** The next ticks are enough at a glance. */
const SCHEDULES = 5;

/** All of it, for a person who glances at it: what needs attention comes first. */
export function statusPage(path: string, overview: Overview, alarms: readonly Alarm[], rates?: Rates): string {
  return [
    headline(path, overview, rates),
    sayAlarms(alarms),
    overview.unreadable.length === 0 ? "" : paint("red", `Not to be read any more: ${overview.unreadable.join(", ")}.`),
    queueTable(overview.queues, overview.at, rates),
    openBuildTable(overview.builds, overview.at),
    processes(overview),
    schedules(overview),
    overview.locks.length === 0 ? "" : table(lockColumns(overview.at), overview.locks),
    recovered(overview),
  ]
    .filter((part) => part !== "")
    .join("\n\n");
}

function headline(path: string, overview: Overview, rates: Rates | undefined): string {
  const { counts, queues } = overview;
  const rate = rates === undefined ? total(queues.map(lastMinute)) : total([...rates.values()]);
  const parts = [
    `${number(counts.pending)} pending`,
    `${number(counts.running)} running`,
    `${sayRate(rate)} done/${rates === undefined ? "min" : "s"}`,
    plural(workersIn(overview).length, "worker"),
  ];
  return `${paint("bold", oneLine(path))}  ${parts.join(paint("dim", " · "))}`;
}

function sayAlarms(alarms: readonly Alarm[]): string {
  const messages = alarms.map(({ message }) => oneLine(message));
  const width = Math.max(0, ...messages.map(({ length }) => length));
  // A hint that does not fit beside its message stands below it, so that it can be copied as one line.
  const isNarrow = alarms.some(({ hint }) => width + hint.length + 4 > terminalWidth());
  return alarms
    .map(({ grave, hint }, i) => {
      const message = paint(grave ? "red" : "yellow", `! ${isNarrow ? messages[i] : messages[i]?.padEnd(width)}`);
      return `${message}${isNarrow ? "\n    " : "  "}${paint("dim", hint)}`;
    })
    .join("\n");
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
    { title: "WORKS ON", value: worksOn, least: 12, style: processStyle },
    { title: "LIFE", value: lifeOf, style: processStyle },
    { title: "SINCE", right: true, value: ({ startedAt }) => age(at - startedAt), style: processStyle },
    { title: "RUNNING", right: true, value: ({ running }) => number(running), style: processStyle },
  ];
}

function worksOn({ works }: ProcessStatus): string {
  if (works.length === 0) return "–";
  const names = works.map(({ name, version }) => (version === 1 ? name : `${name} v${version}`));
  return [...new Set(names)].join(", ");
}

function lifeOf({ life, stopping }: ProcessStatus): string {
  if (stopping && life === "alive") return "stopping";
  return life === "unknown" ? "elsewhere" : life;
}

function schedules({ at, schedules }: Overview): string {
  if (schedules.length === 0) return "";
  const soonest = schedules.toSorted((a, b) => turn(a) - turn(b)).slice(0, SCHEDULES);
  const more = schedules.length - soonest.length;
  return scheduleTable(soonest, at) + (more === 0 ? "" : `\n${paint("dim", `${number(more)} more: holdfast schedules`)}`);
}

/** The paused ones last. */
function turn({ paused, nextAt }: Schedule): number {
  return paused ? Number.MAX_SAFE_INTEGER : nextAt;
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

function recovered({ at, recovery, crashes }: Overview): string {
  const crash =
    crashes.last === null ? "" : `\n${paint("dim", truncate(`Last crash: ${sayReport(crashes.last, at)}`, terminalWidth()))}`;
  if (recovery.recoveredAt === 0) return crash === "" ? paint("dim", "Nothing had to be recovered so far.") : crash.trimStart();
  const totals = `${plural(recovery.entriesReclaimed, "job")} and ${plural(recovery.locksCleaned, "lock")}`;
  const last = `${age(at - recovery.recoveredAt)} ago: ${oneLine(recovery.log[0]?.cause ?? "locks cleaned")}`;
  return `Recovered so far: ${totals}\n${paint("dim", truncate(`Last ${last}`, terminalWidth()))}${crash}`;
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function processStyle(process: ProcessStatus): Style | null {
  if (!isThere(process)) return "red";
  return process.stopping ? "yellow" : process.works.length === 0 ? "dim" : null;
}

function lockStyle({ stale }: LockView): Style | null {
  return stale ? "yellow" : null;
}
