import type { Writable } from "node:stream";
import type { Event } from "../../core/jobs/event.ts";

/** Where events go. */
export interface Sink {
  readonly kind: string;
  /** How many it takes at once, at most. */
  readonly atOnce: number;
  /** Whether an event that it refuses holds back only later events of the same job or build. It then takes one at a time. */
  readonly refusesOne?: boolean;
  /** In their order. Resolves when all of them have arrived, and will not get lost there; rejects otherwise, and gets them again. */
  deliver(events: readonly Event[], signal: AbortSignal): Promise<void>;
}

/** A delivery that failed. `isDown`: it says nothing about the one event, so the sink is left alone, for `after` at least. */
export class SinkDown extends Error {
  readonly after: number;
  readonly isDown: boolean;

  constructor(message: string, { after = 0, isDown = after > 0 }: { after?: number; isDown?: boolean } = {}) {
    super(message);
    this.name = "SinkDown";
    this.after = after;
    this.isDown = isDown;
  }
}

/** One JSON line an event, on standard output. */
export function consoleSink(output: Writable = process.stdout): Sink {
  return {
    kind: "console",
    atOnce: 100,
    deliver: (events) =>
      new Promise((resolve, reject) => {
        // A pipe whose reader is gone tells so by an "error" event, too: unheard, it would end the process.
        output.on("error", heard);
        output.write(events.map((event) => `${JSON.stringify(event)}\n`).join(""), (error) => {
          setImmediate(() => output.off("error", heard));
          if (error) reject(new SinkDown(`Standard output cannot be written: ${error.message}.`));
          else resolve();
        });
      }),
  };
}

function heard(): void {}
