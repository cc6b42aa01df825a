import assert from "node:assert/strict";
import { type AuditHead, appendToHead, NO_ENTRY, UNKNOWN_ACTOR } from "../../src/core/recovery/audit.ts";
import type { AuditEntry } from "../../src/store/audit.ts";
import type { Store } from "../../src/store/store.ts";
import { bytes, everything, paused, resuming, started, STOPPED, tokenOf } from "./build-parts.ts";
import {
  add,
  addOne,
  auditHead,
  badJob,
  claim,
  judged,
  lockOf,
  newJob,
  pass,
  register,
  running,
  settle,
  SUCCEEDED,
  takeBack,
  saveCheckpoint,
  breakLock,
} from "./parts.ts";
import type { Check } from "./suite.ts";

const FAILED = { kind: "error", error: { name: "Error", message: "the secret is hunter2" }, retry: false } as const;

export function auditCases(check: Check): void {
  check("a new database has a valid audit without entries", async ({ store }) => {
    assert.deepEqual(await store.audit.page({ after: 0, limit: 10 }), []);
    assert.deepEqual(await auditHead(store), NO_ENTRY);
    assert.deepEqual(await store.audit.verify({ limit: 10 }), { head: NO_ENTRY, entries: 0, more: false, fault: null });
  });

  check("an operator's action on jobs writes an entry with the states before and after", async ({ store, clock }) => {
    const [waiting, chosen] = (await add(store, {}, { id: "mine", queue: "other" })) as [string, string];
    const failed = await running(store, { name: "broken" });
    await settle(store, failed, FAILED);
    pass(clock, 1_000);
    await store.cancel(waiting);
    await store.cancel(chosen);
    await store.retry(failed.id);
    await store.prune({ state: "cancelled", limit: 10 });
    const at = clock.now();
    const by = UNKNOWN_ACTOR;
    const work = { name: "work", queue: "work" };
    const other = { name: "work", queue: "other" };
    const broken = { name: "broken", queue: "broken" };
    const cancelled = { at, by, action: "job.cancelled" };
    assert.deepEqual(await store.audit.page({ after: 0, limit: 10 }), [
      {
        seq: 1,
        ...cancelled,
        subject: `job:${waiting}`,
        before: { ...work, state: "pending" },
        after: { ...work, state: "cancelled" },
      },
      {
        seq: 2,
        ...cancelled,
        subject: "job:mine",
        before: { ...other, state: "pending" },
        after: { ...other, state: "cancelled" },
      },
      {
        seq: 3,
        at,
        by,
        action: "job.retried",
        subject: `job:${failed.id}`,
        before: { ...broken, state: "failed" },
        after: { ...broken, state: "pending" },
      },
      {
        seq: 4,
        at,
        by,
        action: "jobs.removed",
        subject: "jobs:cancelled",
        before: null,
        after: { state: "cancelled", jobs: 2 },
      },
    ]);
    await isWhole(store);
  });

  check("an operator's action on queues, locks, schedules, sinks and processes writes an entry", async (ground) => {
    const { store, clock } = ground;
    const acquiredAt = clock.now();
    await store.locks.acquire("nightly", "agent-1", "the token", 5_000);
    const nextAt = clock.now() + 60_000;
    const when = { cron: "0 * * * *", timezone: "UTC", missed: "once", within: null, overlap: true } as const;
    await store.events.position({ name: "hook", kind: "webhook" });
    const { revision } = await store.schedules.save({ key: "hourly", ...when, template: newJob(), nextAt });
    const process = await store.processes.register({ pid: 7, host: "here", boot: "boot", program: "worker", stoppable: true });
    await store.queues.setPaused("q", true);
    await store.queues.setPaused("q", false);
    await breakLock(store, "nightly");
    await store.schedules.update("hourly", "paused");
    await store.schedules.update("hourly", { resumed: nextAt + 1, revision });
    await store.schedules.trigger("hourly");
    await store.schedules.update("hourly", "removed");
    await store.events.dropSink("hook");
    await store.processes.update(process, { stop: 9_000 });
    const lock = { holder: "agent-1", acquiredAt, expiresAt: acquiredAt + 5_000, stale: false };
    const named = { pid: 7, host: "here", program: "worker" };
    const entries = await store.audit.page({ after: 0, limit: 20 });
    assert.deepEqual(
      entries.map(({ action, subject, before, after }) => [action, subject, before, after]),
      [
        ["schedule.saved", "schedule:hourly", null, { job: "work", ...when, paused: false, nextAt }],
        ["queue.paused", "queue:q", { paused: false }, { paused: true }],
        ["queue.resumed", "queue:q", { paused: true }, { paused: false }],
        ["lock.broken", "lock:nightly", lock, null],
        ["schedule.paused", "schedule:hourly", { paused: false }, { paused: true }],
        ["schedule.resumed", "schedule:hourly", { paused: true }, { paused: false, nextAt: nextAt + 1 }],
        ["schedule.triggered", "schedule:hourly", null, { scheduledFor: clock.now() }],
        ["schedule.removed", "schedule:hourly", { job: "work", ...when, paused: false, nextAt: nextAt + 1 }, null],
        ["sink.forgotten", "sink:hook", { kind: "webhook", cursor: 0 }, null],
        ["process.stop_asked", `process:${process}`, named, { ...named, drain: 9_000 }],
      ],
    );
    const told = await store.events.page({ after: 0, limit: 20 });
    assert.deepEqual(
      told.map(({ type }) => type),
      entries.map(({ action }) => action),
      "and each event has the name of its audit entry",
    );
    assert.doesNotMatch(JSON.stringify([entries, told]), /the token/);
    await isWhole(store);
  });

  check("a changed schedule writes an entry, and an unchanged one does not", async (ground) => {
    const { store, clock } = ground;
    const when = { cron: "0 * * * *", timezone: "UTC", missed: "once", within: null, overlap: true } as const;
    const nextAt = clock.now() + 60_000;
    const save = (more: object) =>
      store.schedules.save({ key: "k", ...when, template: newJob({ input: '{"password":"hunter2"}' }), nextAt, ...more });
    await save({});
    await save({ nextAt: nextAt + 60_000 });
    await save({ cron: "30 * * * *", nextAt: nextAt + 1 });
    await save({ cron: "30 * * * *", template: newJob({ input: '{"password":"hunter3"}' }) });
    const entries = await store.audit.page({ after: 0, limit: 10 });
    const hourly = { job: "work", ...when, paused: false, nextAt };
    const later = { ...hourly, cron: "30 * * * *", nextAt: nextAt + 1 };
    assert.deepEqual(
      entries.map(({ action, subject, before, after }) => [action, subject, before, after]),
      [
        ["schedule.saved", "schedule:k", null, hourly],
        ["schedule.saved", "schedule:k", hourly, later],
        ["schedule.saved", "schedule:k", later, { ...later, template: "changed" }],
      ],
    );
    assert.equal((await store.events.page({ after: 0, limit: 10 })).length, 3);
    assert.doesNotMatch(JSON.stringify(entries), /hunter/);
    await isWhole(store);
  });

  check("a lock is broken as stale only if it is stale, and by its name", async ({ store, clock }) => {
    await store.locks.acquire("l", "agent-1", "t", 5_000);
    assert.equal(await breakLock(store, "l", { stale: true }), false);
    assert.equal((await lockOf(store, "l"))?.holder, "agent-1");
    pass(clock, 5_000);
    assert.equal(await breakLock(store, "l", { stale: true }), true);
    assert.equal(await lockOf(store, "l"), null);
    const [entry, ...others] = await store.audit.page({ after: 0, limit: 10 });
    assert.partialDeepStrictEqual(entry, { action: "lock.broken", before: { holder: "agent-1", stale: true } });
    assert.deepEqual(others, []);
  });

  check("the use of a token writes an entry with its user, and without the token", async ({ store }) => {
    const led = await paused(store);
    await store.builds.start(resuming(led, { approval: { token: tokenOf(1), budget: { usd: 9 } } }));
    const lock = { pipeline: "docs", token: "token-2" };
    await store.builds.move(led.build.id, { move: "pause", reason: "budget_exceeded" }, lock, { bytes: bytes(2) });
    await store.builds.authorize(led.build.id, { token: tokenOf(2), budget: { usd: 12 } }, "alice");
    const entries = await store.audit.page({ after: 0, limit: 10, subject: led.build.id });
    const used = entries.filter(({ after }) => (after as { token?: string }).token === "used");
    assert.deepEqual(
      used.map(({ action, by }) => [action, by]),
      [
        ["build.resumed", "holdfast run docs.ts (pid 4321 on here)"],
        ["build.approved", "alice"],
      ],
    );
    for (const n of [1, 2]) assert.ok(!JSON.stringify(entries).includes(tokenOf(n)));
    await isWhole(store);
  });

  check("an action that changes nothing writes no entry", async ({ store }) => {
    const { job, fence, id } = await running(store);
    await store.settle([{ job, fence, outcome: SUCCEEDED }]);
    await store.schedules.save({
      key: "paused",
      cron: "0 * * * *",
      timezone: "UTC",
      missed: "skip",
      within: null,
      overlap: true,
      template: newJob(),
      nextAt: 9e12,
    });
    await store.schedules.update("paused", "paused");
    await store.queues.setPaused("q", true);
    const before = await auditHead(store);
    assert.equal(await store.cancel(id), false);
    assert.equal(await store.cancel("absent"), false);
    assert.equal(await store.retry(id), false);
    assert.equal((await store.prune({ state: "failed", limit: 10 })).removed, 0);
    assert.equal(await store.queues.setPaused("q", true), false);
    assert.equal(await store.queues.setPaused("other", false), false);
    assert.equal(await breakLock(store, "absent"), false);
    assert.equal(await store.schedules.update("paused", "paused"), true);
    assert.equal(await store.schedules.update("none", "removed"), false);
    assert.equal(await store.schedules.trigger("none"), null);
    assert.equal(await store.events.dropSink("none"), false);
    assert.equal(await store.processes.update(await register(store), { stop: 1_000 }), false);
    assert.deepEqual(await auditHead(store), before);
  });

  check("automatic transitions of jobs write no entry, and entries never contain job inputs", async ({ store, clock }) => {
    const input = '{"password":"hunter2"}';
    const ids = await add(store, { input }, { input }, { input }, { input, key: "hunter2" });
    const [first, second, third] = (await claim(store, { max: 3 })) as [never, never, never];
    await settle(store, first, { kind: "succeeded", output: '"hunter2"' });
    await settle(store, second, FAILED);
    await saveCheckpoint(store, third, '"hunter2"');
    pass(clock, 60_000);
    await store.prune({ expired: { minAge: 0 }, limit: 10 });
    assert.deepEqual(await auditHead(store), NO_ENTRY);
    for (const id of ids) await store.cancel(id);
    await store.retry(ids[1] as string);
    await store.prune({ state: "succeeded", limit: 10 });
    const entries = await store.audit.page({ after: 0, limit: 10 });
    assert.equal(entries.length, 4);
    assert.doesNotMatch(JSON.stringify(entries), /hunter/);
  });

  check("a failed action has no entry, and other actions of the commit have theirs", async ({ store }) => {
    const [a, , b] = await Promise.allSettled([
      store.queues.setPaused("a", true),
      store.enqueue([badJob()]),
      store.queues.setPaused("b", true),
    ]);
    assert.deepEqual([a.status, b.status], ["fulfilled", "fulfilled"]);
    const led = await paused(store);
    const before = await everything(store);
    const refused = store.builds.authorize(led.build.id, { token: "wrong", budget: { usd: 9 } }, "mallory");
    const [, c] = await Promise.allSettled([refused, store.queues.setPaused("c", true)]);
    assert.equal(c.status, "fulfilled");
    const entries = await store.audit.page({ after: (before as { audit: AuditEntry[] }).audit.length, limit: 10 });
    assert.deepEqual(
      entries.map(({ action, subject }) => [action, subject]),
      [["queue.paused", "queue:c"]],
    );
    await isWhole(store);
  });

  check("an action outside the database writes an entry and an event", async ({ store, clock }) => {
    await store.audit.record({ action: "backup.made", name: "/backups/1.db", after: { bytes: 4_096 } });
    const [entry] = await store.audit.page({ after: 0, limit: 10 });
    const rest = { before: null, after: { bytes: 4_096 } };
    assert.deepEqual(entry, {
      seq: 1,
      at: clock.now(),
      by: UNKNOWN_ACTOR,
      action: "backup.made",
      subject: "backup:/backups/1.db",
      ...rest,
    });
    const [event] = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual([event?.type, event?.data], ["backup.made", { backup: "/backups/1.db" }]);
    await store.audit.record({ action: "build.token_refused", name: "b1", build: "b1", after: { refused: "TOKEN_USED" } });
    const [refused] = await store.audit.page({ after: 1, limit: 10 });
    assert.deepEqual([refused?.subject, refused?.after], ["b1", { refused: "TOKEN_USED" }], "a build's subject is its id");
    const [, told] = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual([told?.type, told?.build, told?.data], ["build.token_refused", "b1", { build: "b1" }]);
  });

  check("pages continue after a number, from the first or up to the newest, for all or one subject", async ({ store }) => {
    for (const queue of ["a", "b", "a", "c", "a"]) {
      await store.queues.setPaused(queue, true);
      await store.queues.setPaused(queue, false);
    }
    const seqs = async (query: Parameters<Store["audit"]["page"]>[0]) => (await store.audit.page(query)).map(({ seq }) => seq);
    assert.deepEqual(await seqs({ after: 0, limit: 3 }), [1, 2, 3]);
    assert.deepEqual(await seqs({ after: 8, limit: 3 }), [9, 10]);
    assert.deepEqual(await seqs({ after: 0, limit: 3, last: true }), [8, 9, 10]);
    assert.deepEqual(await seqs({ after: 9, limit: 3, last: true }), [10]);
    assert.deepEqual(await seqs({ after: 2, limit: 3, subject: "queue:a" }), [5, 6, 9]);
    assert.deepEqual(await seqs({ after: 0, limit: 3, subject: "queue:a", last: true }), [6, 9, 10]);
    assert.deepEqual(await seqs({ after: 0, limit: 3, subject: "queue:nothing" }), []);
  });

  check("each entry is chained to the one before it, and the chain is verified page by page", async ({ store }) => {
    for (let n = 0; n < 7; n++) await store.queues.setPaused(`q${n}`, true);
    const entries = await store.audit.page({ after: 0, limit: 10 });
    let head = NO_ENTRY;
    for (const entry of entries) head = appendToHead(head, { ...entry, before: json(entry.before), after: json(entry.after) });
    assert.deepEqual(await auditHead(store), head, "as core chains what can be read");
    const first = await store.audit.verify({ limit: 3 });
    assert.deepEqual([first.head.seq, first.entries, first.more], [3, 3, true]);
    const second = await store.audit.verify({ from: first.head, limit: 4 });
    assert.deepEqual(second, { head, entries: 4, more: false, fault: null });
    const wrong = await store.audit.verify({ from: { seq: 3, hash: NO_ENTRY.hash }, limit: 10 });
    assert.deepEqual([wrong.fault?.kind, wrong.fault?.seq, wrong.head.seq], ["altered", 4, 3]);
  });

  check("a head kept elsewhere reveals what the database alone cannot know", async ({ store }) => {
    const heads: AuditHead[] = [];
    for (let n = 0; n < 4; n++) {
      await store.queues.setPaused(`q${n}`, true);
      heads.push(await auditHead(store));
    }
    const verify = async (known: AuditHead[], limit = 10) => {
      const { fault, head } = await store.audit.verify({ limit, known });
      return fault === null ? head.seq : [fault.kind, fault.seq, head.seq];
    };
    assert.equal(await verify(heads), 4);
    assert.deepEqual(await verify([{ seq: 6, hash: "f".repeat(64) }]), ["cut", 5, 4], "two entries were there once");
    assert.deepEqual(await verify([{ seq: 2, hash: "f".repeat(64) }]), ["altered", 2, 1], "it was another then");
    assert.equal(await verify([{ seq: 6, hash: "f".repeat(64) }], 2), 2, "only at the end is it known");
  });

  check.shared("concurrent actions write one chain, in the order of their commits", async ({ store, another, reopen }) => {
    const stores = [store, await another(), await another()];
    const ids = await add(store, ...Array.from({ length: 30 }, () => ({})));
    const followed: number[] = [];
    await Promise.all(
      stores.map(async (one, n) => {
        for (let turn = 0; turn < 10; turn++) {
          const acts = [
            one.cancel(ids[turn * 3 + n] as string),
            one.queues.setPaused(`q${n}`, true),
            one.queues.setPaused(`q${n}`, false),
          ];
          assert.deepEqual(await Promise.all(acts), [true, true, true]);
          const seen = await store.audit.page({ after: followed.at(-1) ?? 0, limit: 100 });
          for (const { seq } of seen) if (seq > (followed.at(-1) ?? 0)) followed.push(seq);
        }
      }),
    );
    const rest = await store.audit.page({ after: followed.at(-1) ?? 0, limit: 100 });
    followed.push(...rest.map(({ seq }) => seq));
    assert.deepEqual(
      followed,
      Array.from({ length: 90 }, (_, i) => i + 1),
      "who follows it misses none",
    );
    const head = await auditHead(store);
    const after = await reopen();
    assert.deepEqual(await auditHead(after), head);
    await after.queues.setPaused("another", true);
    assert.equal((await auditHead(after)).seq, 91);
    await isWhole(after);
  });

  check("reclaimed leases write an entry with the reason, for recovery or an operator", async ({ store, clock }) => {
    const [first, second] = [await running(store), await running(store)];
    pass(clock, 60_000);
    assert.equal((await takeBack(store, "crashed", first)).entries, 1);
    assert.equal((await store.recoveries.reclaim([judged(second, "stalled")], "reclaimed by an operator", "alice")).entries, 1);
    assert.equal((await takeBack(store, "crashed", first)).entries, 0, "what is not that lease any more is left alone");
    const counts = { jobs: 1, quarantined: 0, failed: 0 };
    assert.deepEqual(
      (await store.audit.page({ after: 0, limit: 10 })).map(({ by, action, subject, after }) => [by, action, subject, after]),
      [
        ["recovery", "recovery.reclaimed", "leases", { cause: "a test", ...counts }],
        ["alice", "recovery.reclaimed", "leases", { cause: "reclaimed by an operator", ...counts }],
      ],
    );
    await isWhole(store);
  });

  check("transitions and recoveries of a build are in the same chain", async ({ store }) => {
    const { build, lock, lead } = await started(store);
    await store.queues.setPaused("q", true);
    await store.builds.move(build.id, STOPPED, lock);
    const second = await started(store, { token: "token-2" });
    await store.processes.unregister(second.lead.holder);
    await store.builds.orphan({ dead: [lead.holder], alive: [] }, "orchestrator_lost");
    await addOne(store);
    assert.deepEqual(
      (await store.audit.page({ after: 0, limit: 10 })).map(({ action, by }) => [action, by.split(" ")[0]]),
      [
        ["build.started", "holdfast"],
        ["queue.paused", UNKNOWN_ACTOR],
        ["build.crashed", "holdfast"],
        ["build.abandoned", "holdfast"],
        ["build.started", "holdfast"],
        ["build.crashed", "recovery"],
      ],
    );
    await isWhole(store);
  });
}

function json(value: unknown): string | null {
  return value === null ? null : JSON.stringify(value);
}

/** From the first entry to the head that the database has. */
async function isWhole(store: Store): Promise<void> {
  const check = await store.audit.verify({ limit: 1_000 });
  assert.equal(check.fault, null);
  assert.deepEqual(check.head, await auditHead(store));
}
