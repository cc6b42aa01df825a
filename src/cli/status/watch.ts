import { setTimeout as pause } from "node:timers/promises";
import type { Command } from "commander";
import { sayMillis } from "../../core/duration.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { Operator } from "../../runtime/operator.ts";
import { type Alarm, alarmsOf } from "../../runtime/status/alarms.ts";
import type { Overview } from "../../runtime/status/overview.ts";
import type { Rates } from "../commands/queues.ts";
import { pathOf } from "../database.ts";
import { isJson, writeLine } from "../render/output.ts";
import { paint } from "../render/table.ts";
import { Screen } from "../render/terminal.ts";
import { untilInterrupted } from "../signals.ts";
import { withAdvice } from "./advice.ts";
import { statusPage } from "./page.ts";

/** One look, and what was seen of it since the look before. */
interface Look {
  overview: Overview;
  alarms: Alarm[];
  /** Not with the first. */
  rates?: Rates;
}

/** Until a signal, or until nobody reads it any more. */
export async function watch(hf: Holdfast, command: Command, interval: number): Promise<void> {
  using over = untilInterrupted();
  const path = pathOf(command);
  if (isJson(command)) return await writeEach(hf, command, interval, over, line);
  if (!Screen.fits(process.stdout)) {
    return await writeEach(
      hf,
      command,
      interval,
      over,
      ({ overview, alarms, rates }) => `${statusPage(path, overview, alarms, rates)}\n`,
    );
  }
  using screen = Screen.take(process.stdout);
  const foot = paint("dim", `every ${sayMillis(interval)} · Ctrl-C ends`);
  for await (const { overview, alarms, rates } of looks(hf, command, interval, over)) {
    screen.draw(() => `${statusPage(path, overview, alarms, rates)}\n\n${foot}`);
  }
}

function line({ overview, alarms, rates }: Look): string {
  return JSON.stringify({ ...overview, alarms, ...(rates === undefined ? {} : { rates: Object.fromEntries(rates) }) });
}

async function writeEach(
  hf: Holdfast,
  command: Command,
  interval: number,
  over: AbortSignal,
  text: (look: Look) => string,
): Promise<void> {
  for await (const look of looks(hf, command, interval, over)) if (!(await writeLine(text(look)))) return;
}

async function* looks(hf: Holdfast, command: Command, interval: number, over: AbortSignal): AsyncGenerator<Look> {
  let before: { overview: Overview; at: number } | null = null;
  while (!over.aborted) {
    const overview = await new Operator(hf).overview();
    const now = { overview, at: performance.now() };
    yield {
      overview,
      alarms: withAdvice(alarmsOf(overview), command),
      ...(before === null ? {} : { rates: ratesBetween(before, now) }),
    };
    before = now;
    await pause(interval, null, { signal: over }).catch(() => {});
  }
}

/** Ends a second, of queues that were there before. Wall clocks may jump in between. */
function ratesBetween(before: { overview: Overview; at: number }, now: { overview: Overview; at: number }): Rates {
  const ended = new Map(before.overview.queues.map((queue) => [queue.name, queue.ended]));
  const seconds = (now.at - before.at) / 1_000;
  return new Map(
    now.overview.queues.map((queue) => [queue.name, (queue.ended - (ended.get(queue.name) ?? queue.ended)) / seconds]),
  );
}
