import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import postgres from "postgres";
import type { Fence } from "../../src/core/text/ids.ts";
import { Events } from "../../src/store/postgres/events.ts";
import type { Tx } from "../../src/store/postgres/transactions/transaction.ts";
import { ClaimLocks } from "../../src/store/postgres/claims/claim-statements.ts";
import { dialectOf, ScriptTx, Statements } from "../../src/store/postgres/scripts.ts";
import type { Rows } from "../../src/store/postgres/connection/driver.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { type Access, runAsync } from "../../src/store/sql/script.ts";
import { Audit } from "../../src/store/sql/audit.ts";
import { Locks } from "../../src/store/sql/locks.ts";
import { RecoveryLog } from "../../src/store/sql/reports.ts";
import type { ScheduleDraft, StoredSchedule } from "../../src/store/queues.ts";
import type { Claimed } from "../../src/store/store.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import {
  add,
  claim,
  judged,
  LEASE,
  lockOf,
  newJob,
  pass,
  running,
  scheduleOf,
  see,
  SUCCEEDED,
  saveCheckpoint,
} from "../conformance/parts.ts";
import { testAllOnly } from "../selection.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const JOBS = 120;
const HOUR = 3_600_000;
/** Generous: it ends a test that hangs, and decides nothing else. */
const DEADLINE = 40_000;

/** A transaction that stays open. */
class OpenTx extends ScriptTx {
  readonly at: number;
  readonly rows: Rows;
  constructor(s: string, at: number, rows: Rows) {
    super(new Statements(s));
    this.at = at;
    this.rows = rows;
  }
  async now(): Promise<number> {
    return this.at;
  }
  wrote(): void {}
}

describe("what several processes do at the same instant", { skip: noServer }, () => {
  let server: PostgresServer;
  let clock: TestClock;
  let schema: string;
  let store: PostgresStore;
  const others: PostgresStore[] = [];

  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => {
    clock = testClock();
    schema = `races_${Math.random().toString(36).slice(2)}`;
    store = await open();
  });
  afterEach(() => Promise.all([store, ...others.splice(0)].map((one) => one.close())));

  const open = () => PostgresStore.open(server.url(), { schema, clock, injected: true, random: () => 0.5 });

  /** Handles as so many other processes would have. */
  async function processes(count: number): Promise<PostgresStore[]> {
    const opened = await Promise.all(Array.from({ length: count }, open));
    others.push(...opened);
    return opened;
  }

  /** Another session's transaction, open until the test ends it. */
  async function transaction(...statements: string[]) {
    const sql = postgres(server.url(), { max: 1, onnotice: () => {} });
    const connection = await sql.reserve();
    const rows = (text: string, values: unknown[] = []) => connection.unsafe(text, values as never[]).values();
    for (const statement of ["begin", ...statements]) await rows(statement);
    const tx = new OpenTx(`"${schema}"`, clock.now(), ((text: string, ...values: unknown[]) =>
      rows(text, values)) as unknown as Rows);
    const end = async (how: "commit" | "rollback") => {
      await rows(how);
      connection.release();
      await sql.end({ timeout: 0 });
    };
    return { tx, end };
  }

  /** The locks as they are taken from inside it, by a process that is not registered. */
  function locksIn(tx: OpenTx): Locks {
    const s = `"${schema}"`;
    const events = new Events(s);
    const dialect = dialectOf(s);
    const access: Access = {
      read: (script) => runAsync(script(tx)),
      write: (_, script) => runAsync(script(tx as unknown as Tx)),
    };
    const audit = new Audit(dialect, { actor: null, events });
    const recoveryLog = new RecoveryLog(dialect, events);
    return new Locks(dialect, { audit, processes: store.processes, recoveryLog }, access);
  }

  /** Resolves when so many wait for a row, or for another's transaction. */
  async function someWait(count: number): Promise<void> {
    const deadline = performance.now() + DEADLINE;
    const waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    while ((await server.query(waiting)).length < count) {
      assert.ok(performance.now() < deadline, `not in time: ${count} wait`);
      await delay(5);
    }
  }

  // ── locks ──

  test("of twenty concurrent acquires of one lock, one succeeds, each time", async () => {
    const twenty = await processes(20);
    for (let round = 0; round < 16; round++) {
      const got = await Promise.all(twenty.map((one, n) => one.locks.acquire("l", `agent-${n}`, `${round}-${n}`, 1_000)));
      assert.deepEqual(
        got.filter((has) => has),
        [true],
        `round ${round}`,
      );
      const winner = got.indexOf(true);
      assert.equal((await lockOf(store, "l"))?.holder, `agent-${winner}`);
      // In turn it is released, and left to its time.
      if (round % 2 === 0) assert.equal(await store.locks.renew("l", `${round}-${winner}`, null), true);
      else pass(clock, 1_000);
    }
  });

  test(
    "the process that takes over an expired lock keeps it, however many processes clean at that instant",
    testAllOnly,
    async () => {
      const [cleaners, takers] = halves(await processes(12));
      for (let round = 0; round < 12; round++) {
        await store.locks.acquire("l", "old", `${round}`, 1_000);
        pass(clock, 1_000);
        const [cleaned, got] = await Promise.all([
          Promise.all(cleaners.map((one) => one.locks.clean())),
          Promise.all(takers.map((one, n) => one.locks.acquire("l", `agent-${n}`, `${round}-${n}`, 1_000))),
        ]);
        assert.ok(cleaned.flatMap(({ removed }) => removed).length <= 1, `round ${round}: cleaned once`);
        assert.equal(got.filter((has) => has).length, 1, `round ${round}`);
        const winner = got.indexOf(true);
        assert.equal((await lockOf(store, "l"))?.holder, `agent-${winner}`);
        assert.equal(await store.locks.renew("l", `${round}-${winner}`, null), true);
      }
      assert.equal(
        (await store.recoveries.history({ limit: 0 })).totals.locksCleaned,
        (await store.recoveries.history({ limit: 0 })).totals.log.length,
      );
    },
  );

  for (const before of ["was free", "had expired"]) {
    test(
      `a lock that ${before}, taken by an exclusive claim while others wait for its row, is not taken or cleaned by them`,
      testAllOnly,
      async () => {
        const [taker, cleaner] = (await processes(2)) as [PostgresStore, PostgresStore];
        const { job } = await running(store, { queue: "q" });
        if (before === "had expired") await store.locks.acquire("q", "old", "old", 1_000);
        pass(clock, 1_000);
        // Its fence is of this very transaction: no other session sees the job running with it before the commit.
        const { tx, end } = await transaction(`update "${schema}".jobs set fence = 1000 where key = ${job}`);
        assert.equal(
          await new ClaimLocks(`"${schema}"`).bind(
            tx as unknown as Tx,
            { job, fence: 1_000 as Fence, queue: "q" },
            "claimer",
            "t",
          ),
          true,
        );
        const others = Promise.all([
          taker.locks.acquire("q", "other", "u", 1_000),
          ...(before === "had expired" ? [cleaner.locks.clean()] : []),
        ]);
        await someWait(before === "had expired" ? 2 : 1);
        await end("commit");
        const nothing = { removed: [], shortened: [] };
        assert.deepEqual(await others, before === "had expired" ? [false, nothing] : [false]);
        assert.equal((await lockOf(store, "q"))?.holder, "claimer");
        assert.equal(await store.locks.acquire("q", "other", "u", 1_000), false);
      },
    );
  }

  test("of exclusive claims and acquires of its lock, one gets the queue", async () => {
    const [claimers, takers] = halves(await processes(12));
    for (let round = 0; round < 15; round++) {
      await add(store, ...Array.from({ length: 8 }, () => ({ queue: "q" })));
      const [claimed, got] = await Promise.all([
        Promise.all(claimers.map((one, n) => claim(one, { max: 1, exclusive: `${round}-${n}`, worker: `claimer-${n}` }))),
        Promise.all(takers.map((one, n) => one.locks.acquire("q", `taker-${n}`, `${round}-${n}`, 1_000))),
      ]);
      const owners = [
        ...claimed.flatMap((some, n) => some.map(() => `claimer-${n}`)),
        ...got.flatMap((has, n) => (has ? [`taker-${n}`] : [])),
      ];
      assert.deepEqual(owners, [(await lockOf(store, "q"))?.holder], `round ${round}`);
      assert.deepEqual(await claim(store), [], "and no other worker gets anything");
      await store.settle(claimed.flat().map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
      if (got.includes(true)) await store.locks.renew("q", `${round}-${got.indexOf(true)}`, null);
      assert.equal(await lockOf(store, "q"), null);
    }
  });

  test("a lock whose acquire is rolled back goes to a waiting process", testAllOnly, async () => {
    const { tx, end } = await transaction();
    assert.equal(await locksIn(tx).acquire("l", "first", "t", 1_000), true);
    const second = store.locks.acquire("l", "second", "u", 1_000);
    await someWait(1);
    await end("rollback");
    assert.equal(await second, true);
    assert.equal((await lockOf(store, "l"))?.holder, "second");
  });

  // ── attempts ──

  test("a cancel that waited while one attempt ended and the next began adds the cancelled attempt behind the ended one", async () => {
    const [other] = (await processes(1)) as [PostgresStore];
    const { id, job, fence } = await running(store, { queue: "q" });
    const { end } = await transaction(
      `insert into "${schema}".attempts (job, n, fence, attempt, outcome, started_at, ended_at)
       values (${job}, 1, ${fence}, 1, 'failed', 0, 0)`,
      `update "${schema}".jobs set fence = fence + 1000, attempt = 2 where key = ${job}`,
    );
    const cancelled = other.cancel(id);
    await someWait(1);
    await end("commit");
    assert.equal(await cancelled, true);
    const outcomes = (await store.queries.attempts(id)).map(({ outcome }) => outcome);
    assert.deepEqual(outcomes, ["failed", "cancelled"]);
  });

  // ── schedules ──

  test("of eight processes that see the same tick, one creates its job, tick after tick", testAllOnly, async () => {
    const eight = await processes(8);
    let schedule = await save(store, { nextAt: clock.now() });
    for (let round = 0; round < 20; round++) {
      const { key, revision, nextAt: from } = schedule;
      const tick = { key, revision, from, fire: [from], nextAt: from + HOUR };
      const won = await Promise.all(eight.map((one) => one.schedules.tick(tick)));
      assert.equal(won.filter((has) => has).length, 1, `round ${round}`);
      schedule = (await scheduleOf(store, "work")) ?? assert.fail();
      pass(clock, HOUR);
    }
    const ticks = (await claim(store)).map(({ scheduledFor }) => scheduledFor);
    assert.deepEqual([ticks.length, new Set(ticks).size], [20, 20]);
  });

  test("of eight processes that trigger a schedule without overlap, one creates a job, and the others get it", async () => {
    const eight = await processes(8);
    await save(store, { nextAt: clock.now() + HOUR, overlap: false });
    for (let round = 0; round < 15; round++) {
      const made = await Promise.all(eight.map((one) => one.schedules.trigger("work")));
      const claimed = await claim(store);
      assert.deepEqual(
        claimed.map(({ id }) => id),
        [...new Set(made.map((answer) => answer?.id))],
        `round ${round}`,
      );
      assert.equal(made.filter((answer) => answer !== null && "duplicate" in answer && !answer.duplicate).length, 1);
      await store.settle(claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    }
  });

  test(
    "concurrent saves, pauses, triggers and removals of a schedule all succeed, and a tick is one job or none",
    testAllOnly,
    async () => {
      const eight = await processes(8);
      const [pauser, remover, saver] = (await processes(3)) as [PostgresStore, PostgresStore, PostgresStore];
      for (let round = 0; round < 15; round++) {
        const { key, revision, nextAt: from } = await save(store, { nextAt: clock.now() });
        const tick = { key, revision, from, fire: [from], nextAt: from + HOUR };
        const [ticked] = await Promise.all([
          Promise.all(eight.map((one) => one.schedules.tick(tick))),
          pauser.schedules.update("work", "paused"),
          remover.schedules.update("work", "removed"),
          save(saver, { nextAt: clock.now() + HOUR, cron: "30 * * * *" }),
        ]);
        const made = (await claim(store)).length;
        assert.equal(made, ticked.filter((has) => has).length, `round ${round}`);
        assert.ok(made <= 1, `round ${round}`);
        await store.schedules.update("work", "removed");
      }
    },
  );

  // ── leases ──

  /** Jobs that run, each a lease that has expired. */
  async function expired(count: number): Promise<Claimed[]> {
    await add(store, ...Array.from({ length: count }, () => ({ policy: { crashes: 100 } })));
    const claimed = await claim(store, { max: count });
    assert.equal(claimed.length, count);
    pass(clock, LEASE);
    return claimed;
  }

  test("a lease that is settled and reclaimed at once ends one way, and its job with it", testAllOnly, async () => {
    const [settlers, reclaimers] = halves(await processes(12));
    const leases = await expired(JOBS);
    const ways = await Promise.all(
      leases.map(async (lease, n) => {
        const { job, fence, id } = lease;
        const [settler, reclaimer] = [turn(settlers, n), turn(reclaimers, n)];
        const outcome = n % 2 === 0 ? SUCCEEDED : ({ kind: "error", error: { name: "E", message: "e" }, retry: false } as const);
        const settle = () => settler.settle([{ job, fence, outcome }]);
        const reclaim = () => reclaimer.recoveries.reclaim([judged(lease, "crashed")], "test");
        // In turn the one and the other is sent first.
        const sent = n % 4 < 2 ? [settle(), reclaim()] : [reclaim(), settle()].toReversed();
        const [[fate], { entries }] = (await Promise.all(sent)) as [string[], { entries: number }];
        const { state, crashes } = await see(store, id);
        assert.deepEqual(
          [entries, crashes, state],
          fate === "held" ? [0, 0, n % 2 === 0 ? "succeeded" : "failed"] : [1, 1, "pending"],
          `job ${n}: ${fate}`,
        );
        return fate;
      }),
    );
    assert.equal(
      (await store.recoveries.history({ limit: 0 })).totals.entriesReclaimed,
      ways.filter((fate) => fate !== "held").length,
    );
  });

  test("a lease settled by many processes at once, in different batches, is settled by one", async () => {
    const six = await processes(6);
    const leases = await expired(JOBS);
    const settlements = leases.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED }));
    const fates = await Promise.all(
      six.map((one, n) => {
        const turned = [...settlements.slice(n * 20), ...settlements.slice(0, n * 20)];
        return one.settle(n % 2 === 0 ? turned : turned.toReversed());
      }),
    );
    assert.equal(fates.flat().filter((fate) => fate === "held").length, JOBS);
    assert.equal((await countJobs(store.queries)).succeeded, JOBS);
  });

  test("leases reclaimed by many processes at once are reclaimed once, in any order", testAllOnly, async () => {
    const six = await processes(6);
    const leases = await expired(JOBS);
    const judgements = leases.map((lease) => judged(lease, "crashed"));
    for (let round = 0; (await store.recoveries.stale({ dead: [], skewed: false, limit: JOBS })).length > 0; round++) {
      // What one has in its hands the others leave alone, and look at again.
      assert.ok(round < 20, "they come to an end");
      await Promise.all(six.map((one, n) => one.recoveries.reclaim(n % 2 === 0 ? judgements : judgements.toReversed(), "test")));
    }
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.entriesReclaimed, JOBS);
    for (const { id } of leases) assert.equal((await see(store, id)).crashes, 1);
  });

  test("a lease renewed and reclaimed at once is either held and not stale, or lost", testAllOnly, async () => {
    const six = await processes(6);
    const leases = await expired(JOBS);
    const renewals = leases.map(({ job, fence }) => ({ job, fence, lease: LEASE }));
    const reclaims = leases.map((lease, n) => turn(six, n).recoveries.reclaim([judged(lease, "stalled")], "test"));
    const [, ...reclaimed] = await Promise.all([store.renew(renewals), ...reclaims]);
    const fates = await store.inspect(leases);
    assert.deepEqual(
      fates,
      reclaimed.map(({ entries }) => (entries === 1 ? "lost" : "held")),
    );
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: false, limit: JOBS }), []);
  });

  test("a checkpoint saved while its lease is reclaimed is dropped with it, or rejected", async () => {
    const [savers, reclaimers] = halves(await processes(12));
    const leases = await expired(JOBS);
    const reclaims = leases.map((lease, n) => turn(reclaimers, n).recoveries.reclaim([judged(lease, "crashed")], "test"));
    const saves = leases.map((lease, n) => saveCheckpoint(turn(savers, n), lease, '"half"'));
    const [reclaimed, saved] = await Promise.all([Promise.all(reclaims), Promise.all(saves)]);
    for (const [n, { job }] of leases.entries()) {
      const taken = reclaimed[n]?.entries === 1;
      assert.equal(await store.loadCheckpoint(job), taken ? null : '"half"', `job ${n}: ${saved[n]}`);
      if (!taken) assert.equal(saved[n], "held");
    }
  });

  test(
    "a row locked by a user's own transaction does not keep other leases from being renewed or reclaimed",
    testAllOnly,
    async () => {
      const [locked, free] = await expired(2);
      assert.ok(locked && free);
      const { end } = await transaction(`select 1 from "${schema}".jobs where key = ${locked.job} for update`);
      const renewals = [locked, free].map(({ job, fence }) => ({ job, fence, lease: LEASE }));
      assert.deepEqual(await store.renew(renewals), ["held", "held"]);
      const stale = await store.recoveries.stale({ dead: [], skewed: false, limit: 10 });
      assert.deepEqual(
        stale.map(({ job }) => job),
        [locked.job],
      );
      pass(clock, LEASE);
      const judgements = (await store.recoveries.stale({ dead: [], skewed: false, limit: 10 })).map((lease) =>
        judged(lease, "crashed"),
      );
      assert.equal(judgements.length, 2);
      assert.equal((await store.recoveries.reclaim(judgements, "test")).entries, 1);
      assert.deepEqual(await store.inspect([locked, free]), ["held", "lost"]);
      await end("rollback");
      assert.equal((await store.recoveries.reclaim(judgements, "test")).entries, 1);
    },
  );

  test("a lease whose row is locked for a moment is renewed at the first call", testAllOnly, async () => {
    const [lease] = await expired(1);
    assert.ok(lease);
    const { tx, end } = await transaction(`select 1 from "${schema}".jobs where key = ${lease.job} for update`);
    // The server itself lets go of it, however busy this process is.
    const over = tx.rows("select pg_sleep(0.03); rollback").then(() => end("rollback"));
    assert.deepEqual(await store.renew([{ job: lease.job, fence: lease.fence, lease: LEASE }]), ["held"]);
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: false, limit: 10 }), []);
    await over;
  });
});

function save(one: PostgresStore, draft: Partial<ScheduleDraft> & { nextAt: number }): Promise<StoredSchedule> {
  const rest = { cron: "0 * * * *", timezone: "UTC", missed: "once", within: null, overlap: true } as const;
  return one.schedules.save({ key: "work", template: newJob(), ...rest, ...draft });
}

function halves(stores: PostgresStore[]): [PostgresStore[], PostgresStore[]] {
  return [stores.slice(0, stores.length / 2), stores.slice(stores.length / 2)];
}

function turn(stores: readonly PostgresStore[], n: number): PostgresStore {
  return stores[n % stores.length] as PostgresStore;
}
