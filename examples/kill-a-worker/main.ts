/**
 * Starts several processes, fills a queue for them, kills one of them in the middle with SIGKILL, and then asks the
 * database what happened.
 *
 *   node examples/kill-a-worker/main.ts [jobs]
 */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { styleText } from "node:util";
import { type Holdfast, type Job, open } from "../../src/index.ts";
import { Bar } from "../bar.ts";
import { index, receipt } from "./jobs.ts";

const JOBS = Number(process.argv[2] ?? 4_000);
const WORKERS = 4;

const folder = mkdtempSync(join(tmpdir(), "holdfast-demo-"));
const path = join(folder, "work.db");
const hf = await open(path);
const workers: ChildProcess[] = [];

try {
  // Before there is work: on a busy machine the first would be done with it when the last has started.
  for (let i = 0; i < WORKERS; i++) workers.push(await startWorker());
  const pages = Array.from({ length: JOBS }, (_, page) => ({ page }));
  const accepted = await hf.enqueueMany(index, pages);
  console.log(`${WORKERS} worker processes are there; ${JOBS} jobs are on the disk.`);
  const killed = await watch(workers[0] as ChildProcess);
  await report(
    accepted.map(({ id }) => id),
    killed,
  );
} finally {
  await stopWorkers();
  await hf.close();
  rmSync(folder, { recursive: true, force: true });
}

async function startWorker(): Promise<ChildProcess> {
  const worker = fork(new URL("./worker.ts", import.meta.url), [path], { stdio: ["ignore", "inherit", "inherit", "ipc"] });
  await once(worker, "message");
  return worker;
}

/** Shows the work going on, and kills `victim` when a third of it is done. */
async function watch(victim: ChildProcess): Promise<{ at: number; pid: number }> {
  const bar = new Bar(JOBS);
  let killed: { at: number; pid: number } | null = null;
  for (;;) {
    const counts = await hf.jobs.counts({ name: index.name });
    if (killed === null && counts.succeeded > JOBS / 3) {
      victim.kill("SIGKILL");
      killed = { at: Date.now(), pid: victim.pid as number };
    }
    const note =
      killed === null ? `${counts.running} running` : `${counts.running} running, worker ${killed.pid} killed with SIGKILL`;
    bar.show(counts.succeeded, note);
    if (killed !== null && counts.pending + counts.running === 0) {
      bar.end();
      return killed;
    }
    await pause(50);
  }
}

/** Everything here is read back from the database. */
async function report(accepted: string[], killed: { at: number; pid: number }): Promise<void> {
  const jobs = new Map<string, Job>();
  for await (const job of every(hf, index.name)) jobs.set(job.id, job);
  const receipts = new Map<unknown, number>();
  for await (const { input } of every(hf, receipt.name)) {
    const { page } = input as { page: string };
    receipts.set(page, (receipts.get(page) ?? 0) + 1);
  }
  const all = [...jobs.values()];
  const again = all.filter(({ crashes }) => crashes > 0).map(({ startedAt }) => (startedAt as number) - killed.at);
  const lost = accepted.filter((id) => jobs.get(id)?.state !== "succeeded").length;
  const twice = [...receipts.values()].filter((n) => n > 1).length;

  console.log();
  line("enqueued", accepted.length);
  line("succeeded", all.filter(({ state }) => state === "succeeded").length);
  line("run twice", all.filter(({ attempt }) => attempt > 1).length, "its worker was killed in the middle of them");
  line("committed twice", twice, "", 0);
  line("lost", lost, "", 0);
  line(
    "ran again",
    `${Math.min(...again)}–${Math.max(...again)} ms`,
    `after the kill, the ${again.length} jobs that worker ${killed.pid} had`,
  );
  process.exitCode = lost + twice === 0 ? 0 : 1;
}

function line(what: string, value: number | string, note = "", must?: number): void {
  const text = String(value).padStart(14);
  const coloured = must === undefined ? text : styleText(value === must ? "green" : "red", text);
  console.log(`  ${what.padEnd(16)}${coloured}  ${styleText("gray", note)}`.trimEnd());
}

async function* every(from: Holdfast, name: string): AsyncIterable<Job> {
  let after: string | undefined;
  do {
    const page = await from.jobs.list({ name, limit: 1_000, after });
    yield* page.items;
    after = page.next;
  } while (after !== undefined);
}

async function stopWorkers(): Promise<void> {
  for (const worker of workers) {
    if (worker.exitCode !== null || worker.signalCode !== null) continue;
    worker.kill("SIGTERM");
    await once(worker, "exit");
  }
}
