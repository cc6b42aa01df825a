import type { Command } from "commander";
import { ageText } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { didYouMean } from "../../core/text/options.ts";
import { FINISHED_STATES, type JobState } from "../../core/jobs/job.ts";
import { numberText } from "../../core/text/text.ts";
import { isPipelineQueue } from "../../core/pipelines/work.ts";
import type { OldestJob, Operator } from "../../operator/operator.ts";
import type { QueueOverview } from "../../store/queries.ts";
import { type Column, count, oneLine, JOB_STYLES, tableOr, terminalWidth } from "../render/table.ts";
import { addCommand, type Answer, onDatabase, type OpenDatabase } from "../verb.ts";

export function queuesCommand(parent: Command): void {
  const queues = addCommand(parent, "queues", {
    description: "List, pause and resume queues. Workers claim nothing from a paused queue until it is resumed.",
    examples: ["holdfast queues", "holdfast queues pause mail"],
  });
  addCommand(queues, "list", {
    summary: "list the queues (default)",
    description: "List the queues, with what is in them, and why the oldest pending job of each does not run.",
    examples: ["holdfast queues list --json"],
    isDefault: true,
  }).action(
    onDatabase(async ({ operator }) => {
      const items = await operator.queues();
      const oldest = await explainOldest(operator, items);
      return [{ items, ...operator.incomplete() }, () => queueTable(items, operator.now(), { oldest })];
    }),
  );
  addCommand(queues, "pause", {
    summary: "stop claims from it until it is resumed",
    description: "Pause a queue: its jobs wait until it is resumed. Running jobs finish.",
    examples: ["holdfast queues pause mail"],
  })
    .argument("<name>", "the queue's name, as in `holdfast queues`")
    .option("--ahead", "also a queue that has had no job yet")
    .action(onDatabase((database, name: string, { ahead }: { ahead?: boolean }) => setPaused(database, name, true, ahead)));
  addCommand(queues, "resume", {
    summary: "allow claims from it again",
    description: "Allow claims from a queue again.",
    examples: ["holdfast queues resume mail"],
  })
    .argument("<name>", "the queue's name, as in `holdfast queues`")
    .action(onDatabase((database, name: string, _options: object) => setPaused(database, name, false)));
}

async function setPaused({ hf, operator }: OpenDatabase, name: string, paused: boolean, ahead = false): Promise<Answer> {
  const queues = await hf.queues.list();
  const known = queues.map((queue) => queue.name);
  const isEmpty = Object.values(queues.find((queue) => queue.name === name)?.counts ?? {}).every((count) => count === 0);
  // A mistyped name must not look like a success.
  if (!ahead && !known.includes(name)) throw noSuchQueue(name, known, paused);
  const changed = await operator.setPaused(name, paused);
  const text = () => {
    const state = paused ? "paused" : "resumed";
    const done = changed ? `is ${state}` : `${paused ? "is paused" : "was not paused"} already`;
    return `${oneLine(name)} ${done}.${isEmpty ? " The queue has no jobs." : ""}`;
  };
  return [{ queue: name, paused, changed }, text];
}

function noSuchQueue(name: string, known: readonly string[], paused: boolean): HoldfastError {
  const others = known.length === 0 ? "There are no queues yet." : `${didYouMean(name, known)}Queues: ${known.join(", ")}.`;
  const ahead = paused ? " Add --ahead to pause it before its first job." : "";
  return new HoldfastError("NO_SUCH_QUEUE", `There is no queue ${name}.`, others + ahead);
}

/** Explaining the oldest job of a queue costs a few reads. */
const MAX_EXPLAINED_QUEUES = 20;

export function explainOldest(operator: Operator, queues: readonly QueueOverview[]): Promise<OldestJob[]> {
  const waiting = queues.filter(({ counts }) => counts.pending > 0).map(({ name }) => name);
  return operator.explainOldest(waiting.slice(0, MAX_EXPLAINED_QUEUES));
}

const WIDE_COLUMNS = 96;

export type Rates = ReadonlyMap<string, number>;

export function queueTable(
  queues: readonly QueueOverview[],
  now: number,
  { rates, oldest = [] }: { rates?: Rates | undefined; oldest?: readonly OldestJob[] } = {},
): string {
  const why = new Map(oldest.map(({ queue, explanation }) => [queue, explanation.message]));
  const limited = oldest.filter(({ explanation }) => explanation.reason === "limit");
  // Jobs that a limit holds back have waited, too, although none of them could run now.
  const heldSince = new Map(limited.map(({ queue, createdAt }) => [queue, createdAt]));
  const ageOf = ({ name, oldestAt = heldSince.get(name) }: QueueOverview) =>
    oldestAt === undefined ? "–" : ageText(now - oldestAt);
  const any = (state: JobState) => queues.some(({ counts }) => counts[state] > 0);
  const isWide = terminalWidth() >= WIDE_COLUMNS;
  const isIdle = (queue: QueueOverview) => (rateOf(queue, rates) === "0" ? "dim" : "green");
  const columns: (Column<QueueOverview> | false)[] = [
    { title: "QUEUE", value: ({ name }) => name, least: 6, style: (queue) => (isHeld(queue) ? "yellow" : null) },
    queues.some(isHeld) && { title: "", value: (queue) => (isHeld(queue) ? "paused" : ""), style: () => "yellow" },
    any("waiting") && countOf("waiting"),
    countOf("pending"),
    countOf("running"),
    { title: rates === undefined ? "DONE/MIN" : "DONE/S", right: true, value: (queue) => rateOf(queue, rates), style: isIdle },
    isWide && countOf("succeeded"),
    countOf("failed"),
    isWide && any("cancelled") && countOf("cancelled"),
    any("quarantined") && countOf("quarantined"),
    { title: "OLDEST", right: true, value: ageOf },
    why.size > 0 && { title: "WHY", value: ({ name }) => why.get(name) ?? "", least: 12, style: () => "dim" },
  ];
  return tableOr(
    "No jobs yet.",
    columns.filter((column) => column !== false),
    queues,
  );
}

/** Whether the queue is shown as paused. A pipeline's queue is also paused between builds, when it has no jobs. */
function isHeld({ name, paused, counts }: QueueOverview): boolean {
  const isIdle = counts.waiting + counts.pending + counts.running === 0;
  return paused && !(isPipelineQueue(name) && isIdle);
}

export function lastMinute(queue: QueueOverview): number {
  return FINISHED_STATES.reduce((total, state) => total + queue.lastMinute[state], 0);
}

export function rateText(rate: number): string {
  return numberText(rate < 10 ? Math.round(rate * 10) / 10 : Math.round(rate));
}

function rateOf(queue: QueueOverview, rates: Rates | undefined): string {
  return rateText(rates === undefined ? lastMinute(queue) : (rates.get(queue.name) ?? 0));
}

function countOf(state: JobState): Column<QueueOverview> {
  return count(state.toUpperCase(), ({ counts }) => counts[state], JOB_STYLES[state]);
}
