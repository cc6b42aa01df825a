import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { add, claim, ERROR, newJob, running, see, settle, SUCCEEDED } from "../conformance/parts.ts";
import { agree, type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const FAILED = { kind: "error", error: ERROR, retry: false } as const;

describe("operators and workers at the same instant", { skip: noServer }, () => {
  let server: PostgresServer;
  let handles: Handles;
  let one: PostgresStore;
  let other: PostgresStore;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => {
    handles = await openHandles(server, 2);
    [one, other] = handles.stores as [PostgresStore, PostgresStore];
  });
  afterEach(() => handles.close());

  for (const first of ["settle", "cancel"] as const) {
    test(`of a cancel and a settle of one job one wins, and the counts agree: the ${first} comes first`, async () => {
      const held = await running(one);
      const bystander = await handles.bystander();
      await bystander.query(`select 1 from jobs where key = ${held.job} for update`);
      const acts = {
        settle: () => one.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]),
        cancel: () => other.cancel(held.id),
      };
      const order = first === "settle" ? (["settle", "cancel"] as const) : (["cancel", "settle"] as const);
      const done: Promise<unknown>[] = [];
      for (const [i, act] of order.entries()) {
        done.push(acts[act]());
        await handles.blocked(i + 1);
      }
      await bystander.end("commit");
      const [a, b] = await Promise.all(done);
      assert.deepEqual([a, b], first === "settle" ? [["held"], false] : [true, ["cancelled"]]);
      assert.equal((await see(one, held.id)).state, first === "settle" ? "succeeded" : "cancelled");
      await agree(handles, one);
    });
  }

  test("many concurrent cancels and settles end each job once", async () => {
    await add(one, ...Array.from({ length: 40 }, () => ({})));
    const held = await claim(one);
    const won = await Promise.all(
      held.map(async (lease) => {
        const [cancelled, [fate]] = await Promise.all([other.cancel(lease.id), one.settle([{ ...lease, outcome: SUCCEEDED }])]);
        return { cancelled, fate, id: lease.id };
      }),
    );
    for (const { cancelled, fate, id } of won) {
      assert.equal(cancelled, fate === "cancelled", `${id}: ${fate}`);
      assert.equal((await see(one, id)).state, cancelled ? "cancelled" : "succeeded");
    }
    await agree(handles, one);
  });

  test("of two cancels of one job, one succeeds", async () => {
    const ids = await add(one, ...Array.from({ length: 20 }, () => ({})));
    const done = await Promise.all(ids.map((id) => Promise.all([one.cancel(id), other.cancel(id)])));
    for (const both of done) assert.deepEqual(both.toSorted(), [false, true]);
    assert.equal((await countJobs(one.queries)).cancelled, 20);
    await agree(handles, one);
  });

  test("a job that ends while its dependent is cancelled releases or cancels nothing twice", async () => {
    for (let n = 0; n < 15; n++) {
      const upstream = await running(one, { name: "up" });
      const [behind, last] = await add(one, { after: [upstream.id] }, { name: "last", id: `last-${n}` });
      await other.cancel(last as string);
      const [, cancelled] = await Promise.all([settle(one, upstream, SUCCEEDED), other.cancel(behind as string)]);
      assert.equal(cancelled, true);
      assert.equal((await see(one, behind as string)).state, "cancelled");
    }
    assert.deepEqual(await handles.query("select * from waits"), []);
    await agree(handles, one);
  });

  // ── keys ──

  for (const how of ["commit", "rollback"] as const) {
    test(`a retry waits for a transaction that takes its key: ${how}`, async () => {
      const failed = await running(one, { key: "k" });
      await settle(one, failed, FAILED);
      const bystander = await handles.bystander();
      await bystander.query(
        `insert into jobs (state, lane, priority, policy, run_at, created_at, slot)
         select 'pending', lane, 0, policy, 0, 0, slot from jobs where key = ${failed.job}`,
      );
      const retried = other.retry(failed.id);
      await handles.blocked(1);
      await bystander.end(how);
      assert.equal(await retried, how === "commit" ? "key-taken" : true);
      await agree(handles, one);
    });
  }

  test("of a retry and an enqueue with one key, one succeeds", async () => {
    for (let n = 0; n < 30; n++) {
      const failed = await running(one, { key: `k${n}` });
      await settle(one, failed, FAILED);
      const [retried, [enqueued]] = await Promise.all([one.retry(failed.id), other.enqueue([newJob({ key: `k${n}` })])]);
      if (retried === true) assert.deepEqual(enqueued, { id: failed.id, duplicate: true });
      else {
        assert.equal(retried, "key-taken");
        assert.equal(enqueued !== undefined && "duplicate" in enqueued && enqueued.duplicate, false);
      }
      await claim(one).then((all) => one.settle(all.map((lease) => ({ ...lease, outcome: SUCCEEDED }))));
    }
    await agree(handles, one);
  });

  // ── removing ──

  test("two concurrent prunes remove each job once, and a chosen id stays taken", async () => {
    await add(one, ...Array.from({ length: 60 }, (_, n) => ({ id: `job-${n}` })));
    for (const { id } of await claim(one)) await one.cancel(id);
    const what = { state: "cancelled", limit: 15 } as const;
    let removed = 0;
    for (const pruned of await Promise.all([one, other, one, other, one, other].map((store) => store.prune(what))))
      removed += pruned.removed;
    while ((await countJobs(one.queries)).cancelled > 0) removed += (await one.prune(what)).removed;
    assert.equal(removed, 60);
    assert.deepEqual(await one.enqueue([newJob({ id: "job-7" })]), [{ id: "job-7", duplicate: true }]);
    await agree(handles, one);
  });
});
