import { HoldfastError } from "./errors.ts";
import { type JobError, toJobError } from "./job.ts";
import type { Outcome } from "./retry.ts";

/** What begins so is a pipeline's: queues, and names of jobs. */
const PREFIX = "pipeline/";

/**
 * The queue of a pipeline's work items. Where targets are files that only one host has, it is a queue of that host: nobody
 * else claims from it.
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
    `${what} is "${name}", and what begins with "${PREFIX}" is a pipeline's.`,
    "Give another name.",
  );
}

/** A success and what it names are one. An artifact that is not there may be made anew, by another attempt. */
export function artifactMissing(hashes: readonly string[]): HoldfastError {
  const [first, ...others] = hashes;
  return new HoldfastError(
    "ARTIFACT_MISSING",
    `The artifact ${first}${others.length === 0 ? "" : ` and ${others.length} more`} is not in the store, so nothing can refer to it.`,
    "Write artifacts before what names them is committed, into the store that this database has.",
  );
}

export function withoutArtifacts(hashes: readonly string[]): Outcome {
  return { kind: "error", error: toJobError(artifactMissing(hashes)) };
}

/** The success of a stage that does not say what it made: whoever settled it is not a worker of its pipeline. */
export function withoutResult(): Outcome {
  const error = new HoldfastError(
    "RESULT_MISSING",
    "It was settled as a success of a stage, and without what the stage made.",
    "Leave the jobs of a pipeline's queue to the workers of that pipeline.",
  );
  return { kind: "error", error: toJobError(error), retry: false };
}

/** What stands in the record of a work item that somebody has cancelled. */
export function cancelledItem(): JobError {
  return { name: "CancelledError", code: "CANCELLED", message: "Its job was cancelled." };
}
