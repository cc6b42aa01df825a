import { closeSync, fsyncSync, openSync, writeSync } from "node:fs";
import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { workJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** Enqueues as fast as it can, one or a few at a time, and writes down what was acknowledged before it continues. */
const { path, effects, acks, point } = told<{ point?: string }>();
if (point !== undefined) crashAt(point);
const work = workJob(effects);
hear("arm", ({ point }) => crashAt(point as string));

const hf = await open(path);
await say("ready");
for (let n = 0; ; n++) {
  const answers = n % 3 === 0 ? await hf.enqueueMany(work, [{ n }, { n }, { n }]) : [await hf.enqueue(work, { n })];
  writeDown(answers.map(({ id }) => `${id}\n`).join(""));
  await say("accepted");
}

function writeDown(lines: string): void {
  const file = openSync(acks, "a");
  writeSync(file, lines);
  fsyncSync(file);
  closeSync(file);
}
