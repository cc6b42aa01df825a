import type { FinishedState } from "./job.ts";

/** Jobs of a queue, name and version. Job rows hold its number. */
export interface Lane {
  id: number;
  queue: string;
  name: string;
  version: number;
}

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
