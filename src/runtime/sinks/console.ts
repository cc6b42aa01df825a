import type { Writable } from "node:stream";
import { type Sink, SinkDown } from "./sink.ts";

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
