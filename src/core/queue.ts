import type { FinishedState } from "./job.ts";

/** How many finished jobs of a state are kept, and how long; what neither names is kept for ever. */
export interface Keep {
  age?: number;
  count?: number;
}

/** What a definition says about its queue. */
export interface QueueSettings {
  events: boolean;
  keep: Partial<Record<FinishedState, Keep>>;
}
