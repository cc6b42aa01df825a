import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Holdfast, type Job, job, open } from "../../src/index.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { Random } from "../simulation/random.ts";

const PROGRAM = fileURLToPath(new URL("children/replace.ts", import.meta.url));
const ROUNDS = 4;

let server: PostgresServer | undefined;
after(() => server?.close());

async function file(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-replace-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return join(folder, "work.db");
}

async function onServer(): Promise<string> {
  server ??= await startServer();
  return server.createDatabase();
}

/** Runs the program until it has printed so many numbers, and kills it; the last number that it printed. */
async function killed(where: string, first: number, numbers: number): Promise<number> {
  const child = spawn(process.execPath, [PROGRAM, where, String(first)], { stdio: ["ignore", "pipe", "inherit"] });
  let last = first - 1;
  for await (const line of createInterface({ input: child.stdout })) {
    last = Number(line);
    if (last >= first + numbers) child.kill("SIGKILL");
  }
  if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  assert.equal(child.signalCode, "SIGKILL");
  return last;
}

async function everyJob(hf: Holdfast): Promise<Job[]> {
  const jobs: Job[] = [];
  for (let next: string | undefined; ;) {
    const page = await hf.jobs.list({ limit: 1_000, after: next });
    jobs.push(...page.items);
    next = page.next;
    if (next === undefined) return jobs;
  }
}

const isOpen = ({ state }: Job) => state === "pending" || state === "running" || state === "waiting";

for (const [place, where, skip] of [
  ["in a file", file, false],
  ["on PostgreSQL", onServer, noServer],
] as const) {
  test(`the newest acknowledged input runs after kills of its process, ${place}`, { skip }, async (t) => {
    const random = new Random(Number(process.env["HOLDFAST_SEED"] ?? 1));
    const path = await where(t);
    let last = 0;
    for (let round = 0; round < ROUNDS; round++) last = await killed(path, last + 1, random.int(1, 40));
    await using hf = await open(path, { log: false });
    await hf.recovery.recoverStale();
    const unfinished = (await everyJob(hf)).filter(isOpen);
    assert.ok(unfinished.length <= 2, "one that has the key, and one behind it");
    const ran: number[] = [];
    const latest = job<{ n: number }>({ name: "latest", run: ({ input }) => void ran.push(input.n) });
    hf.work([latest]);
    for (const { id } of unfinished) await hf.jobs.wait(id);
    const jobs = await everyJob(hf);
    assert.deepEqual(jobs.filter(isOpen), []);
    const newest = Math.max(...jobs.filter(({ state }) => state === "succeeded").map(({ input }) => (input as { n: number }).n));
    // The last call may have committed before the kill, without an answer.
    assert.ok(newest >= last, `${last} was acknowledged, and ${newest} is the newest that ran`);
    assert.ok(
      jobs.every(({ state }) => state === "succeeded" || state === "cancelled"),
      "nothing else becomes of a job",
    );
  });
}
