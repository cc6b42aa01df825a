export type { Enqueued, EnqueueOptions, JobContext } from "../core/pipelines/stage.ts";
