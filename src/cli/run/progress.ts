import { stripVTControlCharacters } from "node:util";
import { ahead, age } from "../../core/age.ts";
import { saySpent } from "../../core/cost.ts";
import { number, plural } from "../../core/words.ts";
import { sayRate } from "../queues/queue-table.ts";
import { paint } from "../terminal/colours.ts";
import { table, terminalWidth } from "../terminal/table.ts";
import { oneLine, widthOf } from "../terminal/text.ts";
import type { Pace } from "./pace.ts";
import type { Seen } from "./show.ts";
import { type StageRow, stageColumns, stageRows } from "./stage-table.ts";

/** A bar is as wide as there is room, up to this. */
const WIDEST = 30;
/** Name, four counts and their gaps. */
const BESIDE = 46;

/** One line a stage, and one for all. */
export function progressBlock(seen: Seen, pace: Pace, elapsed: number): string {
  const { build } = seen;
  const rows = stageRows(build);
  const names = Math.max(5, ...rows.map(({ name }) => name.length));
  const width = Math.max(4, Math.min(WIDEST, terminalWidth() - BESIDE - names));
  const bar = { title: "", value: (row: StageRow) => barOf(row, width), style: barStyle };
  const [name, ...counts] = stageColumns();
  const processes = seen.processes > 1 ? [plural(seen.processes, "process", "processes")] : [];
  return [
    inOneLine([paint("bold", oneLine(build.pipeline)), paint("dim", `build ${build.id}`), age(elapsed)]),
    table([name as (typeof counts)[number], bar, ...counts], rows),
    inOneLine([...sayPace(seen, pace), ...processes]),
  ].join("\n");
}

/** As many of them as fit. */
function inOneLine(parts: readonly string[]): string {
  let line = "";
  let room = terminalWidth();
  for (const part of parts) {
    room -= widthOf(stripVTControlCharacters(part)) + (line === "" ? 0 : 3);
    if (room < 0 && line !== "") break;
    line += line === "" ? part : `${paint("dim", " · ")}${part}`;
  }
  return line;
}

/** The same in one line, for logs. */
export function progressLine(seen: Seen, pace: Pace): string {
  const stages = stageRows(seen.build).map(({ name, ran, cached, failed, left }) => {
    const counts = [`${number(ran)} done`];
    if (cached > 0) counts.push(`${number(cached)} cached`);
    if (failed > 0) counts.push(`${number(failed)} failed`);
    if (left > 0) counts.push(`${number(left)} left`);
    return `${oneLine(name)} ${counts.join(", ")}`;
  });
  return [...stages, ...sayPace(seen, pace)].join(" · ");
}

function sayPace({ build, listing }: Seen, pace: Pace): string[] {
  const spent = saySpent(build.spent, build.budget);
  const rate = pace.rate();
  const left = pace.timeLeft(build);
  return [
    ...(spent === "" ? [] : [spent]),
    ...(rate === null ? [] : [`${sayRate(rate)}/s`]),
    ...(listing ? ["listing"] : left === null ? [] : [`about ${ahead(left)} left`]),
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
