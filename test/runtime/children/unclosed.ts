import { job, open } from "../../../src/index.ts";

/** Does one thing, and ends without closing what it opened; or closes it while everything is still starting. */
const [, , url, what] = process.argv as [string, string, string, string];
const hf = await open(url);
const note = job<number>({ name: "note", run: () => {} });
const { id } = await hf.enqueue(note, 1);
if (what === "hurry") {
  await (await hf.claim(note, { worker: "anna" }))?.succeed();
  await hf.close();
}
if (what === "claim") await (await hf.claim(note, { worker: "anna" }))?.succeed();
if (what === "work") {
  const worker = hf.work([note]);
  await hf.jobs.wait(id);
  await worker.stop();
}
console.log("done");
