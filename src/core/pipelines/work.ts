import { hash } from "node:crypto";
import { HoldfastError } from "../text/errors.ts";
import type { ResultKey } from "../text/ids.ts";
import { type JobError, toJobError } from "../jobs/job.ts";
import type { Outcome } from "../jobs/retry.ts";
import { checkStorable } from "../text/text.ts";
import type { ValueHash } from "./context-hash.ts";
import type { StageDefinition, StageKind } from "./stage.ts";

const PIPELINE_PREFIX = "pipeline/";

/** With `host`, only that host has the targets' files, and no other claims from the queue. */
export function pipelineQueue(pipeline: string, host: string | null): string {
  return host === null ? PIPELINE_PREFIX + pipeline : `${PIPELINE_PREFIX}${pipeline}@${host}`;
}

export function isPipelineQueue(queue: string): boolean {
  return queue.startsWith(PIPELINE_PREFIX);
}

export function stageJobName(pipeline: string, stage: string): string {
  return `${PIPELINE_PREFIX}${pipeline}/${stage}`;
}

/** No stage has an empty name. */
export function listingJobName(pipeline: string): string {
  return stageJobName(pipeline, "");
}

export function refusePipelineName(name: string, what: string): string {
  if (!name.startsWith(PIPELINE_PREFIX)) return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} is "${name}", but names that begin with "${PIPELINE_PREFIX}" are reserved for pipelines.`,
    "Give another name.",
  );
}

/** Another attempt may store the artifact again. */
export function artifactMissing(hashes: readonly string[]): HoldfastError {
  const [first, ...others] = hashes;
  return new HoldfastError(
    "ARTIFACT_MISSING",
    `The artifact ${first}${others.length === 0 ? "" : ` and ${others.length} more`} is not stored, so no result can refer to it.`,
    "Store artifacts before you commit the result that names them, in the folder of this database.",
  );
}

export function missingArtifactsOutcome(hashes: readonly string[]): Outcome {
  return { kind: "error", error: toJobError(artifactMissing(hashes)) };
}

export function missingResultOutcome(): Outcome {
  const error = new HoldfastError(
    "RESULT_MISSING",
    "The job of a stage was settled as a success without the stage's result.",
    "Let only workers of the pipeline claim jobs of its queue.",
  );
  return { kind: "error", error: toJobError(error), retry: false };
}

export function cancelledItemError(): JobError {
  return { name: "CancelledError", code: "CANCELLED", message: "Its job was cancelled." };
}

/** Stages of the same targets. An expand ends its segment and makes the next one's targets; a gather begins its own. */
export interface Segment<Stage = StageDefinition> {
  index: number;
  from: "source" | "expand" | "gather";
  stages: readonly Stage[];
  ends: "expand" | "gather" | "nothing";
  gather: Stage | null;
  round: number;
}

export function segmentsOf<Stage extends { kind: StageKind }>(stages: readonly Stage[]): Segment<Stage>[] {
  const segments: { from: Segment["from"]; stages: Stage[] }[] = [{ from: "source", stages: [] }];
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
    return { index, from, stages: own, ends, gather: ends === "gather" ? (next?.stages[0] as Stage) : null, round };
  });
}

export function gatherSegment(segments: readonly Segment[], round: number): Segment | undefined {
  return segments.find((segment) => segment.from === "gather" && segment.round === round);
}

/** Mark of a target that is gone, kept until its results are removed. */
export const GONE_MARK = "gone";

/** Hash of what a segment's results depend on besides the content. Null if that needs a call of a user's function. */
export function doneMark({ stages, gather }: Segment, inherited: CompletedStages): string | null {
  const asks = stages.some(({ key, match }) => typeof key === "function" || typeof match === "function");
  if (asks || (gather !== null && gather.by !== null)) return null;
  const parts = stages.map(({ name, kind, version, key, uses, match, reuse }) => [name, kind, version, key, uses, match, reuse]);
  const before = inherited.map(({ stage, output }) => [stage, output]);
  return hash("sha256", JSON.stringify(["holdfast.done.1", parts, gather?.name ?? null, before]));
}

export interface Step {
  stage: string;
  /** Null: the result is written in the same commit. */
  result: ResultKey | null;
  /** Of an expand: `childrenOf` its context, or `none` while other children are being made. */
  output: ValueHash;
  /** The target is gone: its effects outside are removed, or being removed. */
  undone?: true;
}

export function childrenOf(context: string): ValueHash {
  return `members:${context}`;
}

/** In order; those of its parent come first. */
export type CompletedStages = readonly Step[];

export function findStep(completed: CompletedStages, stage: string): Step | undefined {
  return completed.find((step) => step.stage === stage);
}

export function completedStagesText(completed: CompletedStages): string {
  return JSON.stringify(completed.map(({ stage, result, output, undone }) => [stage, result, output, ...(undone ? [1] : [])]));
}

export function parseCompletedStages(text: string): CompletedStages {
  const steps = JSON.parse(text) as [string, ResultKey | null, ValueHash, 1?][];
  return steps.map(([stage, result, output, undone]) =>
    undone === undefined ? { stage, result, output } : { stage, result, output, undone: true },
  );
}

export function withResult(completed: CompletedStages, result: ResultKey): CompletedStages {
  return completed.map((step) => (step.result === null ? { ...step, result } : step));
}

export const MAX_ID_BYTES = 2_000;

/** Separates a target's id from those of its parents. No id contains it. */
const ID_SEPARATOR = "\u001f";

export function pathOf(parent: string | null, id: string): string {
  if (parent === null) return id;
  const path = parent + ID_SEPARATOR + id;
  if (isShortEnough(path)) return path;
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `The id ${JSON.stringify(id.slice(0, 100))} has, with those of its parents, ${Buffer.byteLength(path)} bytes.`,
    `Give shorter ids: together they may have ${MAX_ID_BYTES} bytes.`,
  );
}

export function pathText(path: string): string {
  return path.replaceAll(ID_SEPARATOR, "/");
}

export function idsOf(path: string): string[] {
  return path.split(ID_SEPARATOR);
}

export function checkTargetId(id: unknown, what: string): string {
  const wrong = whyInvalid(id);
  if (wrong === null) return checkStorable(id as string, what);
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `${what} is ${wrong}.`,
    `Give a string of 1 to ${MAX_ID_BYTES} bytes, without lone surrogates and without U+001F.`,
  );
}

/** A build stores the message of an error, not its hint, so the reason is in the message. */
function whyInvalid(id: unknown): string | null {
  if (typeof id !== "string") return `${JSON.stringify(id) ?? String(id)}, and an id is a text`;
  if (id === "") return '"", and an id has at least one character';
  if (!isShortEnough(id)) return `a text of ${Buffer.byteLength(id)} bytes, and an id may have ${MAX_ID_BYTES}`;
  const given = JSON.stringify(id.slice(0, 100));
  if (!id.isWellFormed()) return `${given}, and an id holds no half of a character (a lone surrogate)`;
  return id.includes(ID_SEPARATOR) ? `${given}, and an id does not hold U+001F` : null;
}

export function isShortEnough(id: string): boolean {
  // No UTF-16 unit has more than three bytes.
  return id.length * 3 <= MAX_ID_BYTES || Buffer.byteLength(id) <= MAX_ID_BYTES;
}
