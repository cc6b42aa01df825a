import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, test } from "node:test";
import { measure, SIZES } from "../../bench/recovery.ts";
import { openSqliteSuite } from "../../bench/sqlite-suite.ts";
import { job, open } from "../../src/index.ts";
import { type CrashOptions, drain, everyJob, simulateCrash, validateRecovery } from "../../src/testing/index.ts";
import { acceptedIn, folderOf, programOf } from "./place.ts";

const SOUND = { ok: true, reasons: [] };
const WINDOWS = process.platform === "win32";
const order = job<{ item: number }>({ name: "order", run: ({ input }) => ({ sold: input.item }) });

test("successive crashes of different kinds lose nothing, and each has its report", { skip: WINDOWS }, async (t) => {
  const folder = await folderOf(t);
  let db = join(folder, "work.db");
  const accepted: { id: string }[] = [];
  const ways: Partial<CrashOptions>[] = [
    { by: "SIGKILL" },
    { by: "power-cut", image: { from: db, to: join(folder, "after", "work.db") } },
    { by: "out-of-memory", memory: 64 },
  ];
  for (const way of ways) {
    const options = { ...way, args: [db], when: /(accepted \S+\n){8}/ } as CrashOptions;
    const crash = await simulateCrash(programOf("shop"), options);
    accepted.push(...acceptedIn(crash.stdout));
    db = crash.image?.path ?? db;
  }
  await using hf = await open(db);
  const before = await everyJob(hf);
  assert.deepEqual(validateRecovery(accepted, before), SOUND);
  const reports = await hf.recovery.history();
  // One that comes while the last is still looked into stands in the same report.
  const pids = reports.flatMap(({ crashed }) => crashed.map(({ pid }) => pid));
  assert.deepEqual([pids.length, new Set(pids).size], [ways.length, ways.length]);
  assert.deepEqual(
    reports.flatMap(({ errors }) => errors),
    [],
  );
  // The first of each is never done by the shop itself.
  const held = before.filter(({ input }) => (input as { item: number }).item === 0);
  assert.equal(held.length, ways.length);
  assert.ok(held.every(({ state }) => state === "pending"));
  assert.ok(held.some(({ crashes }) => crashes > 0));
  await drain(hf, [order]);
  const late = before.filter(({ state }) => state === "succeeded");
  const after = await everyJob(hf);
  assert.deepEqual(validateRecovery(late, after), SOUND, "what was done is not done again");
  // A second crash is followed by a pause, so that those are pending still.
  assert.deepEqual([...new Set(after.filter(({ crashes }) => crashes < 2).map(({ state }) => state))], ["succeeded"]);
});

describe("a crash", { concurrency: 2 }, () => {
  for (const by of ["SIGKILL", "power-cut"] as const) {
    test(`${by} during a checkpoint loses nothing, and leaves every page intact`, { skip: WINDOWS }, async (t) => {
      const folder = await folderOf(t);
      const db = join(folder, "work.db");
      const image = { from: db, to: join(folder, "after.db") };
      const crash = await simulateCrash(programOf("copying"), {
        by,
        args: [db],
        when: /(accepted \S+\n){60}/,
        ...(by === "power-cut" ? { image } : {}),
      });
      await using hf = await open(crash.image?.path ?? db);
      assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), await everyJob(hf)), SOUND);
      assert.deepEqual((await hf.recovery.lastReport())?.errors, []);
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
    });
  }
});

test("the benchmark of recovery has every planned size, with its limit", async () => {
  assert.deepEqual(
    SIZES.map(([jobs, millis]) => [jobs, millis]),
    [
      [1_000, 50],
      [10_000, 100],
      [100_000, 1_000],
      [1_000_000, 5_000],
    ],
  );
  assert.ok(SIZES.every(([jobs, millis]) => jobs !== 10_000 || millis <= 5_000));
  const suite = await openSqliteSuite({ quick: true, write: false });
  assert.ok("recovery" in suite.parts);
  await suite.close();
  // It throws where not all of it is given back.
  assert.ok((await measure(1_000, 1)) > 0);
});
