import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, test } from "node:test";
import { measure, SIZES } from "../../bench/recovery.ts";
import { openSqliteSuite } from "../../bench/sqlite-suite.ts";
import { job, open } from "../../src/index.ts";
import { drain, everyJob, simulateCrash, validateRecovery } from "../../src/testing/index.ts";
import { acceptedIn, folderOf, programOf } from "./place.ts";
import { simulatePowerCut } from "./power-cut.ts";

const SOUND = { ok: true, reasons: [] };
const WINDOWS = process.platform === "win32";
const order = job<{ item: number }>({ name: "order", run: ({ input }) => ({ sold: input.item }) });

test("crashes in a row, each of another kind, lose nothing, and each has its report", { skip: WINDOWS }, async (t) => {
  const folder = await folderOf(t);
  const db = join(folder, "work.db");
  const after = join(folder, "after", "work.db");
  const when = /(accepted \S+\n){8}/;
  const shop = programOf("shop");
  const crashes = [
    await simulateCrash(shop, { by: "SIGKILL", args: [db], when }),
    await simulatePowerCut(shop, { args: [db], when, from: db, to: after }),
    await simulateCrash(shop, { by: "out-of-memory", memory: 64, args: [after], when }),
  ];
  const accepted = crashes.flatMap(({ stdout }) => acceptedIn(stdout));
  await using hf = await open(after);
  const before = await everyJob(hf);
  assert.deepEqual(validateRecovery(accepted, before), SOUND);
  const reports = await hf.recovery.history();
  // One that comes while the last is still looked into stands in the same report.
  const pids = reports.flatMap(({ crashed }) => crashed.map(({ pid }) => pid));
  assert.deepEqual([pids.length, new Set(pids).size], [crashes.length, crashes.length]);
  assert.deepEqual(
    reports.flatMap(({ errors }) => errors),
    [],
  );
  // The first of each is never done by the shop itself.
  const held = before.filter(({ input }) => (input as { item: number }).item === 0);
  assert.equal(held.length, crashes.length);
  assert.ok(held.every(({ state }) => state === "pending"));
  assert.ok(held.some(({ crashes }) => crashes > 0));
  await drain(hf, [order]);
  const late = before.filter(({ state }) => state === "succeeded");
  const done = await everyJob(hf);
  assert.deepEqual(validateRecovery(late, done), SOUND, "what was done is not done again");
  // A second crash is followed by a pause, so that those are pending still.
  assert.deepEqual([...new Set(done.filter(({ crashes }) => crashes < 2).map(({ state }) => state))], ["succeeded"]);
});

describe("a crash", { concurrency: 2 }, () => {
  for (const by of ["SIGKILL", "power-cut"] as const) {
    test(`${by} while the log is copied loses nothing, and leaves every page whole`, { skip: WINDOWS }, async (t) => {
      const folder = await folderOf(t);
      const db = join(folder, "work.db");
      const image = join(folder, "after.db");
      const options = { args: [db], when: /(accepted \S+\n){60}/ };
      const crash =
        by === "SIGKILL"
          ? await simulateCrash(programOf("copying"), { by, ...options })
          : await simulatePowerCut(programOf("copying"), { ...options, from: db, to: image });
      await using hf = await open(by === "SIGKILL" ? db : image);
      assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), await everyJob(hf)), SOUND);
      assert.deepEqual((await hf.recovery.lastReport())?.errors, []);
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
    });
  }
});

test("the benchmark of recovery has every size of the plan, and what each may take", async () => {
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
