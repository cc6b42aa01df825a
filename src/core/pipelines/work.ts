import { hash } from "node:crypto";
import { HoldfastError } from "../text/errors.ts";
import type { ResultKey } from "../text/ids.ts";
import { type JobError, toJobError } from "../jobs/job.ts";
import type { Outcome } from "../jobs/retry.ts";
import { checkStorable } from "../text/text.ts";
import type { ValueHash } from "./context-hash.ts";
import type { StageDefinition } from "./stage.ts";

/** What begins so is a pipeline's: queues, and names of jobs. */
const PREFIX = "pipeline/";

/**
 * The queue of a pipeline's work items. If targets are files that only one host has, the queue belongs to that host: no
 * other host claims from it.
 */
export function pipelineQueue(pipeline: string, host: string | null): string {
  return host === null ? PREFIX + pipeline : `${PREFIX}${pipeline}@${host}`;
}

/** Whether its jobs are work items of builds. */
export function isPipelineQueue(queue: string): boolean {
  return queue.startsWith(PREFIX);
}

/** The name of the jobs of a stage, whose name holds no slash. */
export function stageJobName(pipeline: string, stage: string): string {
  return `${PREFIX}${pipeline}/${stage}`;
}

/** The name of the jobs that list targets; no stage has an empty name. */
export function listingJobName(pipeline: string): string {
  return stageJobName(pipeline, "");
}

/** Of a queue or a job that a user names. */
export function refusePipelineName(name: string, what: string): string {
  if (!name.startsWith(PREFIX)) return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} is "${name}", but names that begin with "${PREFIX}" are reserved for pipelines.`,
    "Give another name.",
  );
}

/** A success and what it names are one. An artifact that is not there may be made anew, by another attempt. */
export function artifactMissing(hashes: readonly string[]): HoldfastError {
  const [first, ...others] = hashes;
  return new HoldfastError(
    "ARTIFACT_MISSING",
    `The artifact ${first}${others.length === 0 ? "" : ` and ${others.length} more`} is not stored, so no result can refer to it.`,
    "Store artifacts before you commit the result that names them, in the folder of this database.",
  );
}

export function withoutArtifacts(hashes: readonly string[]): Outcome {
  return { kind: "error", error: toJobError(artifactMissing(hashes)) };
}

/** The success of a stage that does not say what it made: its caller is not a worker of the pipeline. */
export function withoutResult(): Outcome {
  const error = new HoldfastError(
    "RESULT_MISSING",
    "The job of a stage was settled as a success without the stage's result.",
    "Let only workers of the pipeline claim jobs of its queue.",
  );
  return { kind: "error", error: toJobError(error), retry: false };
}

/** The error in the record of a cancelled work item. */
export function cancelledItem(): JobError {
  return { name: "CancelledError", code: "CANCELLED", message: "Its job was cancelled." };
}

/**
 * The stages that the same targets go through: what lies between the source, the expands and the gathers. An expand is the
 * last of its segment, and makes the targets of the next; a gather is the first of its own, and works on groups.
 */
export interface Segment {
  index: number;
  from: "source" | "expand" | "gather";
  stages: readonly StageDefinition[];
  /** What comes behind it. */
  ends: "expand" | "gather" | "nothing";
  /** The gather that comes behind it. */
  gather: StageDefinition | null;
  /** 0 for what comes of the source, then one more behind each gather. */
  round: number;
}

export function segmentsOf(stages: readonly StageDefinition[]): Segment[] {
  const segments: { from: Segment["from"]; stages: StageDefinition[] }[] = [{ from: "source", stages: [] }];
  for (const stage of stages) {
    if (stage.kind === "gather") segments.push({ from: "gather", stages: [] });
    segments.at(-1)?.stages.push(stage);
    if (stage.kind === "expand") segments.push({ from: "expand", stages: [] });
  }
  let round = 0;
  return segments.map(({ from, stages: own }, index) => {
    if (from === "gather") round++;
    const next = segments[index + 1];
    const ends = next === undefined ? "nothing" : (next.from as "expand" | "gather");
    return { index, from, stages: own, ends, gather: ends === "gather" ? (next?.stages[0] as StageDefinition) : null, round };
  });
}

/** The segment that a gather of this round works on; undefined: there is no such round. */
export function gatherSegment(segments: readonly Segment[], round: number): Segment | undefined {
  return segments.find((segment) => segment.from === "gather" && segment.round === round);
}

/** Stands for that mark where a target is gone, and is kept until what was made of it is removed. */
export const GONE = "gone";

/**
 * Names all that a target's way through its segment depends on, besides its own content: the definitions, and what its
 * parent brought along. Null where that cannot be told without asking a function.
 */
export function doneMark({ stages, gather }: Segment, inherited: CompletedStages): string | null {
  const asks = stages.some(({ key, match }) => typeof key === "function" || typeof match === "function");
  if (asks || (gather !== null && gather.by !== null)) return null;
  const parts = stages.map(({ name, kind, version, key, uses, match, reuse }) => [name, kind, version, key, uses, match, reuse]);
  const before = inherited.map(({ stage, output }) => [stage, output]);
  return hash("sha256", JSON.stringify(["holdfast.done.1", parts, gather?.name ?? null, before]));
}

/** One stage that a target has gone through in its segment. What let it pass by is not in its completed stages. */
export interface Step {
  stage: string;
  /** Where the output is. Null: it is written in the same commit. */
  result: ResultKey | null;
  /** Of an expand: `childrenOf` what they were made from, or `none` as soon as others are being made. */
  output: ValueHash;
  /** The target was gone: what the stage has done outside is removed, or is being removed. */
  undone?: true;
}

/** What stands in the completed stages for the children that an expand has made in this context. They are there once, whatever was before. */
export function childrenOf(context: string): ValueHash {
  return `members:${context}`;
}

/** The stages that a target has gone through, in their order; those of its parent come first. */
export type CompletedStages = readonly Step[];

export function stepOf(completed: CompletedStages, stage: string): Step | undefined {
  return completed.find((step) => step.stage === stage);
}

/** As it is stored. */
export function completedStagesText(completed: CompletedStages): string {
  return JSON.stringify(completed.map(({ stage, result, output, undone }) => [stage, result, output, ...(undone ? [1] : [])]));
}

export function parseCompletedStages(text: string): CompletedStages {
  const steps = JSON.parse(text) as [string, ResultKey | null, ValueHash, 1?][];
  return steps.map(([stage, result, output, undone]) =>
    undone === undefined ? { stage, result, output } : { stage, result, output, undone: true },
  );
}

/** With the key of what was written in the same commit. */
export function withResult(completed: CompletedStages, result: ResultKey): CompletedStages {
  return completed.map((step) => (step.result === null ? { ...step, result } : step));
}

/** So many bytes an id may have, since it is indexed. */
export const ID_BYTES = 2_000;

/** Between a target's id and those of its parents. No id holds it. */
const BETWEEN = "\u001f";

/** What names a target in its segment: its id, behind those of its parents. */
export function pathOf(parent: string | null, id: string): string {
  if (parent === null) return id;
  const path = parent + BETWEEN + id;
  if (fits(path)) return path;
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `The id ${JSON.stringify(id.slice(0, 100))} has, with those of its parents, ${Buffer.byteLength(path)} bytes.`,
    `Give shorter ids: together they may have ${ID_BYTES} bytes.`,
  );
}

/** For people: the ids one behind the other. */
export function sayPath(path: string): string {
  return path.replaceAll(BETWEEN, "/");
}

/** A target's id, behind those of its parents. */
export function idsOf(path: string): string[] {
  return path.split(BETWEEN);
}

/** The id of a target as a user's function answers it; `what` names that function. */
export function checkTargetId(id: unknown, what: string): string {
  const wrong = wrongWith(id);
  if (wrong === null) return checkStorable(id as string, what);
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `${what} is ${wrong}.`,
    `Give a string of 1 to ${ID_BYTES} bytes, without lone surrogates and without U+001F.`,
  );
}

/** What it is and why that is no id: a build keeps the message of an error, not its hint. */
function wrongWith(id: unknown): string | null {
  if (typeof id !== "string") return `${JSON.stringify(id) ?? String(id)}, and an id is a text`;
  if (id === "") return '"", and an id has at least one character';
  if (!fits(id)) return `a text of ${Buffer.byteLength(id)} bytes, and an id may have ${ID_BYTES}`;
  const given = JSON.stringify(id.slice(0, 100));
  if (!id.isWellFormed()) return `${given}, and an id holds no half of a character (a lone surrogate)`;
  return id.includes(BETWEEN) ? `${given}, and an id does not hold U+001F` : null;
}

/** Whether an id is short enough. */
export function fits(id: string): boolean {
  // No character has more than three bytes for each of its halves.
  return id.length * 3 <= ID_BYTES || Buffer.byteLength(id) <= ID_BYTES;
}
