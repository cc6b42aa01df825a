export type { Enqueued, EnqueueOptions, JobContext } from "../core/context.ts";
