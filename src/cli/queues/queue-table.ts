import { age } from "../../core/age.ts";
import { FINISHED_STATES, type JobState } from "../../core/job.ts";
import { number } from "../../core/words.ts";
import { isPipelineQueue } from "../../core/work.ts";
import type { QueueOverview } from "../../store/look.ts";
import { type Column, count, paint, stateStyle, table, terminalWidth } from "../render/table.ts";

/** Below this many columns what is over and done gives way to what is going on. */
const WIDE = 96;

/** How many jobs of each queue end in a second, as seen between two looks. */
export type Rates = ReadonlyMap<string, number>;

/** The queues, for people. Without rates seen: those of the last minute. */
export function queueTable(queues: readonly QueueOverview[], now: number, rates?: Rates): string {
  if (queues.length === 0) return paint("dim", "No jobs yet.");
  const any = (state: JobState) => queues.some(({ counts }) => counts[state] > 0);
  const wide = terminalWidth() >= WIDE;
  const columns: (Column<QueueOverview> | false)[] = [
    { title: "QUEUE", value: ({ name }) => name, least: 6, style: (queue) => (isHeld(queue) ? "yellow" : null) },
    queues.some(isHeld) && {
      title: "",
      value: (queue) => (isHeld(queue) ? "paused" : ""),
      style: () => "yellow",
    },
    any("waiting") && countOf("waiting"),
    countOf("pending"),
    countOf("running"),
    { title: rates === undefined ? "DONE/MIN" : "DONE/S", right: true, value: (queue) => rateOf(queue, rates), style: isIdle },
    wide && countOf("succeeded"),
    countOf("failed"),
    wide && any("cancelled") && countOf("cancelled"),
    any("quarantined") && countOf("quarantined"),
    { title: "OLDEST", right: true, value: ({ oldestAt }) => (oldestAt === undefined ? "–" : age(now - oldestAt)) },
  ];
  return table(
    columns.filter((column) => column !== false),
    queues,
  );

  function isIdle(queue: QueueOverview): "dim" | "green" {
    return rateOf(queue, rates) === "0" ? "dim" : "green";
  }
}

/** Paused, by somebody or for a budget. That of a pipeline is between its builds, too, when there is nothing to hand out. */
function isHeld({ name, paused, counts }: QueueOverview): boolean {
  const isIdle = counts.waiting + counts.pending + counts.running === 0;
  return paused && !(isPipelineQueue(name) && isIdle);
}

/** Ended in the last minute, about. */
export function lastMinute(queue: QueueOverview): number {
  return FINISHED_STATES.reduce((total, state) => total + queue.lastMinute[state], 0);
}

/** `0`, `2.4`, `1,250`. */
export function sayRate(rate: number): string {
  return number(rate < 10 ? Math.round(rate * 10) / 10 : Math.round(rate));
}

function rateOf(queue: QueueOverview, rates: Rates | undefined): string {
  return sayRate(rates === undefined ? lastMinute(queue) : (rates.get(queue.name) ?? 0));
}

function countOf(state: JobState): Column<QueueOverview> {
  return count(state.toUpperCase(), ({ counts }) => counts[state], stateStyle(state));
}
