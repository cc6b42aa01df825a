import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { job, open } from "../../src/index.ts";
import { JOBS, Place } from "./holdfast.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

const skip = process.platform === "win32" && "SIGHUP cannot be sent here";

let place: Place;
before(async () => (place = await Place.make()));
after(() => place.remove());

describe("a terminal that is closed", { skip }, () => {
  test("stops a worker in good order, however often it is signalled: no crash is charged, and there is no report", async () => {
    const worker = place.start(["work", JOBS, "--drain", "0s"]);
    await worker.said("Working on");
    await using hf = await open(place.db);
    const { id } = await hf.enqueue(job({ name: "hang", run: () => {} }), 1);
    await worker.said("hanging");
    for (let told = 0; told < 3; told++) worker.child.kill("SIGHUP");
    assert.equal((await worker.ended).code, 0);
    const left = await hf.jobs.get(id);
    assert.deepEqual([left?.state, left?.crashes], ["pending", 0]);
    await hf.jobs.cancel(id);
    assert.deepEqual([await hf.recovery.preview(), await hf.recovery.history()], [null, []]);
  });

  test("ends a command that waits, with a goodbye", async () => {
    await using hf = await open(place.db);
    const waiting = place.start(["claim", "nothing", "--worker", "me", "--wait", "10m"]);
    // It listens before it opens the database.
    while (waiting.child.exitCode === null && (await registeredProcesses(hf.engine.store.processes)).length < 2)
      await new Promise((resolve) => setImmediate(resolve));
    for (let told = 0; told < 2; told++) waiting.child.kill("SIGHUP");
    assert.notEqual((await waiting.ended).code, null);
    assert.deepEqual([await hf.recovery.preview(), (await registeredProcesses(hf.engine.store.processes)).length], [null, 1]);
  });
});

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  test(`a command that is ended by ${signal} in the middle of what it does has not crashed`, { skip }, async () => {
    await using hf = await open(place.db);
    const { store } = hf.engine;
    const waiting = place.start(["queues", "pause", "anything", "--ahead"]);
    const isOver = () => waiting.child.exitCode !== null || waiting.child.signalCode !== null;
    // As soon as it has the database open; it is done in a moment, and may be before this process sees it.
    while (!isOver() && (await registeredProcesses(store.processes)).length < 2)
      await new Promise((resolve) => setImmediate(resolve));
    waiting.child.kill(signal);
    const { code } = await waiting.ended;
    // It may have been done before it was told.
    assert.ok(code === 130 || code === 0, `it ended with ${code}`);
    assert.deepEqual([await hf.recovery.preview(), (await registeredProcesses(store.processes)).length], [null, 1]);
  });
}
