import type { Command } from "commander";
import { age } from "../../core/age.ts";
import { HoldfastError } from "../../core/errors.ts";
import { FINISHED_STATES, type JobState } from "../../core/job.ts";
import { number } from "../../core/words.ts";
import { isPipelineQueue } from "../../core/work.ts";
import { Operator } from "../../runtime/operator.ts";
import type { QueueOverview } from "../../store/look.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { type Column, count, oneLine, paint, stateStyle, table, terminalWidth } from "../render/table.ts";
import { examples } from "../verb.ts";

export function queuesCommand(parent: Command): void {
  const queues = parent
    .command("queues")
    .summary("how each queue stands: list, pause, resume")
    .description("How each queue stands. A paused queue hands out nothing until it is resumed, to nobody.")
    .addHelpText("after", examples("holdfast queues", "holdfast queues pause mail"));
  queues
    .command("list", { isDefault: true })
    .summary("list the queues (default)")
    .description("List the queues, with what is in them.")
    .addHelpText("after", examples("holdfast queues list --json"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const items = await operator.queues();
      answer(command, { items, ...operator.incomplete() }, () => queueTable(items, operator.now()));
    });
  queues
    .command("pause")
    .summary("hand out nothing more of it, until it is resumed")
    .description("Hand out nothing more of it, until it is resumed. What runs goes on, what is enqueued waits.")
    .argument("<name>", "the queue's name, as in `holdfast queues`")
    .option("--ahead", "also a queue that nothing was ever put into")
    .addHelpText("after", examples("holdfast queues pause mail"))
    .action((name: string, options: { ahead?: boolean }, command: Command) => setPaused(command, name, true, options.ahead));
  queues
    .command("resume")
    .summary("hand out its jobs again")
    .description("Hand out its jobs again, at once.")
    .argument("<name>", "the queue's name, as in `holdfast queues`")
    .addHelpText("after", examples("holdfast queues resume mail"))
    .action((name: string, _options: object, command: Command) => setPaused(command, name, false));
}

async function setPaused(command: Command, name: string, paused: boolean, ahead = false): Promise<void> {
  await using hf = await openExisting(command);
  const known = (await hf.queues.list()).map((queue) => queue.name);
  // A typing mistake must not look like a success.
  if (!ahead && !known.includes(name)) throw noSuchQueue(name, known, paused);
  const changed = await new Operator(hf).setPaused(name, paused);
  answer(command, { queue: name, paused, changed }, () => {
    const what = paused ? "paused" : "resumed";
    return changed ? `${oneLine(name)} is ${what}.` : `${oneLine(name)} ${paused ? "is paused" : "was not paused"} already.`;
  });
}

function noSuchQueue(name: string, known: readonly string[], paused: boolean): HoldfastError {
  const others = known.length === 0 ? "There is none yet." : `There are: ${known.join(", ")}.`;
  const ahead = paused ? " Add --ahead to pause it before its first job." : "";
  return new HoldfastError("NO_SUCH_QUEUE", `There is no queue ${name}.`, others + ahead);
}

/** Below this many columns what is over and done gives way to what is going on. */
const WIDE_COLUMNS = 96;

/** How many jobs of each queue end in a second, as seen between two looks. */
export type Rates = ReadonlyMap<string, number>;

/** The queues, for people. Without rates seen: those of the last minute. */
export function queueTable(queues: readonly QueueOverview[], now: number, rates?: Rates): string {
  if (queues.length === 0) return paint("dim", "No jobs yet.");
  const any = (state: JobState) => queues.some(({ counts }) => counts[state] > 0);
  const wide = terminalWidth() >= WIDE_COLUMNS;
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
