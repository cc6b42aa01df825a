import type { WriteStream } from "node:tty";
import { stripVTControlCharacters } from "node:util";
import type { Command } from "commander";
import { ageText, untilText } from "../../core/text/duration.ts";
import type { Build } from "../../core/pipelines/build-view.ts";
import { type BuildState, currentReasonText } from "../../core/pipelines/build.ts";
import { spentText } from "../../core/pipelines/budget.ts";
import { numberText, plural } from "../../core/text/text.ts";
import type { Log } from "../../engine/log.ts";
import { rateText } from "../commands/queues.ts";
import { isJson, writtenLog } from "./output.ts";
import { buildStateText, BUILD_STYLES, type Column, count, oneLine, paint, table, terminalWidth, widthOf } from "./table.ts";
import { LiveBlock, Screen } from "./terminal.ts";

interface BuildSnapshot {
  build: Build;
  listing: boolean;
  processes: number;
}

export interface BuildDisplay extends Disposable {
  readonly log: Log;
  say(text: string): void;
  progress(seen: BuildSnapshot): void;
  end(build: Build, text: () => string): void;
}

const LINE_INTERVAL_MS = 1_000;
/** The block shows elapsed time, so it is also redrawn without progress. */
const REDRAW_INTERVAL_MS = 500;

export function displayBuild(command: Command): BuildDisplay {
  if (isJson(command)) return new LineDisplay((seen) => JSON.stringify({ type: "progress", ...seen.build }), true);
  return Screen.fits(process.stdout) ? new TerminalDisplay(process.stdout) : new LineDisplay(progressLine, false);
}

class LineDisplay implements BuildDisplay {
  readonly log = writtenLog("info", (line) => void process.stderr.write(`${line}\n`));
  readonly #line: (seen: BuildSnapshot, pace: BuildRate) => string;
  readonly #json: boolean;
  #pace = new BuildRate();
  #last = "";
  #at = Number.NEGATIVE_INFINITY;

  constructor(line: (seen: BuildSnapshot, pace: BuildRate) => string, json: boolean) {
    this.#line = line;
    this.#json = json;
  }

  say(text: string): void {
    (this.#json ? process.stderr : process.stdout).write(`${text}\n`);
  }

  progress(seen: BuildSnapshot): void {
    const now = performance.now();
    this.#pace.see(seen.build, now);
    if (now - this.#at < LINE_INTERVAL_MS) return;
    const counted = JSON.stringify([seen.build.state, seen.build.stages, seen.build.spent]);
    if (counted === this.#last) return;
    this.#last = counted;
    this.#at = now;
    process.stdout.write(`${this.#line(seen, this.#pace)}\n`);
  }

  end(build: Build, text: () => string): void {
    this.#pace = new BuildRate();
    this.#last = "";
    this.#at = Number.NEGATIVE_INFINITY;
    process.stdout.write(this.#json ? `${JSON.stringify({ type: "build", ...build })}\n` : `${text()}\n`);
  }

  [Symbol.dispose](): void {}
}

class TerminalDisplay implements BuildDisplay {
  readonly log = writtenLog("info", (line) => this.say(line));
  readonly #block: LiveBlock;
  readonly #timer: NodeJS.Timeout;
  #pace = new BuildRate();
  #seen: BuildSnapshot | null = null;
  #since = performance.now();

  constructor(stream: WriteStream) {
    this.#block = new LiveBlock(stream);
    this.#timer = setInterval(() => this.#draw(), REDRAW_INTERVAL_MS).unref();
  }

  say(text: string): void {
    this.#block.write(text);
  }

  progress(seen: BuildSnapshot): void {
    if (this.#seen === null) this.#since = performance.now();
    this.#seen = seen;
    this.#draw();
  }

  end(_build: Build, text: () => string): void {
    this.#seen = null;
    this.#pace = new BuildRate();
    this.#block.clear();
    process.stdout.write(`${text()}\n`);
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    if (this.#seen !== null) this.#block.clear();
    this.#block[Symbol.dispose]();
  }

  #draw(): void {
    if (this.#seen === null) return;
    const now = performance.now();
    this.#pace.see(this.#seen.build, now);
    this.#block.draw(progressBlock(this.#seen, this.#pace, now - this.#since));
  }
}

const MAX_BAR_WIDTH = 30;
const BESIDE_BAR_WIDTH = 46;

function progressBlock(seen: BuildSnapshot, pace: BuildRate, elapsed: number): string {
  const { build } = seen;
  const rows = stageRows(build);
  const names = Math.max(5, ...rows.map(({ name }) => name.length));
  const width = Math.max(4, Math.min(MAX_BAR_WIDTH, terminalWidth() - BESIDE_BAR_WIDTH - names));
  const bar = { title: "", value: (row: StageRow) => barOf(row, width), style: barStyle };
  const [name, ...counts] = stageColumns();
  const processes = seen.processes > 1 ? [plural(seen.processes, "process", "processes")] : [];
  return [
    joinFitting([paint("bold", oneLine(build.pipeline)), paint("dim", `build ${build.id}`), ageText(elapsed)]),
    table([name as (typeof counts)[number], bar, ...counts], rows),
    joinFitting([...rateTexts(seen, pace), ...processes]),
  ].join("\n");
}

function joinFitting(parts: readonly string[]): string {
  let line = "";
  let room = terminalWidth();
  for (const part of parts) {
    room -= widthOf(stripVTControlCharacters(part)) + (line === "" ? 0 : 3);
    if (room < 0 && line !== "") break;
    line += line === "" ? part : `${paint("dim", " · ")}${part}`;
  }
  return line;
}

function progressLine(seen: BuildSnapshot, pace: BuildRate): string {
  const stages = stageRows(seen.build).map(({ name, ran, cached, failed, left }) => {
    const counts = [`${numberText(ran)} done`];
    if (cached > 0) counts.push(`${numberText(cached)} cached`);
    if (failed > 0) counts.push(`${numberText(failed)} failed`);
    if (left > 0) counts.push(`${numberText(left)} left`);
    return `${oneLine(name)} ${counts.join(", ")}`;
  });
  return [...stages, ...rateTexts(seen, pace)].join(" · ");
}

function rateTexts({ build, listing }: BuildSnapshot, pace: BuildRate): string[] {
  const spent = spentText(build.spent, build.budget);
  const rate = pace.rate();
  const left = pace.timeLeft(build);
  return [
    ...(spent === "" ? [] : [spent]),
    ...(rate === null ? [] : [`${rateText(rate)}/s`]),
    ...(listing ? ["listing"] : left === null ? [] : [`about ${untilText(left)} left`]),
  ];
}

function barOf({ ran, cached, failed, left }: StageRow, width: number): string {
  const ended = ran + cached + failed;
  const full = ended + left === 0 ? 0 : Math.floor((ended / (ended + left)) * width);
  return "█".repeat(full) + "░".repeat(width - full);
}

function barStyle({ failed, left, ran, cached }: StageRow): "yellow" | "green" | "cyan" {
  if (failed > 0) return "yellow";
  return left === 0 && ran + cached > 0 ? "green" : "cyan";
}

const RATE_WINDOW_MS = 15_000;
const RATE_MIN_MS = 1_000;

class BuildRate {
  readonly #seen: { at: number; ended: number }[] = [];

  see(build: Build, at: number): void {
    const ended = sum(build, ({ ran, failed }) => ran + failed);
    if (this.#seen.at(-1)?.ended === ended && this.#seen.length > 1) this.#seen.pop();
    this.#seen.push({ at, ended });
    while (this.#seen.length > 2 && (this.#seen[1]?.at ?? at) < at - RATE_WINDOW_MS) this.#seen.shift();
  }

  rate(): number | null {
    const [first, last] = [this.#seen[0], this.#seen.at(-1)];
    if (first === undefined || last === undefined || last.at - first.at < RATE_MIN_MS) return null;
    return ((last.ended - first.ended) * 1_000) / (last.at - first.at);
  }

  timeLeft(build: Build): number | null {
    const rate = this.rate();
    return rate === null || rate === 0 ? null : (sum(build, ({ left }) => left) * 1_000) / rate;
  }
}

type Stage = Build["stages"][string];

function sum({ stages }: Build, of: (stage: Stage) => number): number {
  return Object.values(stages).reduce((total, stage) => total + of(stage), 0);
}

type StageRow = Build["stages"][string] & { name: string };

function stageRows({ stages }: Build): StageRow[] {
  return Object.entries(stages).map(([name, { ran, cached, failed, left }]) => ({ name, ran, cached, failed, left }));
}

function stageColumns(): Column<StageRow>[] {
  return [
    { title: "STAGE", value: ({ name }) => name, least: 8 },
    count("DONE", ({ ran }) => ran, "green"),
    count("CACHED", ({ cached }) => cached),
    count("FAILED", ({ failed }) => failed, "yellow"),
    count("LEFT", ({ left }) => left),
  ];
}

export function buildSummary(build: Build, now: number): string {
  const rows = stageRows(build);
  const parts = [headline(build, now), rows.length === 0 ? "" : table(stageColumns(), rows), errorsOf(build)];
  return parts.filter((part) => part !== "").join("\n");
}

function headline(build: Build, now: number): string {
  const { id, pipeline, state, createdAt, finishedAt } = build;
  const spent = spentText(build.spent, build.budget);
  const about = [
    `build ${id}`,
    oneLine(currentReasonText(build)),
    `${ageText((finishedAt ?? now) - createdAt)}`,
    ...(spent === "" ? [] : [spent]),
  ];
  return `${paint(BUILD_STYLES[state], buildStateText(build))} ${paint("bold", oneLine(pipeline))} ${paint("dim", about.join(" · "))}`;
}

/** Returns error messages in full, so that they can be searched for. */
function errorsOf({ errors, stages }: Build): string {
  if (errors.length === 0) return "";
  const failed = Object.values(stages).reduce((total, stage) => total + stage.failed, 0);
  const lines = errors.map(({ stage, target, message }) => {
    const where = stage === "" ? "source" : target === "" ? stage : `${stage} ${target}`;
    return `${paint("yellow", "failed")} ${oneLine(where)}: ${oneLine(message)}`;
  });
  if (failed > errors.length) lines.push(paint("dim", `… and ${numberText(failed - errors.length)} more`));
  return lines.join("\n");
}

export function nextStep({ id, state }: Pick<Build, "id" | "state">, { again, same }: { again: string; same: string }): string {
  switch (state as BuildState) {
    case "SUCCESS":
      return `holdfast builds export ${id} DIR${same} writes the results into a folder.`;
    case "FAILED":
      return `${again} runs the failed targets again, and reuses the other results.`;
    case "CRASHED":
      return `${again} continues the build.`;
    default:
      return "";
  }
}
