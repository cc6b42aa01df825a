/** Subscribes with a handler that never ends, and closes. */
import { open } from "../../../src/index.ts";

const hf = await open(":memory:");
const heard = Promise.withResolvers<void>();
hf.events.subscribe(() => {
  heard.resolve();
  return new Promise<void>(() => {});
});
await hf.queues.pause("any");
await heard.promise;
await hf.close();
console.log("closed");
