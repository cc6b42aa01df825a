import { closeSync, fsyncSync, openSync, writeSync } from "node:fs";
import { open, type OpenOptions } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { telling } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** Delivers events to its sinks, or to a subscriber that writes them down, or works on jobs that tell, until it is killed. */
const { path, effects, sinks, subscribes, works, point } = told<{
  sinks?: NonNullable<OpenOptions["sinks"]>;
  subscribes?: string;
  works?: boolean;
  point?: string;
}>();
hear("arm", (message) => crashAt(message["point"] as string));
if (point !== undefined) crashAt(point);

const hf = await open(path, sinks === undefined ? {} : { sinks });
if (subscribes !== undefined) {
  hf.events.subscribe(
    async (event) => {
      const file = openSync(effects, "a");
      writeSync(file, `${JSON.stringify(event)}\n`);
      fsyncSync(file);
      closeSync(file);
    },
    { name: subscribes },
  );
  // After it in the same commit: from here on it is known.
  await hf.engine.store.events.position({ name: subscribes, kind: "subscriber" });
}
if (works) hf.work([telling]);
await say("ready");
// Sinks alone keep no process alive.
setInterval(() => {}, 2 ** 30);
