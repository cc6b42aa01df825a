import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { open as openFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import type { OldestJob } from "../../src/operator/operator.ts";
import type { Overview } from "../../src/operator/overview.ts";
import { items, job, open, pipeline } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import { JOBS, Place } from "./holdfast.ts";

let place: Place;
before(async () => (place = await Place.make()));
after(() => place.remove());

type Status = Overview & { oldest: OldestJob[] } & { alarms: { code: string; grave: boolean; message: string; hint: string }[] };
interface Health {
  ok: boolean;
  reasons: { code: string; message: string; hint: string }[];
}

/** ESC, as it starts every colour. */
const ESCAPE = "\u001b";

test("status shows queues, workers, locks, recoveries and alarms; health says whether all is well", async () => {
  const worker = place.start(["work", JOBS]);
  {
    await using hf = await open(place.db);
    const broken = job({
      name: "broken",
      queue: "trouble",
      run: () => Promise.reject(new Error("no luck")),
      retry: { attempts: 1 },
    });
    const own = hf.work([broken]);
    await hf.jobs.wait(await hf.enqueue(broken, 1));
    await own.stop();
    await hf.enqueue(job({ name: "hang", run: () => {} }), 1);
    await hf.enqueue(job({ name: "orphan", run: () => {} }), 1);
    assert.ok(await hf.lock("nightly").acquire("anna", "10m"));
    await worker.said("hanging");
  }

  const status = await place.json<Status>(["status"]);
  assert.deepEqual(
    status.queues.map(({ name }) => name),
    ["hang", "orphan", "trouble"],
  );
  assert.deepEqual([status.counts.running, status.counts.pending, status.counts.failed], [1, 1, 1]);
  const [process] = status.processes;
  assert.equal(status.processes.length, 1);
  assert.deepEqual(
    [process?.pid, process?.program, process?.life, process?.running],
    [worker.child.pid, `holdfast work ${JOBS}`, "alive", 1],
  );
  assert.deepEqual(
    status.locks.map(({ name, holder, stale }) => ({ name, holder, stale })),
    [{ name: "nightly", holder: "anna", stale: false }],
  );
  assert.equal(status.recovery.entriesReclaimed, 0);
  assert.deepEqual(
    status.alarms.map(({ code, message }) => [code, message]),
    [
      ["NAME_NOT_WORKED", "no worker runs orphan (1 pending)"],
      ["FAILED", "1 job failed"],
    ],
  );

  assert.deepEqual(
    status.oldest.map(({ queue, explanation }) => [queue, explanation.reason]),
    [["orphan", "no-worker"]],
  );

  const page = await place.run(["status"]);
  assert.match(page.stdout, /\norphan +1 +0 +0 +0 +0 +\d+s {2}No live process runs version 1 of job "orphan"\.\n/);
  assert.match(page.stdout, /work\.db {2}1 pending · 1 running · 1 done\/min · 1 worker\n/);
  assert.match(page.stdout, /\n! 1 job failed +→ holdfast jobs list --state failed\n/);
  assert.match(page.stdout, /\nQUEUE +PENDING +RUNNING +DONE\/MIN +SUCCEEDED +FAILED +OLDEST +WHY\nhang +0 +1 +0 +0 +0 +–\n/);
  assert.match(page.stdout, /\nLOCK +HOLDER +SINCE +EXPIRES\nnightly +anna +\d+s +in \d+m\n/);
  assert.ok(!page.stdout.includes(ESCAPE), "a pipe gets no colours");

  const well = await place.run(["health"]);
  assert.deepEqual([well.code, well.stdout], [0, "ok: 1 pending, 1 running, 1 worker\n"]);
  const late = await place.json<Health>(["health", "--oldest", "1ms"], 1);
  assert.deepEqual([late.ok, late.reasons.map(({ code }) => code)], [false, ["WAITING_LONG"]]);

  worker.child.kill("SIGKILL");
  await worker.ended;
});

test("without a worker alive, waiting and left-behind jobs are alarms, and health exits 1", async () => {
  const coloured = await place.run(["health"], { env: { FORCE_COLOR: "1" } });
  assert.equal(coloured.code, 1);
  assert.equal(
    coloured.stdout,
    `${ESCAPE}[31mnot ok${ESCAPE}[39m: 1 job is pending and no worker runs; 1 job was left running by a process that died\n`,
  );
  const plain = await place.run(["status"], { env: { NO_COLOR: "1" } });
  assert.ok(!plain.stdout.includes(ESCAPE));
  assert.match(plain.stdout, /\n! 1 job was left running by a process that died {2}→ holdfast recover\n/);
  assert.match(plain.stdout, / dead +\d+s +1\n/);
});

test("a damaged database exits 5", async () => {
  // Keeps the file's first page, so that it still looks like a database.
  const file = await openFile(place.db, "r+");
  const { size } = await file.stat();
  await file.write(Buffer.alloc(size - 4096, 0xff), 0, size - 4096, 4096);
  await file.close();
  const health = await place.json<Health>(["health"], 5);
  assert.deepEqual([health.ok, health.reasons.map(({ code }) => code)], [false, ["DAMAGED"]]);
  const { code, stderr } = await place.run(["jobs", "list"]);
  assert.equal(code, 5);
  assert.match(stderr, /error: .*work\.db is damaged/);
});

test("the advice of status can be pasted: it names the database that was named, and works", async () => {
  const elsewhere = await Place.make();
  try {
    const db = join(elsewhere.folder, "it's other.db");
    const hf = await open(db, { log: false });
    const bad = job({ name: "bad", retry: { attempts: 1 }, run: () => Promise.reject(new Error("no")) });
    await hf.enqueue(bad, 1);
    await drain(hf, [bad]);
    await hf.close();
    const { stdout } = await place.run(["status", "--db", db]);
    const advice = /^! 1 job failed +→ (holdfast .*)$/m.exec(stdout)?.[1] ?? "";
    assert.match(advice, /--db '/);
    const bin = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
    const pasted = advice.replace(/^holdfast/, `'${process.execPath}' '${bin}'`);
    const { status, stdout: list } = spawnSync("sh", ["-c", pasted], { encoding: "utf8" });
    assert.equal(status, 0);
    assert.match(list, / bad /);
  } finally {
    await elsewhere.remove();
  }
});

test("a database whose jobs have all ended is healthy without a worker, also after a limit by rate", async (t) => {
  const limited = await Place.make();
  t.after(() => limited.remove());
  {
    await using hf = await open(limited.db);
    const mail = job({ name: "mail", limit: { rate: "20/s" }, run: () => {} });
    hf.work([mail]);
    await hf.jobs.wait(await hf.enqueue(mail, 1));
  }
  const health = await limited.run(["health"]);
  assert.deepEqual([health.code, health.stdout.split(":")[0]], [0, "ok"]);
});

test("status shows how long jobs have waited at a limit, and a pipeline's stages as one name", async (t) => {
  const limited = await Place.make();
  t.after(() => limited.remove());
  await using hf = await open(limited.db);
  const mail = job<null>({ name: "mail", limit: { rate: "1/d" }, run: () => {} });
  await hf.enqueueMany(mail, [null, null]);
  await drain(hf, [mail]);
  const pages = pipeline("pages")
    .source(items(() => ["a"], { id: (name) => name }))
    .stage("parse", {}, ({ input }) => input);
  hf.work([mail, pages]);
  await hf.jobs.counts();
  const { stdout } = await limited.run(["status"]);
  assert.match(stdout, /\nmail +1 +0 +1 +1 +0 +\d+s +Waits for the limit of job "mail" \(1\/d\); the next slot/);
  assert.match(stdout, / mail, pipeline\/pages +alive /);
});
