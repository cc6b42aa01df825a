import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { noRestart, type PostgresServer, startServer } from "../postgres/server.ts";
import { checkInvariants, untilDone } from "./invariants.ts";
import type { WorkInput } from "./jobs.ts";
import { passes, Scene } from "./scene.ts";
import { LONG } from "../selection.ts";

const [WORKERS, JOBS, RESTARTS] = LONG ? [8, 20_000, 5] : [4, 1_000, 3];

describe("a server that is restarted under its workers", { skip: noRestart }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test(`${WORKERS} workers and ${RESTARTS} restarts of the server during ${JOBS.toLocaleString("en")} jobs: nothing lost, nothing committed twice, no worker restarted`, async (t) => {
    const scene = new Scene(t, server);
    await scene.prepare();
    const produces = JOBS / WORKERS;
    const children = Array.from({ length: WORKERS }, (_, i) => scene.start("producer-worker", { produces, from: i * produces }));
    for (const child of children) await child.next("ready");
    const since = performance.now();
    for (const child of children) child.send({ type: "go" });
    const down: number[] = [];
    for (let restart = 0; restart < RESTARTS; restart++) {
      // In the middle of the work, whichever process does it and however fast.
      while (scene.ran().length < ((restart + 1) * JOBS) / (RESTARTS + 1)) await passes(20);
      const from = performance.now();
      await server.stop(restart % 2 === 0 ? "immediate" : "fast");
      // Some take longer than others.
      if (restart % 3 === 2) await passes(3_000);
      await server.start();
      down.push(performance.now() - from);
    }
    for (const child of children) await child.next("produced");
    const hf = await scene.open();
    await untilDone(hf);
    const took = performance.now() - since;
    for (const child of children) assert.equal(child.isOver, false, child.stderr);
    for (const child of children) child.send({ type: "stop" });
    const troubles: unknown[] = [];
    for (const child of children) troubles.push(...((await child.next("over"))["troubles"] as unknown[]));
    assert.deepEqual(
      troubles.filter((trouble) => String(trouble).startsWith("a caller")),
      [],
      "no caller was shown an error",
    );

    assert.equal(scene.acknowledged().length, JOBS);
    const jobs = await checkInvariants(scene, hf);
    const numbers = jobs.filter(({ name }) => name === "work").map(({ input }) => (input as WorkInput).n as number);
    assert.deepEqual(
      numbers.toSorted((a, b) => a - b),
      Array.from({ length: JOBS }, (_, n) => n),
      "each was enqueued once",
    );
    assert.equal(jobs.length, 2 * JOBS, "each job and its follow-up");
    assert.deepEqual(new Set(jobs.map(({ state }) => state)), new Set(["succeeded"]));
    assert.equal(
      jobs.reduce((sum, { crashes }) => sum + crashes, 0),
      0,
      "a restart of the server counts as no process's crash",
    );
    const runs = scene.ran();
    assert.equal(new Set(runs.map(({ pid }) => pid)).size, WORKERS, "all of them worked");
    t.diagnostic(
      `${Math.round(took)} ms; down for ${down.map(Math.round).join(", ")} ms; ${runs.length - JOBS} runs twice; ${troubles.length} warnings`,
    );
    for (const trouble of new Set(troubles.map((one) => String(one).slice(0, 200)))) t.diagnostic(trouble);
  });
});
