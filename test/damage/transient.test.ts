import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { realpathSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { Findings } from "../../src/store/sqlite/maintenance/damage/findings.ts";
import { corrupt } from "../../src/store/sqlite/faults.ts";
import { Place } from "../cli/holdfast.ts";
import { killedProducer } from "./killed.ts";
import { flip, offsetOf, place, rootOf, scribble, silent } from "./place.ts";
import { compileReadFault } from "./read-fault.ts";
import type { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";

const greet = job<{ name: string }>({ name: "greet", run: () => {} });

test("one failed read during a check leaves the database writable", async (t) => {
  const { path, folder } = place(t);
  const fault = compileReadFault(folder);
  if ("missing" in fault) return t.skip(fault.missing);
  {
    await using hf = await open(path);
    await hf.enqueue(greet, { name: "first" });
  }
  const env = {
    ...process.env,
    LD_PRELOAD: fault.library,
    FAULT_FILE: realpathSync(path),
    FAULT_TRIGGER: join(folder, "trigger"),
    FAULT_AT: String(offsetOf(rootOf(path, "holdfast_stage_costs"))),
  };
  const child = join(import.meta.dirname, "children", "checks.ts");
  const said = JSON.parse(execFileSync(process.execPath, [child, path], { env, encoding: "utf8" }));
  assert.deepEqual(said, { findings: [], hasFailed: true, enqueued: true });
  assert.deepEqual(new Findings(path).all(), []);
});

test("a statement that finds damage stops writes until a second read finds none", async (t) => {
  const { path } = place(t);
  const logged: string[] = [];
  const log = { ...silent, error: (message: string) => logged.push(message), warn: (message: string) => logged.push(message) };
  await using hf = await open(path, { log });
  const { damage } = hf.engine.store as SqliteStore;
  meet(hf);
  await assert.rejects(hf.enqueue(greet, { name: "me" }), { code: "DAMAGED", hint: /^Run `holdfast doctor --recheck`/ });
  await damage.confirmed();
  await hf.enqueue(greet, { name: "me" });
  assert.deepEqual(new Findings(path).all(), []);
  assert.match(logged.join(), /only read from now on,.*writes are allowed/);
  // What the check cannot see, and statements keep meeting, is kept.
  meet(hf);
  assert.equal(new Findings(path).all().length, 1);
});

test("a clean check clears a finding in all processes, with an audit entry", async (t) => {
  const cli = await Place.make();
  t.after(() => cli.remove());
  await using hf = await open(cli.db, { log: silent });
  const ran = Promise.withResolvers<void>();
  const worker = hf.work([job<{ name: string }>({ name: "greet", run: () => ran.resolve() })]);
  t.after(() => worker.stop());
  const what = "A check has found damage: unable to get the page. error code=266.";
  new Findings(cli.db).add({ severity: "damage", what }, Date.now());
  hf.engine.store.damage.refusal("write", true);
  await assert.rejects(hf.enqueue(greet, { name: "me" }), { code: "DAMAGED" });

  const page = await cli.run(["doctor", "--recheck"]);
  assert.match(page.stdout, /all is well\. Cleared:\n {2}A check has found damage: unable to get the page/);
  assert.equal(page.code, 0, page.stdout);
  await hf.enqueue(greet, { name: "me" });
  await ran.promise;
  assert.deepEqual(await clearedIn(hf), [{ what }]);
  const { recheck } = await cli.json<{ recheck: object }>(["doctor", "--recheck"]);
  assert.deepEqual(recheck, { ok: true, findings: [], cleared: [] });
});

test("a clean hf.check() clears a finding, and a read-only handle asks to be opened again", async (t) => {
  const { path } = place(t);
  await (await open(path)).close();
  new Findings(path).add({ severity: "damage", what: "It was met." }, Date.now());
  {
    await using hf = await open(path, { log: silent });
    assert.deepEqual(await hf.check(), { ok: true, findings: [] });
    await assert.rejects(hf.enqueue(greet, { name: "me" }), { code: "DAMAGED", hint: /open the database again/ });
  }
  await using hf = await open(path);
  await hf.enqueue(greet, { name: "me" });
  assert.deepEqual(await clearedIn(hf), [{ what: "It was met." }]);
});

test("a check never clears existing damage: of a page, the WAL, or a missing WAL", async (t) => {
  const cases: Record<string, (path: string) => Promise<void> | void> = {
    page: async (path) => {
      await (await open(path)).close();
      scribble(path, offsetOf(rootOf(path, "holdfast_events")), Uint8Array.of(0xff));
      await using hf = await open(path, { log: silent });
      assert.equal((await hf.check()).ok, false);
    },
    log: (path) => {
      killedProducer(path, 50);
      flip(`${path}-wal`, 32 + 6 * (4_096 + 24) + 500, 0);
    },
    "missing log": async (path) => {
      killedProducer(path, 50);
      flip(`${path}-wal`, 32 + 6 * (4_096 + 24) + 500, 0);
      await (await open(path, { log: silent })).close();
      rmSync(`${path}-wal`);
    },
  };
  for (const [name, damage] of Object.entries(cases)) {
    const { path } = place(t);
    await damage(path);
    await using hf = await open(path, { log: silent });
    for (let time = 0; time < 2; time++) assert.equal((await hf.check()).ok, false, name);
    assert.equal(new Findings(path).all().length, 1, name);
    await assert.rejects(hf.enqueue(greet, { name: "me" }), { code: "DAMAGED" }, name);
  }
});

function meet(hf: Holdfast): void {
  (hf.engine.store.damage as unknown as { met(error: unknown): void }).met(corrupt("database disk image is malformed"));
}

/** Findings that were cleared, as the audit has them. */
async function clearedIn(hf: Holdfast): Promise<unknown[]> {
  const entries = await hf.engine.store.audit.page({ after: 0, limit: 100 });
  return entries.filter(({ action }) => action === "damage.cleared").map(({ before }) => before);
}
