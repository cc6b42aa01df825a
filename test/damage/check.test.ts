import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { describe, test } from "node:test";
import { type Holdfast, job, open, pipeline, items } from "../../src/index.ts";
import { GUARDS } from "../../src/store/sqlite/schema.ts";
import { alter, alterElsewhere, offsetOf, place, rootOf, scribble, silent, whereIs } from "./place.ts";

const greet = job<{ name: string }, string>({ name: "greet", run: ({ input }) => `hello ${input.name}` });
const names = Array.from({ length: 50 }, (_, i) => ({ name: `operator number ${i}` }));

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(`a check (${driver})`, () => {
    test("a check finds nothing in an intact database, while a worker works in it", async (t) => {
      const { path } = place(t);
      await using hf = await open(path, { driver });
      hf.work([greet]);
      const [first] = await hf.enqueueMany(greet, names);
      await hf.jobs.wait((first as { id: string }).id);
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
    });

    test("a check finds nothing in an intact database in memory", async () => {
      await using hf = await open(":memory:", { driver });
      await hf.enqueueMany(greet, names);
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
    });

    const altered: Record<string, { by: string; finds: RegExp }> = {
      "an input": { by: `update holdfast_jobs set input = '{"name":"else"}' where key = 7`, finds: /Not what was written: job / },
      "an id that is not in the list": { by: "delete from holdfast_ids", finds: /1 jobs have an id that is not in the list/ },
      "a lane that is gone": { by: "delete from holdfast_lanes", finds: /jobs are in a lane that is not there/ },
      "an entry of the audit": {
        by: [
          ...GUARDS.map(({ name }) => `drop trigger ${name}`),
          "update holdfast_audit set actor = 'absent'",
          ...GUARDS.map(({ sql }) => sql),
        ].join(";\n"),
        finds: /^The audit is not as it was written\. Entry 1 is not/,
      },
      "a count": { by: "update holdfast_tally set n = n + 1", finds: /counts of finished jobs are not those/ },
    };
    for (const [what, { by, finds }] of Object.entries(altered)) {
      test(`a check finds ${what}, and continues`, async (t) => {
        const { path } = place(t);
        await using hf = await open(path, { driver });
        await hf.enqueueMany(greet, names);
        const { id } = await hf.enqueue(greet, { name: "you" }, { id: "you" });
        await hf.jobs.cancel(id);
        alterElsewhere(path, by);
        const { ok, findings } = await hf.check();
        assert.equal(ok, false);
        assert.equal(findings.length, 1);
        assert.match(findings[0] as string, finds);
        // A row is not the whole of it.
        await hf.enqueue(greet, { name: "me" });
      });
    }

    test("a check finds another schema, an invalid state, an incomplete index and a damaged page", async (t) => {
      for (const damage of [
        (path: string) =>
          alter(path, "pragma ignore_check_constraints = on; update holdfast_jobs set state = 'pelding' where key = 3"),
        (path: string) => {
          for (const at of whereIs(path, "gate = 'time'")) scribble(path, at, Buffer.from("gate = 'lime'"));
        },
        (path: string) => scribble(path, offsetOf(rootOf(path, "holdfast_policies")) + 3, Uint8Array.of(0, 0)),
        (path: string) => scribble(path, offsetOf(rootOf(path, "holdfast_events")), Uint8Array.of(0xff)),
      ]) {
        const { path } = place(t);
        await (await seeded(path, driver)).close();
        damage(path);
        await using hf = await open(path, { driver, log: silent });
        const { ok, findings } = await hf.check();
        assert.equal(ok, false, damage.toString());
        assert.ok(findings.length > 0);
        await assert.rejects(hf.enqueue(greet, { name: "me" }), { code: "DAMAGED" });
      }
    });

    test("a check finds missing artifacts", async (t) => {
      const { path } = place(t);
      await using hf = await open(path, { driver });
      const listed = pipeline("big")
        .source(items(() => ["a", "b"], { id: (value) => value }))
        .stage("grow", {}, ({ input }) => input.repeat(100_000));
      const build = await hf.builds.start(listed);
      await build.done();
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
      rmSync(`${path}-artifacts`, { recursive: true });
      const { findings } = await hf.check();
      assert.equal(findings.length, 1);
      assert.match(findings[0] as string, /Artifacts that something refers to are missing/);
    });
  });
}

async function seeded(path: string, driver: "node:sqlite" | "better-sqlite3"): Promise<Holdfast> {
  const hf = await open(path, { driver });
  await hf.enqueueMany(greet, names, (_, i) => ({ delay: i + 1_000 }));
  return hf;
}
