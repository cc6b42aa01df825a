import { job, open } from "../../../src/index.ts";

/** Does one thing, and ends without closing what it opened. */
const [, , url, what] = process.argv as [string, string, string, string];
const hf = await open(url);
const note = job<number>({ name: "note", run: () => {} });
const { id } = await hf.enqueue(note, 1);
if (what === "claim") await (await hf.claim(note, { worker: "anna" }))?.succeed();
if (what === "work") {
  const worker = hf.work([note]);
  await hf.jobs.wait(id);
  await worker.stop();
}
console.log("done");
