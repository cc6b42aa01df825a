import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { suite } from "node:test";
import { fileURLToPath } from "node:url";
import { type Holdfast, job, open } from "../../src/index.ts";
import { code, home, memory, seeAll, test, unchecked } from "./parts.ts";

const work = job<{ n: number }>({ name: "work", run: () => {} });
const other = job<{ n: number }>({ name: "other", run: () => {} });

/** Jobs whose only attempt has failed. */
async function failed(hf: Holdfast, count: number, message = "timeout", def = work): Promise<string[]> {
  const made = await hf.enqueueMany(
    def,
    Array.from({ length: count }, (_, n) => ({ n })),
  );
  for (let left = count; left > 0; left--) {
    const claim = await hf.claim(def, { worker: "me" });
    await claim?.fail(new Error(message), { retry: false });
  }
  return made.map(({ id }) => id);
}

async function audited(hf: Holdfast): Promise<unknown[]> {
  const entries = await hf.engine.store.audit.page({ after: 0, limit: 1_000 });
  return entries.filter(({ action }) => action === "jobs.matched").map(({ subject, after }) => [subject, after]);
}

suite("a call for all that match", () => {
  test("retryAll retries the failed jobs that match and no others", async (t) => {
    const { hf } = await memory(t);
    const mine = await failed(hf, 120);
    await failed(hf, 2, "refused");
    await failed(hf, 2, "timeout", other);
    const { id: pending } = await hf.enqueue(work, { n: 7 });
    assert.deepEqual(await hf.jobs.retryAll({ name: "work", error: "TIME" }), { matched: 120, changed: 120 });
    const states = new Map((await seeAll(hf)).map(({ id, state }) => [id, state]));
    assert.deepEqual(new Set(mine.map((id) => states.get(id))), new Set(["pending"]));
    assert.equal(states.get(pending), "pending");
    assert.equal((await hf.jobs.counts()).failed, 4);
    assert.deepEqual(await hf.jobs.retryAll({ name: "work", error: "TIME" }), { matched: 0, changed: 0 });
    const after = { matched: 120, changed: 120, filter: { name: "work", error: "TIME" } };
    assert.deepEqual(await audited(hf), [["jobs:retry", after]], "a call that changes nothing has no entry");
  });

  test("cancelAll and removeAll change matching jobs, and chosen ids of removed jobs stay taken", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(work, { n: 1 }, { id: "a", tags: ["old"] });
    await hf.enqueue(work, { n: 2 }, { id: "b", tags: ["old"] });
    await hf.enqueue(work, { n: 3 }, { id: "c" });
    const claim = await hf.claim(work, { worker: "me" });
    assert.deepEqual(await hf.jobs.cancelAll({ tag: "old" }), { matched: 2, changed: 2 });
    await assert.rejects(async () => claim?.succeed(), code("LEASE_LOST"));
    assert.deepEqual(await hf.jobs.removeAll({ input: { n: 2 } }), { matched: 1, changed: 1 });
    assert.deepEqual(await hf.jobs.removeAll({}), { matched: 1, changed: 1 });
    assert.deepEqual(
      (await seeAll(hf)).map(({ id }) => id),
      ["c"],
    );
    assert.equal((await hf.enqueue(work, { n: 1 }, { id: "a" })).duplicate, true);
    const [, first] = (await audited(hf)) as [unknown, [string, object]];
    assert.deepEqual(first, ["jobs:remove", { matched: 1, changed: 1, filter: { input: ["n"] } }], "without values of inputs");
  });

  test("retryAll does not count a job whose key another job has taken", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(work, { n: 1 }, { key: "k" });
    await (await hf.claim(work, { worker: "me" }))?.fail(new Error("no"), { retry: false });
    await hf.enqueue(work, { n: 2 }, { key: "k" });
    assert.deepEqual(await hf.jobs.retryAll({}), { matched: 1, changed: 0 });
  });

  test("a call for all matching jobs rejects states that it cannot change and unknown options", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.jobs.removeAll({ state: "pending" }), code("OPTION_INVALID"));
    await assert.rejects(hf.jobs.retryAll({ state: ["succeeded", "running"] }), code("OPTION_INVALID"));
    await assert.rejects(hf.jobs.cancelAll(unchecked({ limit: 3 })), code("OPTION_INVALID"));
    await assert.rejects(hf.jobs.cancelAll(unchecked(undefined)), code("OPTION_INVALID"));
    assert.deepEqual(await hf.jobs.cancelAll({ state: [] }), { matched: 0, changed: 0 });
  });

  test("claims run between the batches of a call for all, and jobs added meanwhile are not changed", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueueMany(
      work,
      Array.from({ length: 400 }, (_, n) => ({ n })),
    );
    await hf.enqueue(other, { n: 0 });
    const state = { isOver: false };
    const cancelled = hf.jobs.cancelAll({ name: "work" }).finally(() => (state.isOver = true));
    const added: string[] = [];
    let claims = 0;
    while (!state.isOver) {
      const claim = await hf.claim(other, { worker: "me" });
      await claim?.release();
      if (!state.isOver) claims++;
      if (added.length < 10) added.push((await hf.enqueue(work, { n: -1 })).id);
    }
    assert.deepEqual(await cancelled, { matched: 400, changed: 400 });
    assert.ok(claims >= 3, `${claims} claims while 400 jobs were cancelled`);
    const states = new Map((await seeAll(hf)).map(({ id, state }) => [id, state]));
    for (const id of added.slice(1)) assert.notEqual(states.get(id), "cancelled", id);
  });

  for (const [action, point] of [
    ["retry", "retry:committed"],
    ["cancel", "cancel:written"],
    ["remove", "prune:committed"],
  ] as const) {
    test(`a call for all continues with the remaining jobs after a kill at ${point}`, async (t) => {
      const path = await home(t);
      await using hf = await open(path, { log: false });
      if (action === "cancel")
        await hf.enqueueMany(
          work,
          Array.from({ length: 130 }, (_, n) => ({ n })),
        );
      else await failed(hf, 130);
      const program = fileURLToPath(new URL("children/all-matching.ts", import.meta.url));
      const child = spawn(process.execPath, [program, path, action, point], { stdio: "inherit" });
      assert.deepEqual(await once(child, "exit"), [null, "SIGKILL"]);
      const isLeft = point.endsWith("written") ? 130 : 80;
      assert.deepEqual(await hf.jobs[`${action}All`]({ name: "work" }), { matched: isLeft, changed: isLeft });
    });
  }
});
