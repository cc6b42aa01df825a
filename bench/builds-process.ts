/** One database and so many small files: the first build, one without a change, and a plan. Says what they took, as JSON. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { files, open, pipeline } from "../src/index.ts";
import type { FilesSource } from "../src/core/pipelines/source.ts";
import { listFiles } from "../src/pipelines/sources/files.ts";

const [folder = "", many = "1000"] = process.argv.slice(2);
const targets = Number(many);
const root = join(folder, "files");
const SHELF = 1_000;

for (let shelf = 0; shelf * SHELF < targets; shelf++) {
  mkdirSync(join(root, String(shelf)), { recursive: true });
  for (let i = shelf * SHELF; i < Math.min(targets, (shelf + 1) * SHELF); i++) {
    // Older than the clock of any file system is coarse: else each file is hashed again, to be sure.
    writeFileSync(join(root, String(shelf), `${i}.txt`), `document ${i}\n${"x".repeat(200)}`);
  }
}
await new Promise((resolve) => setTimeout(resolve, 2_100));

const source = files("**/*.txt", { root });
const docs = pipeline("docs")
  .source(source)
  .stage("parse", {}, async ({ target }) => ({ size: (await target.bytes()).length }))
  .stage("count", {}, async ({ input }) => ({ count: input.size }))
  .stage("index", {}, async ({ input }) => ({ indexed: input.count }));

const hf = await open(join(folder, "work.db"), { durability: "process" });
let peak = 0;
const watch = setInterval(() => (peak = Math.max(peak, process.memoryUsage.rss())), 20);

const first = await timed(build);
const rss = peak;
const listing = await timed(async () => {
  for await (const _ of listFiles(source as unknown as FilesSource, { cwd: folder, skip: [] }));
});
const again = await timed(build);
const plan = await timed(() => hf.builds.plan(docs));
clearInterval(watch);
await hf.close();
console.log(JSON.stringify({ first, listing, again, plan, rss }));

async function build(): Promise<void> {
  const handle = await hf.builds.start(docs);
  const { state, reason } = await handle.done();
  if (state !== "SUCCESS") throw new Error(`the build is ${state}: ${reason}`);
}

/** In milliseconds. */
async function timed(act: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await act();
  return performance.now() - start;
}
