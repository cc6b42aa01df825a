import { setTimeout as pause } from "node:timers/promises";
import type { Command } from "commander";
import { ageText, untilText, type Duration, durationText, toMillis } from "../../core/text/duration.ts";
import { spentText } from "../../core/pipelines/budget.ts";
import { isPipelineQueue } from "../../core/pipelines/work.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { RECOVER_COMMAND } from "../../core/recovery/recovery-report.ts";
import type { Schedule } from "../../core/jobs/schedule.ts";
import { numberText, plural } from "../../core/text/text.ts";
import type { OldestJob, Operator } from "../../operator/operator.ts";
import {
  type Alarm,
  alarmsOf,
  isOrphaned,
  type LockStatus,
  mayBeAlive,
  type OpenBuild,
  type Overview,
  type ProcessStatus,
  workersIn,
} from "../../operator/overview.ts";
import { configOf } from "../config.ts";
import { pathOf, recoverAdvice, sameDatabase } from "../database.ts";
import { isJson, writeLine } from "../render/output.ts";
import {
  buildStateText,
  BUILD_STYLES,
  type Column,
  oneLine,
  paint,
  type Style,
  table,
  terminalWidth,
  truncate,
} from "../render/table.ts";
import { Screen } from "../render/terminal.ts";
import { untilInterrupted } from "../signals.ts";
import { addCommand, onDatabase } from "../verb.ts";
import { explainOldest, lastMinute, queueTable, type Rates, rateText } from "./queues.ts";
import { reportLine } from "./recover.ts";
import { scheduleTable } from "./schedules.ts";

const MIN_INTERVAL_MS = 100;

export function statusCommand(parent: Command): void {
  addCommand(parent, "status", {
    description:
      "Show the queues, builds that have not ended, their workers, locks, schedules, what was reclaimed, and what needs attention, such as jobs " +
      "without a worker. With --watch it is refreshed every 2 s until Ctrl-C, which exits 0; with --json that is a line each time.",
    examples: ["holdfast status", "holdfast status --watch 5s", "holdfast status --db work.db --json"],
  })
    .option("--watch [interval]", "refresh it at this interval (default: 2s)")
    .hook("preAction", (command) => void intervalOf(command.opts<{ watch?: string | true }>().watch))
    .action(
      onDatabase(async ({ operator, command }, options: { watch?: string | true }) => {
        const interval = intervalOf(options.watch);
        if (interval !== null) return await watch(operator, command, interval);
        const reading = await readOnce(operator, command);
        return [jsonOf(reading), () => statusPage(pathOf(command), reading)];
      }),
    );
}

function intervalOf(given: string | true | undefined): number | null {
  if (given === undefined) return null;
  const interval = given === true ? 2_000 : toMillis(given as Duration, "--watch");
  if (interval >= MIN_INTERVAL_MS) return interval;
  throw new HoldfastError("DURATION_INVALID", `--watch is ${String(given)}.`, `Give at least ${MIN_INTERVAL_MS}ms, e.g. 2s.`);
}

interface Reading {
  /** Monotonic time of the reading, because wall clocks may jump. */
  at: number;
  overview: Overview;
  alarms: Alarm[];
  oldest: OldestJob[];
  rates?: Rates;
}

async function readOnce(operator: Operator, command: Command): Promise<Reading> {
  const overview = await operator.overview();
  const at = performance.now();
  const oldest = await explainOldest(operator, overview.queues);
  return { at, overview, alarms: withAdvice(alarmsOf(overview), command), oldest };
}

async function watch(operator: Operator, command: Command, interval: number): Promise<void> {
  using over = untilInterrupted();
  const path = pathOf(command);
  if (isJson(command)) return await writeEach(operator, command, interval, over, (reading) => JSON.stringify(jsonOf(reading)));
  if (!Screen.fits(process.stdout)) {
    return await writeEach(operator, command, interval, over, (reading) => `${statusPage(path, reading)}\n`);
  }
  using screen = Screen.take(process.stdout);
  const foot = paint("dim", `every ${durationText(interval)} · Ctrl-C ends`);
  for await (const reading of readings(operator, command, interval, over)) {
    screen.draw(() => `${statusPage(path, reading)}\n\n${foot}`);
  }
}

function jsonOf({ overview, alarms, oldest, rates }: Reading): object {
  return { ...overview, alarms, oldest, ...(rates === undefined ? {} : { rates: Object.fromEntries(rates) }) };
}

async function writeEach(
  operator: Operator,
  command: Command,
  interval: number,
  over: AbortSignal,
  text: (reading: Reading) => string,
): Promise<void> {
  for await (const reading of readings(operator, command, interval, over)) if (!(await writeLine(text(reading)))) return;
}

async function* readings(operator: Operator, command: Command, interval: number, over: AbortSignal): AsyncGenerator<Reading> {
  let before: Reading | null = null;
  while (!over.aborted) {
    const reading = await readOnce(operator, command);
    yield before === null ? reading : { ...reading, rates: ratesBetween(before, reading) };
    before = reading;
    await pause(interval, null, { signal: over }).catch(() => {});
  }
}

function ratesBetween(before: Reading, now: Reading): Rates {
  const ended = new Map(before.overview.queues.map((queue) => [queue.name, queue.ended]));
  const seconds = (now.at - before.at) / 1_000;
  return new Map(
    now.overview.queues.map((queue) => [queue.name, (queue.ended - (ended.get(queue.name) ?? queue.ended)) / seconds]),
  );
}

/** Returns the alarms with hints that work in this shell: they name the same database and config as the command. */
export function withAdvice(alarms: readonly Alarm[], command: Command): Alarm[] {
  return alarms.map((alarm) => {
    const hint = alarm.hint === RECOVER_COMMAND ? recoverAdvice(command) : adviceOf(alarm.hint, command);
    return { ...alarm, hint };
  });
}

export function adviceOf(hint: string, command: Command): string {
  const hasModules = (configOf(command)?.modules.length ?? 0) > 0;
  const same = sameDatabase(command);
  const commands = hint.split(" && ").map((text) => {
    if (!text.startsWith("holdfast ")) return text;
    // Without modules in a config, the operator must name the files.
    const named = hasModules ? text.replace(/ FILES…$/, "") : text.replace(/^(holdfast builds resume \S+)$/, "$1 --file FILE");
    return named + same;
  });
  return commands.join(" && ");
}

const SCHEDULES_SHOWN = 5;

function statusPage(path: string, { overview, alarms, oldest, rates }: Reading): string {
  return [
    headline(path, overview, rates),
    alarmsText(alarms),
    overview.unreadable.length === 0 ? "" : paint("red", `Not to be read any more: ${overview.unreadable.join(", ")}.`),
    queueTable(overview.queues, overview.at, { rates, oldest }),
    overview.builds.length === 0 ? "" : table(openBuildColumns(overview.at), overview.builds),
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
    `${numberText(counts.pending)} pending`,
    `${numberText(counts.running)} running`,
    `${rateText(rate)} done/${rates === undefined ? "min" : "s"}`,
    plural(workersIn(overview).length, "worker"),
  ];
  return `${paint("bold", oneLine(path))}  ${parts.join(paint("dim", " · "))}`;
}

function alarmsText(alarms: readonly Alarm[]): string {
  const messages = alarms.map(({ message }) => oneLine(message));
  const width = Math.max(0, ...messages.map(({ length }) => length));
  // A hint that does not fit beside its message goes below it, so that it can be copied as one line.
  const isNarrow = alarms.some(({ hint }) => width + hint.length + 6 > terminalWidth());
  return alarms
    .map(({ grave, hint }, i) => {
      const message = paint(grave ? "red" : "yellow", `! ${isNarrow ? messages[i] : messages[i]?.padEnd(width)}`);
      return `${message}${isNarrow ? "\n    " : "  "}${paint("dim", `→ ${hint}`)}`;
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
    { title: "SINCE", right: true, value: ({ startedAt }) => ageText(at - startedAt), style: processStyle },
    { title: "RUNNING", right: true, value: ({ running }) => numberText(running), style: processStyle },
  ];
}

function worksOn({ works }: ProcessStatus): string {
  if (works.length === 0) return "–";
  const names = works.map(({ name, version }) => {
    // All stages of a pipeline, and the listing of its source, are shown under the pipeline's name.
    if (isPipelineQueue(name)) return name.slice(0, name.lastIndexOf("/"));
    return version === 1 ? name : `${name} v${version}`;
  });
  return [...new Set(names)].join(", ");
}

function lifeOf({ life, stopping }: ProcessStatus): string {
  if (stopping && life === "alive") return "stopping";
  return life === "unknown" ? "elsewhere" : life;
}

function schedules({ at, schedules }: Overview): string {
  if (schedules.length === 0) return "";
  const soonest = schedules.toSorted((a, b) => tickOrder(a) - tickOrder(b)).slice(0, SCHEDULES_SHOWN);
  const more = schedules.length - soonest.length;
  return scheduleTable(soonest, at) + (more === 0 ? "" : `\n${paint("dim", `${numberText(more)} more: holdfast schedules`)}`);
}

function tickOrder({ paused, nextAt }: Schedule): number {
  return paused ? Number.MAX_SAFE_INTEGER : nextAt;
}

function lockColumns(at: number): Column<LockStatus>[] {
  return [
    { title: "LOCK", value: ({ name }) => name, least: 8, style: lockStyle },
    { title: "HOLDER", value: ({ holder }) => holder, least: 8, style: lockStyle },
    { title: "SINCE", right: true, value: ({ acquiredAt }) => ageText(at - acquiredAt), style: lockStyle },
    {
      title: "EXPIRES",
      right: true,
      value: ({ stale, holderDead, expiresAt }) =>
        holderDead ? "holder is dead" : stale ? "expired" : `in ${untilText(expiresAt - at)}`,
      style: lockStyle,
    },
  ];
}

function recovered({ at, recovery, crashes }: Overview): string {
  const crash =
    crashes.last === null ? "" : `\n${paint("dim", truncate(`Last crash: ${reportLine(crashes.last, at)}`, terminalWidth()))}`;
  if (recovery.recoveredAt === 0)
    return crash === "" ? paint("dim", "No job has been reclaimed from a dead worker.") : crash.trimStart();
  const totals = `${plural(recovery.entriesReclaimed, "job")} and ${plural(recovery.locksCleaned, "lock")}`;
  const last = `${ageText(at - recovery.recoveredAt)} ago: ${oneLine(recovery.log[0]?.cause ?? "locks expired")}`;
  return `Reclaimed so far: ${totals}\n${paint("dim", truncate(`Last reclaim ${last}`, terminalWidth()))}${crash}`;
}

function total(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}

function processStyle(process: ProcessStatus): Style | null {
  if (!mayBeAlive(process)) return "red";
  return process.stopping ? "yellow" : process.works.length === 0 ? "dim" : null;
}

function lockStyle({ stale, holderDead }: LockStatus): Style | null {
  return holderDead ? "red" : stale ? "yellow" : null;
}

function openBuildColumns(now: number): Column<OpenBuild>[] {
  return [
    { title: "BUILD", value: ({ id }) => id },
    { title: "PIPELINE", value: ({ pipeline }) => pipeline, least: 8 },
    { title: "STATE", value: buildStateText, style: ({ state }) => BUILD_STYLES[state] },
    { title: "SPENT", value: ({ spent, budget }) => spentText(spent, budget), least: 8 },
    { title: "LEFT", right: true, value: ({ left }) => numberText(left) },
    { title: "AGE", right: true, value: ({ createdAt }) => ageText(now - createdAt) },
    { title: "ORCHESTRATOR", value: orchestratorText, least: 8, style: (build) => (isOrphaned(build) ? "red" : null) },
  ];
}

function orchestratorText(build: OpenBuild): string {
  const { lead } = build;
  return lead === null ? "–" : `pid ${lead.pid} on ${lead.host}${isOrphaned(build) ? ", which is dead" : ""}`;
}
