import { HoldfastError } from "./errors.ts";

/** Queues with this prefix are those of pipelines, and of nobody else. */
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

/** The name of the jobs of a stage. Neither part holds a slash of its own that could be taken for this one: a stage's name has none. */
export function stageJobName(pipeline: string, stage: string): string {
  return `${pipeline}/${stage}`;
}

/** The name of the job that lists the targets of a round; no stage has an empty name. */
export function listingJobName(pipeline: string): string {
  return `${pipeline}/`;
}

export function refusePipelineQueue(queue: string): void {
  if (!isPipelineQueue(queue)) return;
  throw new HoldfastError(
    "NAME_INVALID",
    `The queue "${queue}" is one of a pipeline's.`,
    `Give the job a queue whose name does not begin with "${PREFIX}".`,
  );
}
