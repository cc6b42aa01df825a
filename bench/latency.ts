import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { job, open } from "../src/index.ts";
import { Cadence } from "./cadence.ts";
import { type Figure, kernelTime, median, quantile } from "./measure.ts";
import { inScratch } from "./scratch.ts";

/** Pings before the first one that counts: until then the code is not compiled. */
const WARM = 50;
const PINGS = 400;

/**
 * From the enqueue's acknowledgement to the handler's start. A claim is a durable commit of its own, which no queue can
 * save; the median commit of raw SQLite, one after each ping, is subtracted.
 */
export async function latency(): Promise<Figure[]> {
  const same = await inScratch(here);
  const { times: other, commit } = await inScratch(elsewhere);
  return [
    figure("pick-up in the same process, p50", quantile(same, 0.5), 0.5),
    figure("pick-up in another process beyond a commit, p50", quantile(other, 0.5) - commit, 0.6),
    figure("pick-up in another process, p99", quantile(other, 0.99), 5),
  ];
}

function figure(what: string, ours: number, limit: number): Figure {
  return { what, ours, limit, unit: "ms", target: { atMost: 1 } };
}

async function here(folder: string): Promise<number[]> {
  let started: ((at: number) => void) | undefined;
  const ping = job<null>({ name: "ping", run: () => started?.(kernelTime()) });
  await using hf = await open(join(folder, "work.db"));
  hf.work([ping]);
  return await pings(async () => {
    const start = new Promise<number>((resolve) => (started = resolve));
    await hf.enqueue(ping, null);
    const acknowledged = kernelTime();
    return (await start) - acknowledged;
  });
}

async function elsewhere(folder: string): Promise<{ times: number[]; commit: number }> {
  const path = join(folder, "work.db");
  const ping = job<null>({ name: "ping", run: () => {} });
  await using hf = await open(path);
  const child = fork(new URL("./latency-worker.ts", import.meta.url), [path]);
  await once(child, "message");
  using raw = new RawCommits(folder);
  // The handler answers through the pipe: waiting for the job would keep this process, and a processor, busy.
  const times = await pings(async () => {
    const start = nextMessage(child);
    await hf.enqueue(ping, null);
    const acknowledged = kernelTime();
    const started = await start;
    raw.commit();
    return started - acknowledged;
  });
  child.kill("SIGTERM");
  await once(child, "exit");
  return { times, commit: median(raw.times) };
}

async function nextMessage(child: ChildProcess): Promise<number> {
  const [at] = (await once(child, "message")) as [number];
  return at;
}

/** Small durable commits of raw SQLite, and how long each took. */
class RawCommits implements Disposable {
  readonly times: number[] = [];
  readonly #db: DatabaseSync;
  readonly #insert: StatementSync;

  constructor(folder: string) {
    this.#db = new DatabaseSync(join(folder, "raw.db"));
    this.#db.exec("pragma journal_mode = wal; pragma synchronous = full; create table t (i integer)");
    this.#insert = this.#db.prepare("insert into t values (1)");
  }

  commit(): void {
    const start = kernelTime();
    this.#insert.run();
    this.times.push(kernelTime() - start);
  }

  [Symbol.dispose](): void {
    this.#db.close();
  }
}

async function pings(ping: () => Promise<number>): Promise<number[]> {
  const times: number[] = [];
  const cadence = new Cadence();
  for (let i = -WARM; i < PINGS; i++) {
    await cadence.next();
    const took = await ping();
    if (i >= 0) times.push(Math.max(0, took));
  }
  return times;
}
