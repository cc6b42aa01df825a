import { closeSync, fsyncSync, openSync, writeSync } from "node:fs";
import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { workJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/**
 * Enqueues one or a few jobs at a time, and writes down what was acknowledged before it continues. It pauses for so many
 * milliseconds between enqueues; 0: as fast as it can.
 */
const { path, effects, acks, point, pause = 0 } = told<{ point?: string; pause?: number }>();
if (point !== undefined) crashAt(point);
const work = workJob(effects);
hear("arm", ({ point }) => crashAt(point as string));

const hf = await open(path);
await say("ready");
for (let n = 0; ; n++) {
  const answers = n % 3 === 0 ? await hf.enqueueMany(work, [{ n }, { n }, { n }]) : [await hf.enqueue(work, { n })];
  writeDown(answers.map(({ id }) => `${id}\n`).join(""));
  await say("accepted");
  if (pause > 0) await new Promise((resolve) => setTimeout(resolve, pause));
}

function writeDown(lines: string): void {
  const file = openSync(acks, "a");
  writeSync(file, lines);
  fsyncSync(file);
  closeSync(file);
}
