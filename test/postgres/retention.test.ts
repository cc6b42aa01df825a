import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import type { QueueSettings } from "../../src/core/jobs/claiming.ts";
import { MUTEX } from "../../src/store/postgres/transactions/mutexes.ts";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Store } from "../../src/store/store.ts";
import { add, claim, declaring, running, SUCCEEDED } from "../conformance/parts.ts";
import { agree, type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

describe("retention, where several look after it", { skip: noServer }, () => {
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

  test("two processes that remove surplus jobs leave those that are to be kept", async () => {
    await ended(one, 60);
    await keep(one, { succeeded: { count: 7 } });
    await Promise.all([expireAll(one), expireAll(other), expireAll(one), expireAll(other)]);
    await expireAll(one);
    assert.equal((await countJobs(one.queries)).succeeded, 7);
    await agree(handles, one);
  });

  test("a second process has nothing to remove, and does not wait", async () => {
    await ended(one, 3);
    await keep(one, { succeeded: { count: 0 } });
    const bystander = await handles.bystander();
    await bystander.query(`select 1 from mutexes where id = ${MUTEX.retention} for update`);
    assert.deepEqual(await one.prune({ expired: { minAge: 0 }, limit: 10 }), { removed: 0, more: false });
    await bystander.end("commit");
    await expireAll(one);
    assert.equal((await countJobs(one.queries)).succeeded, 0);
  });

  test("a job whose row another session has locked is removed later, and the others now", { timeout: 40_000 }, async () => {
    await keep(one, { succeeded: { count: 0 } });
    await expireAll(one);
    const [first] = (await ended(one, 3)) as [number];
    const bystander = await handles.bystander();
    await bystander.query(`select 1 from jobs where key = ${first} for no key update`);
    await expireAll(one);
    assert.equal((await countJobs(one.queries)).succeeded, 1);
    await bystander.end("commit");
    await expireAll(one);
    assert.equal((await countJobs(one.queries)).succeeded, 0);
    assert.deepEqual(await handles.query("select * from expiring"), []);
  });

  test("a job that commits its end while its queue first declares `keep` is removed in the end", async () => {
    const held = await running(one);
    await ended(one, 2);
    // As a settle does that knows of nothing to be kept, and has looked for the last time.
    const settling = await handles.bystander();
    await settling.query(
      `update jobs set state = 'succeeded', finished_at = 1, expires_at = null where key = ${held.job};
       insert into tally (share, lane, state, n, ended) select 999, lane, 'succeeded', 1, 1 from jobs where key = ${held.job}`,
    );
    await keep(other, { succeeded: { count: 0 } });
    for (let n = 0; n < 3; n++)
      assert.deepEqual(
        await one.prune({ expired: { minAge: 0 }, limit: 10 }),
        { removed: 0, more: true },
        "it cannot look into the past yet",
      );
    await settling.end("commit");
    await expireAll(one);
    assert.equal((await countJobs(one.queries)).succeeded, 0);
    await agree(handles, one);
  });

  test("a job settled by a process without its queue's settings is removed, too, with its event", async () => {
    await one.queues.declare([declaring([], { settings: { events: true, keep: { succeeded: { count: 0 } } } })]);
    await expireAll(one);
    const held = [await running(one), await running(one)];
    for (const { job, fence } of held) assert.deepEqual(await other.settle([{ job, fence, outcome: SUCCEEDED }]), ["held"]);
    assert.deepEqual(await handles.query("select count(*)::int as n from outbox where type = 'job.succeeded'"), [{ n: 2 }]);
    await expireAll(one);
    assert.equal((await countJobs(one.queries)).succeeded, 0);
    await agree(handles, one);
  });

  test("a job whose end has begun but written nothing when its queue declares `keep` is removed in the end", async () => {
    const held = await running(one);
    await ended(one, 2);
    // The statement sees what is set as it was before it waits for the time, and comes to the job after that.
    await handles.query(`
      create or replace function clock(given bigint) returns bigint language plpgsql volatile as $$ begin
        if pg_try_advisory_xact_lock_shared(1) then return floor(extract(epoch from clock_timestamp()) * 1000)::bigint; end if;
        if current_setting('application_name') = 'holdfast writes' and current_query() like '%''succeeded''%' then
          perform pg_advisory_xact_lock_shared(1);
        end if;
        return floor(extract(epoch from clock_timestamp()) * 1000)::bigint; end $$`);
    const bystander = await handles.bystander();
    await bystander.query("select pg_advisory_xact_lock(1)");
    const settled = one.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]);
    await handles.blocked(1);
    await keep(other, { succeeded: { count: 0 } });
    await expireAll(other);
    await bystander.end("commit");
    assert.deepEqual(await settled, ["held"]);
    await expireAll(other);
    assert.equal((await countJobs(one.queries)).succeeded, 0);
    await agree(handles, one);
  });
});

async function keep(store: Store, kept: QueueSettings["keep"]): Promise<void> {
  await store.queues.declare([declaring([], { settings: { events: false, keep: kept } })]);
}

/** So many jobs that have succeeded; their keys. */
async function ended(store: Store, count: number): Promise<number[]> {
  await add(store, ...Array.from({ length: count }, () => ({})));
  const held = await claim(store, { max: count });
  await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
  return held.map(({ job }) => job);
}

async function expireAll(store: Store): Promise<void> {
  while ((await store.prune({ expired: { minAge: 0 }, limit: 5 })).more);
}
