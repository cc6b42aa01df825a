import assert from "node:assert/strict";
import { test } from "node:test";
import { DatabaseSync } from "node:sqlite";
import { job, open } from "../../src/index.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { systemClock } from "../../src/engine/host.ts";
import { newJob } from "../conformance/parts.ts";
import { place, silent } from "../damage/place.ts";

const greet = job<{ name: string }>({ name: "greet", run: () => {} });

test("a write waits for a locked file for busyTimeout and no longer", async (t) => {
  const { path } = place(t);
  await using patient = await open(path, { busyTimeout: "10m", log: silent });
  const usual = await SqliteStore.open(path, {
    driver: "node:sqlite",
    clock: systemClock,
    random: Math.random,
    busyTimeout: 10,
  });
  t.after(() => usual.close());
  const holder = new DatabaseSync(path);
  t.after(() => holder.close());
  holder.exec("begin immediate");
  const enqueued = patient.enqueue(greet, { name: "me" });
  // Five seconds have passed when the store without the option gives up.
  await assert.rejects(usual.enqueue([newJob()]), { code: "BUSY" });
  holder.exec("commit");
  await enqueued;
});

test("a write with a short busyTimeout is rejected with BUSY while the lock is held", async (t) => {
  const { path } = place(t);
  await using hf = await open(path, { busyTimeout: 20, log: silent });
  const holder = new DatabaseSync(path);
  t.after(() => holder.close());
  holder.exec("begin immediate");
  const started = performance.now();
  await assert.rejects(hf.enqueue(greet, { name: "me" }), { code: "BUSY" });
  assert.ok(performance.now() - started < 5_000, "sooner than by default");
  holder.exec("rollback");
  await hf.enqueue(greet, { name: "me" });
});

test("busyTimeout accepts a duration", async () => {
  await assert.rejects(open(":memory:", { busyTimeout: "soon" as "5s" }), { code: "DURATION_INVALID" });
});
