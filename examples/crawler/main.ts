/**
 * Crawls three sites with two worker processes, from one page on: each page enqueues those that it links to. Over all
 * processes, no site gets more than two requests at once or more than twenty a second. In the middle every worker is
 * killed with SIGKILL; new ones go on where the crawl was.
 *
 *   node examples/crawler/main.ts [folder]
 */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { open } from "../../src/index.ts";
import { exampleFolder } from "../folder.ts";
import { crawl } from "./jobs.ts";
import { Site } from "./site.ts";

/** Of each site. */
const PAGES = 60;

using folder = exampleFolder("crawler");
const path = join(folder.path, "crawl.db");
const sites = [new Site(PAGES), new Site(PAGES), new Site(PAGES)];
for (const site of sites) await site.listen();
for (const [i, site] of sites.entries()) site.neighbour = sites[i + 1] ?? null;

await using hf = await open(path);
const first = (sites[0] as Site).front;
await hf.enqueue(crawl, { url: first }, { id: first });

let workers = [start(), start()];
await until(({ succeeded, running }) => succeeded >= PAGES && running > 0);
await stop(workers, "SIGKILL");
const left = await hf.jobs.counts();
console.log(`killed with ${left.succeeded} pages done, ${left.running} under way, ${left.pending} known and not begun`);

workers = [start(), start()];
await until(({ pending, running }) => pending + running === 0);
await stop(workers, "SIGTERM");

const { succeeded } = await hf.jobs.counts();
const asked = sites.reduce((sum, site) => sum + site.asked.length, 0);
console.log(`${succeeded} of ${sites.length * PAGES} pages crawled, ${asked - succeeded} asked for twice`);
for (const { host, asked, most } of sites) {
  const seconds = ((asked.at(-1) as number) - (asked[0] as number)) / 1_000;
  console.log(`${host}: ${asked.length} requests in ${seconds.toFixed(1)} s, at most ${most} at once`);
}
for (const site of sites) site.close();

function start(): ChildProcess {
  return fork(new URL("./worker.ts", import.meta.url), [path]);
}

async function until(done: (counts: Awaited<ReturnType<typeof hf.jobs.counts>>) => boolean): Promise<void> {
  while (!done(await hf.jobs.counts())) await pause(20);
}

async function stop(workers: ChildProcess[], signal: NodeJS.Signals): Promise<void> {
  const ended = workers.map((worker) => once(worker, "exit"));
  for (const worker of workers) worker.kill(signal);
  await Promise.all(ended);
}
