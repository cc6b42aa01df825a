import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openReadOnly } from "../../src/open-handle.ts";
import { DOCS, linesOf, newest, openGate, placeWith, shutGate, writeDoc } from "./build-place.ts";
import type { Place, Running } from "./holdfast.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

let place: Place;
before(async () => (place = await placeWith({ a: "slow anna", b: "slow bert", c: "slow carl" })));
after(() => place.remove());

interface Status {
  processes: { pid: number; program: string; works: { name: string }[] }[];
  builds: { state: string }[];
}

/** The workers of a run, once they are at work. */
async function workersOf(count: number): Promise<number[]> {
  for (;;) {
    await using hf = await openReadOnly(place.db, {});
    const processes = await registeredProcesses(hf.engine.store.processes);
    const pids = processes.filter(({ program, works }) => program.startsWith("holdfast work") && works.length > 0);
    if (pids.length === count) return pids.map(({ pid }) => pid);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Resolves when there is no such process any more; it is not a child of this process. */
async function gone(pid: number): Promise<void> {
  for (;;) {
    try {
      process.kill(pid, 0);
    } catch {
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test("--workers brings further processes; one that is killed is noticed, and they end with the run", async () => {
  const run = place.start(["run", DOCS, "--workers", "2", "--concurrency", "1"]);
  await run.said("holding");
  const [killed, other] = (await workersOf(2)) as [number, number];
  process.kill(killed, "SIGKILL");
  await run.said(`Worker ${killed} was killed by SIGKILL; what it had is done by the others (2 left).`);
  await openGate(place);
  const { code, stdout, stderr } = await run.ended;
  assert.equal(code, 0, stderr);
  assert.match(stdout, /\nSUCCESS docs build/);
  await gone(other);
  await shutGate(place);
});

test("workers end with a run that is killed, too, and what they did counts", async () => {
  for (const name of ["a", "b", "c"]) await writeDoc(place, name, `slow ${name}`);
  const run = place.start(["run", DOCS, "--workers", "1", "--concurrency", "1"]);
  await run.said("holding");
  const [worker] = (await workersOf(1)) as [number];
  run.child.kill("SIGKILL");
  await run.ended;
  await openGate(place);
  await gone(worker);
  const { code, stdout } = await place.run(["run", DOCS]);
  assert.equal(code, 0);
  assert.match(stdout, /^Resuming build/);
});

test("work runs a pipeline's stages from elsewhere, and builds nothing by itself", async () => {
  await shutGate(place);
  const before = (await newest(place)).id;
  const worker = place.start(["work", DOCS]);
  await worker.said(/Working on .*: docs \(pid/);
  assert.equal((await newest(place)).id, before);
  worker.child.kill("SIGTERM");
  assert.equal((await worker.ended).code, 0);
});

async function builds(run: Running, count: number): Promise<void> {
  await run.said(new RegExp(`("type":"build"[^]*){${count}}`));
}

test("--watch builds again what changes, and Ctrl-C ends it with 0", async () => {
  await openGate(place);
  const run = place.start(["run", DOCS, "--watch", "--json"]);
  await builds(run, 1);
  await run.said("Waiting for changes");
  const { processes } = await place.json<Status>(["status"]);
  assert.deepEqual(
    processes.map(({ pid, program }) => [pid, program]),
    [[run.child.pid, `holdfast run ${DOCS}`]],
  );
  const { stdout: page } = await place.run(["status"]);
  assert.match(page, /pipeline\/docs/);
  assert.doesNotMatch(page, /paused|No process has this database open/, "it waits, and so does its queue");
  await writeDoc(place, "b", "berta");
  await builds(run, 2);
  await writeDoc(place, "d", "dora");
  await builds(run, 3);
  run.child.kill("SIGINT");
  const { code, stdout } = await run.ended;
  const ended = linesOf(stdout).filter(({ type }) => type === "build");
  assert.deepEqual(
    ended.slice(1).map(({ state, stages }) => [state, stages["parse"]?.ran]),
    [
      ["SUCCESS", 1],
      ["SUCCESS", 1],
    ],
  );
  assert.equal(code, 0);
});

test("`holdfast stop` stops a run as Ctrl-C does", async () => {
  await shutGate(place);
  await writeDoc(place, "a", "slow again");
  const run = place.start(["run", DOCS]);
  await run.said("holding");
  const stop = place.start(["stop"]);
  await run.said("Stopping");
  await openGate(place);
  assert.equal((await stop.ended).code, 0);
  const { code } = await run.ended;
  // What ran was not the last: the index is to come.
  assert.equal(code, 130);
  assert.equal((await newest(place)).state, "CRASHED");
});
