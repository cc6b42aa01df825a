import { execFileSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { items, job, open, pipeline } from "../../src/index.ts";
import { PAGE } from "./place.ts";

const echo = job<{ text: string; n: number }, string>({
  name: "echo",
  queue: { name: "echo", events: true },
  run: ({ input }) => input.text.toUpperCase(),
});
const later = job<{ text: string }>({ name: "later", run: () => {} });
/** With a rate, so that jobs beyond the free slots of an idle key are parked. */
const limited = job<{ to: string }>({
  name: "limited",
  limit: { key: ({ to }) => to, concurrency: 2, rate: "100/s" },
  run: () => {},
});
const breaks = job<null>({
  name: "breaks",
  retry: { attempts: 1 },
  run: () => {
    throw new Error("it breaks each time");
  },
});

/**
 * A database with something in every table: jobs that are pending, delayed, parked, waiting, running, ended well and
 * badly, with large inputs and chosen ids, schedules, events, a build, an audit. Two states of it: as it is after a clean
 * stop, all in one file; and as a killed process leaves it, with most of it in the log.
 */
export async function specimens(folder: string): Promise<{ closed: string; killed: string }> {
  const closed = join(folder, "closed");
  const killed = join(folder, "killed");
  mkdirSync(closed);
  mkdirSync(killed);
  const path = join(closed, "work.db");
  {
    await using hf = await open(path, { log: silent });
    await fill(hf, "one");
  }
  {
    await using hf = await open(path, { log: silent });
    const reader = new DatabaseSync(path);
    // The log is kept from being copied, so that it holds more than what was written last.
    reader.exec("begin; select * from holdfast_jobs");
    await fill(hf, "two");
    await hf.claim("later", { worker: "by hand" });
    for (const end of ["", "-wal", "-witness"]) execFileSync("cp", ["-r", path + end, killed]);
    reader.close();
  }
  mkdirSync(join(killed, "work.db-alive"));
  const db = new DatabaseSync(path);
  const size = (db.prepare("pragma page_size").get() as { page_size: number }).page_size;
  db.close();
  if (size !== PAGE) throw new Error(`pages of ${size} bytes`);
  return { closed, killed };
}

async function fill(hf: Awaited<ReturnType<typeof open>>, round: string): Promise<void> {
  const texts = Array.from({ length: 30 }, (_, n) => ({ text: `${round} ${n} ${"etwas Text ".repeat(n % 12)}`, n }));
  const worker = hf.work([echo, breaks]);
  const made = await hf.enqueueMany(echo, texts);
  const broken = await hf.enqueue(breaks, null);
  for (const one of [...made, broken]) await hf.jobs.wait(one);
  await worker.stop();
  await hf.enqueueMany(echo, texts.slice(0, 10), (_, i) => ({ id: `${round}-${i}`, priority: i % 3 }));
  await hf.enqueue(later, { text: "x".repeat(3_000) });
  await hf.enqueue(later, { text: "soon" }, { delay: "1h", key: `${round} key` });
  await hf.enqueueMany(later, texts.slice(0, 3), { delay: "2h" });
  await hf.enqueue(later, { text: "after" }, { after: [`${round}-0`] });
  await hf.enqueueMany(
    limited,
    ["a", "a", "a", "b"].map((to) => ({ to })),
  );
  await hf.jobs.cancel(`${round}-9`);
  await hf.schedule(later, { key: `${round} nightly`, cron: "0 3 * * *", input: { text: "night" } });
  await hf.queues.pause(`${round} paused`);
  await hf.lock(`${round} lock`).acquire("me", "1h");
  const built = pipeline(`${round} pipeline`)
    .source(items(() => ["a", "b", "c"], { id: (value) => value }))
    .stage("shout", {}, ({ input }) => ({ shouted: input.toUpperCase() }))
    .stage("count", {}, ({ input }) => ({ length: input.shouted.length }));
  await (await hf.builds.start(built)).done();
}

const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
