import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { join } from "node:path";
import { suite, test } from "node:test";
import { HoldfastError, type Holdfast, job, type JobDef, open } from "../../src/index.ts";
import { folder } from "./parts.ts";

suite("what a definition says of its limits and its queue, first in a transaction that is undone", () => {
  test("limits and settings declared in a transaction that threw apply when they are declared again", async () => {
    await using hf = await open(":memory:");
    await hf.enqueueMany(limited(5), Array(10).fill(null));
    const one = limited(1);
    const thrown = new Error("undone");
    await assert.rejects(
      hf.transaction(({ db }) => {
        hf.enqueue(one, null, { tx: db });
        throw thrown;
      }),
      thrown,
    );
    await countsOnce(hf, one);
  });

  test("limits and settings declared in a transaction that the user rolled back still apply", async (t) => {
    const path = join(await folder(t), "work.db");
    await using hf = await open(path);
    await hf.enqueueMany(limited(5), Array(10).fill(null));
    const one = limited(1);
    using db = new DatabaseSync(path);
    db.exec("begin immediate");
    hf.enqueue(one, null, { tx: db });
    db.exec("rollback");
    await countsOnce(hf, one);
  });
});

/** Others change settings meanwhile; then the limit of one holds. */
async function countsOnce(hf: Holdfast, one: JobDef<null, void>): Promise<void> {
  await hf.queues.pause("another");
  await hf.enqueue(one, null);
  await using first = await hf.claim(one, { worker: "a" });
  await using second = await hf.claim(one, { worker: "b" });
  assert.ok(first !== null);
  assert.equal(second, null);
}

function limited(concurrency: number): JobDef<null, void> {
  return job<null, void>({ name: "limited", limit: { concurrency }, run: () => {} });
}

suite("the key of a limit", () => {
  const keys: [what: string, key: () => unknown][] = [
    ["a number", () => 1],
    ["a bigint", () => 1n],
    ["a cycle", () => [].concat([globalThis as never])],
    ["a promise that fails", () => Promise.reject(new Error("not handled"))],
    ["half a character", () => "\ud800"],
    ["a text without end", () => "x".repeat(1_001)],
  ];
  for (const [what, key] of keys) {
    test(`a limit key that is ${what} is rejected, and nothing is stored`, async () => {
      await using hf = await open(":memory:");
      const def = job<null, void>({ name: "odd", limit: { key: key as () => string, concurrency: 1 }, run: () => {} });
      await assert.rejects(hf.enqueue(def, null), { code: "LIMIT_KEY_INVALID" });
      assert.equal((await hf.jobs.list()).items.length, 0);
    });
  }

  test("a limit key function that throws rejects the enqueue with its error", async () => {
    await using hf = await open(":memory:");
    const def = job<null, void>({ name: "odd", limit: { key: () => fail("no host"), concurrency: 1 }, run: () => {} });
    await assert.rejects(hf.enqueue(def, null), (error: HoldfastError) => {
      assert.equal(error.code, "LIMIT_KEY_INVALID");
      assert.match(error.message, /no host/);
      return true;
    });
  });
});

test("a queue's `events` must be true or false", () => {
  const queue = { name: "q", events: "no" as unknown as boolean };
  assert.throws(() => job({ name: "odd", queue, run: () => {} }), { code: "OPTION_INVALID" });
});

function fail(message: string): never {
  throw new Error(message);
}
