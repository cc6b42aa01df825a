import type { Event } from "../../core/event.ts";

/** Where events go. */
export interface Sink {
  readonly kind: string;
  /** How many it takes at once, at most. */
  readonly atOnce: number;
  /** In their order. Resolves when all of them have arrived, and will not get lost there; rejects otherwise, and gets them again. */
  deliver(events: readonly Event[], signal: AbortSignal): Promise<void>;
}

/** The other side is not there, or says no; `after` is how long it wants to be left alone. */
export class SinkDown extends Error {
  readonly after: number;

  constructor(message: string, after = 0) {
    super(message);
    this.name = "SinkDown";
    this.after = after;
  }
}
