/**
 * Prints, as JSON, the files of `src/` that one job and one build of two files pass through on the main thread, by V8's counts:
 * those that run every time, and those that ran at least once. Timers (the janitor, schedules) make the difference.
 */
import { Session } from "node:inspector/promises";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { files, job, open, pipeline } from "../../src/index.ts";

/** Enough that a timer does not run during each of them, also on a busy machine. */
const TIMES = 20;

const [folder = ""] = process.argv.slice(2);
mkdirSync(join(folder, "docs"));
for (const name of ["a.md", "b.md"]) writeFileSync(join(folder, "docs", name), name);

const session = new Session();
session.connect();
await session.post("Profiler.enable");
await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });

const hf = await open(join(folder, "work.db"));
const hello = job<{ who: string }>({ name: "hello", run: ({ input }) => ({ hello: input.who }) });
const worker = hf.work([hello]);
const runJob = async () => void (await hf.jobs.wait(await hf.enqueue(hello, { who: "you" })));
await runJob();
const jobFiles = await walk(runJob);
await worker.stop();

let builds = 0;
const buildFiles = await walk(async () => {
  const docs = pipeline(`docs-${++builds}`)
    .source(files("**/*.md", { root: join(folder, "docs") }))
    .stage("parse", {}, async ({ target }) => new TextDecoder().decode(await target.bytes()))
    .gather("index", {}, async ({ inputs }) => {
      let members = 0;
      for await (const _ of inputs) members++;
      return members;
    });
  const { state } = await (await hf.builds.start(docs)).done();
  if (state !== "SUCCESS") throw new Error(`the build is ${state}`);
});
await hf.close();
console.log(JSON.stringify({ job: jobFiles, build: buildFiles }));

async function walk(act: () => Promise<void>): Promise<{ always: string[]; ever: string[] }> {
  const times: Set<string>[] = [];
  for (let time = 0; time < TIMES; time++) {
    await called();
    await act();
    times.push(await called());
  }
  const ever = [...new Set(times.flatMap((seen) => [...seen]))];
  return { always: ever.filter((file) => times.every((seen) => seen.has(file))), ever };
}

/** The files of which a function was called since the last look. */
async function called(): Promise<Set<string>> {
  const src = new URL("../../src/", import.meta.url).href;
  const { result } = await session.post("Profiler.takePreciseCoverage");
  return new Set(
    result
      .filter(
        ({ url, functions }) => url.startsWith(src) && functions.some((one) => one.functionName !== "" && one.ranges[0]?.count),
      )
      .map(({ url }) => url.slice(src.length)),
  );
}
