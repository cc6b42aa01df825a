import assert from "node:assert/strict";
import type { Fence, ProcessId } from "../../src/core/text/ids.ts";
import type { EventQuery } from "../../src/store/events.ts";
import type { NewJob, Store } from "../../src/store/store.ts";
import { badJob, changesDuring, claimOne, newJob, pass, register, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";

const TTL = 30_000;
const WEEK = 7 * 86_400_000;

export function eventCases(check: Check): void {
  check("a new database has no events, and 0 is the newest number", async ({ store }) => {
    assert.equal(await store.events.position(), 0);
    assert.deepEqual(await store.events.page({ after: 0, limit: 10 }), []);
    assert.deepEqual(await store.events.sinks(), []);
  });

  check("events are listed in order, each with its time and dedupe key", async ({ store, clock }) => {
    const seqs = [await happens(store, "a"), await happens(store, "b")];
    pass(clock, 5);
    seqs.push(await happens(store, "a"));
    const events = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(
      events.map(({ seq, type, at, data }) => ({ seq, type, at, data })),
      [
        { seq: seqs[0], type: "sink.forgotten", at: clock.now() - 5, data: { sink: "a" } },
        { seq: seqs[1], type: "sink.forgotten", at: clock.now() - 5, data: { sink: "b" } },
        { seq: seqs[2], type: "sink.forgotten", at: clock.now(), data: { sink: "a" } },
      ],
    );
    assert.deepEqual(
      seqs,
      seqs.toSorted((a, b) => a - b),
    );
    assert.equal(new Set(events.map(({ dedupeKey }) => dedupeKey)).size, 3);
    for (const event of events) assert.equal("job" in event || "build" in event, false, "it is about no job");
  });

  check("events are read one at a time without a gap, also by the first reader", async ({ store }) => {
    await store.enqueue([telling(), telling()]);
    const read: number[] = [];
    for (let n = 0; n < 2; n++) {
      const page = await store.events.page({ after: read.at(-1) ?? 0, limit: 1 });
      assert.equal(page.length, 1);
      read.push(...page.map(({ seq }) => seq));
    }
    assert.deepEqual(await store.events.page({ after: read.at(-1) as number, limit: 1 }), []);
    assert.deepEqual(
      (await store.events.page({ after: 0, limit: 10 })).map(({ seq }) => seq),
      read,
    );
  });

  check("a rolled back change writes no event", async ({ store }) => {
    const [good, bad] = [store.enqueue([telling()]), store.enqueue([{ ...badJob(), ...TELLS }])];
    const [{ id } = { id: "" }] = await good;
    await assert.rejects(bad);
    const events = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(
      events.map(({ type, job }) => [type, job]),
      [["job.enqueued", id]],
    );
  });

  check("a rejected write writes no event", async ({ store }) => {
    await store.enqueue([telling()]);
    const claimed = await claimOne(store);
    await takeBack(store, "stalled", claimed);
    const before = await store.events.position();
    assert.deepEqual(await store.settle([{ job: claimed.job, fence: claimed.fence, outcome: SUCCEEDED }]), ["lost"]);
    assert.equal(await store.cancel("absent"), false);
    assert.equal(await store.events.position(), before);
  });

  check("events are read from a position, with a limit, as the newest, or by type", async ({ store }) => {
    for (const name of ["a", "b", "c", "d"]) await happens(store, name);
    const names = async (query: Omit<EventQuery, "after"> & { after?: number }) =>
      (await store.events.page({ after: 0, ...query })).map(({ data }) => (data as { sink: string }).sink).join("");
    const [first] = await store.events.page({ after: 0, limit: 1 });
    assert.equal(await names({ limit: 2 }), "ab");
    assert.equal(await names({ limit: 2, after: first?.seq as number }), "bc");
    assert.equal(await names({ limit: 2, last: true }), "cd");
    assert.equal(await names({ limit: 9, after: await store.events.position() }), "");
    assert.equal(await names({ limit: 9, types: ["sink.forgotten"] }), "abcd");
    assert.equal(await names({ limit: 3, types: ["other", "sink.*"], last: true }), "bcd");
    assert.equal(await names({ limit: 9, types: ["*"] }), "abcd");
    assert.equal(await names({ limit: 9, types: ["sink.", "sink", "sinks.*", "sink.forgotten.*"] }), "");
    assert.equal(await names({ limit: 9, job: "absent" }), "");
  });

  check("a new sink starts from now, and a known one keeps its position", async ({ store, clock }) => {
    await happens(store);
    const start = await store.events.position({ name: "s", kind: "file" });
    assert.equal(start, await store.events.position());
    await happens(store);
    await happens(store);
    assert.equal(await store.events.position({ name: "s", kind: "webhook" }), start);
    const [view] = await store.events.sinks();
    assert.deepEqual(view, {
      name: "s",
      kind: "webhook",
      cursor: start,
      behind: 2,
      oldestAt: clock.now(),
      holder: null,
      failures: 0,
      failedAt: null,
      error: null,
      deliveredAt: null,
      createdAt: clock.now(),
    });
  });

  check("a sink opened in the turn of an event gets only the events after it", async ({ store }) => {
    await store.events.position({ name: "before", kind: "x" });
    await store.events.position({ name: "after", kind: "x" });
    const [, cursor] = await Promise.all([
      store.events.dropSink("before"),
      store.events.position({ name: "s", kind: "x" }),
      store.events.dropSink("after"),
    ]);
    const told = await store.events.page({ after: cursor as number, limit: 10 });
    assert.deepEqual(
      told.map(({ data }) => data),
      [{ sink: "after" }],
    );
  });

  check("the newest number is that at the time of the call", async ({ store }) => {
    await store.events.position({ name: "before", kind: "x" });
    await store.events.position({ name: "after", kind: "x" });
    const [, newest] = await Promise.all([
      store.events.dropSink("before"),
      store.events.position(),
      store.events.dropSink("after"),
    ]);
    const told = await store.events.page({ after: newest as number, limit: 10 });
    assert.deepEqual(told.map(({ data }) => data).at(-1), { sink: "after" });
    const last = store.events.position();
    await store.events.position({ name: "later", kind: "x" });
    await store.events.dropSink("later");
    assert.equal((await store.events.page({ after: await last, limit: 10 })).length, 1);
  });

  check("one process delivers at a time, and others learn its position", async ({ store }) => {
    const [one, two] = await processes(store);
    const start = await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const token = await taken(store, one);
    assert.deepEqual(await hold(store, two), { token: null, cursor: start });
    assert.deepEqual(await hold(store, one), { token: null, cursor: start }, "another one in the same process is another");
    assert.equal(await store.events.deliver("s", token, { seq: seq, ttl: TTL }), true);
    assert.deepEqual(await hold(store, two), { token: null, cursor: seq });
    assert.deepEqual(await hold(store, one, token), { token, cursor: seq }, "by its token it is kept");
    assert.equal((await store.events.sinks())[0]?.holder, one);
  });

  check("of two concurrent attempts to deliver, one succeeds", async ({ store }) => {
    const [one, two] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const got = await Promise.all([hold(store, one), hold(store, two), hold(store, one)]);
    assert.equal(got.filter((answer) => answer?.token !== null).length, 1);
  });

  check("a deliverer whose hold expired is replaced, and its late writes change nothing", async ({ store, clock }) => {
    const [one, two] = await processes(store);
    const start = await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const old = await taken(store, one);
    pass(clock, TTL - 1);
    assert.equal((await hold(store, two))?.token, null);
    pass(clock, 1);
    const token = await taken(store, two);
    assert.ok(token > old);
    assert.equal(await store.events.deliver("s", old, { seq: seq, ttl: TTL }), false);
    assert.equal(await store.events.deliver("s", old, { error: "boom", ttl: TTL }), false);
    assert.equal(await store.events.deliver("s", old, null), false);
    assert.deepEqual(await hold(store, one, old), { token: null, cursor: start });
    const [view] = await store.events.sinks();
    assert.deepEqual([view?.cursor, view?.failures, view?.holder], [start, 0, two]);
    assert.equal(await store.events.deliver("s", token, { seq: seq, ttl: TTL }), true);
  });

  check("a deliverer continues when its lease has expired but no other process replaced it", async ({ store, clock }) => {
    const [one] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const token = await taken(store, one);
    pass(clock, 10 * TTL);
    assert.deepEqual((await hold(store, one, token))?.token, token);
    pass(clock, 10 * TTL);
    assert.equal(await store.events.deliver("s", token, { seq: seq, ttl: TTL }), true);
  });

  check("a delivery, a failure and a renewal each extend the hold", async ({ store, clock }) => {
    const [one, two] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const token = await taken(store, one);
    const acts = [
      () => store.events.deliver("s", token, { seq: seq, ttl: TTL }),
      () => store.events.deliver("s", token, { error: "boom", ttl: TTL }),
      () => hold(store, one, token),
    ];
    for (const act of acts) {
      pass(clock, TTL - 1);
      assert.ok(await act());
    }
    pass(clock, TTL - 1);
    assert.equal((await hold(store, two))?.token, null);
  });

  check("a deliverer whose process is dead is replaced at once", async ({ store }) => {
    const [one, two] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const old = await taken(store, one);
    await store.processes.unregister(one);
    await taken(store, two);
    assert.equal(await store.events.deliver("s", old, { seq: seq, ttl: TTL }), false);
  });

  check("a clock that was set back extends no hold beyond its duration", async ({ store, clock }) => {
    const [one, two] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    await taken(store, one);
    pass(clock, -3_600_000);
    await taken(store, two);
  });

  check("a deliverer that leaves frees the sink at once", async ({ store }) => {
    const [one, two] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const token = await taken(store, one);
    assert.equal(await store.events.deliver("s", token, null), true);
    assert.equal(await store.events.deliver("s", token, null), false);
    assert.equal(await store.events.deliver("s", token, { seq: seq, ttl: TTL }), false, "what it left is not its own any more");
    await taken(store, two);
  });

  check("a position never moves back", async ({ store }) => {
    const [one] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seqs = [await happens(store), await happens(store)] as const;
    const token = await taken(store, one);
    await store.events.deliver("s", token, { seq: seqs[1], ttl: TTL });
    await store.events.deliver("s", token, { seq: seqs[0], ttl: TTL });
    assert.equal((await store.events.sinks())[0]?.cursor, seqs[1]);
  });

  check("failures are counted with the last error until a delivery succeeds", async ({ store, clock }) => {
    const [one] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    const token = await taken(store, one);
    await store.events.deliver("s", token, { error: "first", ttl: TTL });
    pass(clock, 1_000);
    await store.events.deliver("s", token, { error: "second", ttl: TTL });
    const told = async () => {
      const [view] = await store.events.sinks();
      return [view?.failures, view?.error, view?.failedAt, view?.deliveredAt];
    };
    assert.deepEqual(await told(), [2, "second", clock.now(), null]);
    await store.events.deliver("s", token, { seq: seq, ttl: TTL });
    assert.deepEqual(await told(), [0, null, null, clock.now()]);
  });

  check("a removed sink loses its position, and its deliverer is notified", async ({ store }) => {
    const [one] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const token = await taken(store, one);
    assert.equal(await store.events.dropSink("s"), true);
    assert.equal(await store.events.dropSink("s"), false);
    assert.equal(await hold(store, one, token), null);
    const seq = await happens(store);
    assert.equal(await store.events.position({ name: "s", kind: "x" }), seq, "it starts anew");
    assert.equal(
      await store.events.deliver("s", token, { seq: seq + 1, ttl: TTL }),
      false,
      "an old token is worth nothing in its new life",
    );
    assert.deepEqual(await hold(store, one, token).then((held) => held?.token !== token), true);
  });

  check("a rejected or empty delivery writes nothing", async ({ store }) => {
    const [one, two] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const other = ((await taken(store, one)) + 1) as Fence;
    const changes = await changesDuring(store, async () => {
      await hold(store, two);
      await hold(store, two, other);
      await store.events.position({ name: "s", kind: "x" });
      await store.events.deliver("s", other, { seq: 1, ttl: TTL });
      await store.events.dropSink("absent");
      await store.events.trim({ olderThan: WEEK, limit: 100 });
    });
    assert.deepEqual(changes, []);
  });

  check("only old events that every sink has passed are trimmed, in steps", async ({ store, clock }) => {
    const [one] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    await store.events.position({ name: "slow", kind: "x" });
    const seqs: number[] = [];
    for (let i = 0; i < 5; i++) seqs.push(await happens(store));
    const trim = (limit = 100) => store.events.trim({ olderThan: WEEK, limit });
    const left = async () => (await store.events.page({ after: 0, limit: 100 })).map(({ seq }) => seq);

    const token = await taken(store, one);
    await store.events.deliver("s", token, { seq: seqs[4] as number, ttl: TTL });
    pass(clock, WEEK + 1);
    assert.equal(await trim(), 0, "the slow one needs them all");
    const slow = (await hold(store, one, null, "slow"))?.token as Fence;
    await store.events.deliver("slow", slow, { seq: seqs[3] as number, ttl: TTL });
    const young = await happens(store);
    assert.equal(await trim(3), 3);
    assert.deepEqual(await left(), [seqs[3], seqs[4], young]);
    assert.equal(await trim(3), 1);
    await store.events.deliver("slow", slow, { seq: young, ttl: TTL });
    await store.events.deliver("s", token, { seq: young, ttl: TTL });
    assert.equal(await trim(3), 1);
    assert.deepEqual(await left(), [young], "what is young stays, to look back at");
    assert.equal(await trim(3), 0);
  });

  check("old events are trimmed without a sink, and their numbers are never reused", async ({ store, clock }) => {
    const newest = await happens(store);
    pass(clock, WEEK + 1);
    assert.equal(await store.events.trim({ olderThan: WEEK, limit: 100 }), 1);
    assert.deepEqual(await store.events.page({ after: 0, limit: 10 }), []);
    assert.equal(await store.events.position(), newest);
    assert.ok((await happens(store)) > newest);
  });

  check("an event dated far in the future does not prevent trimming", async ({ store, clock }) => {
    const now = clock.now();
    clock.set(now + 365 * 86_400_000);
    await happens(store);
    clock.set(now);
    await happens(store);
    pass(clock, WEEK + 1);
    assert.equal(await store.events.trim({ olderThan: WEEK, limit: 100 }), 2);
  });

  check.shared("events, positions and failures survive a reopening", async ({ store, reopen }) => {
    const [one] = await processes(store);
    await store.events.position({ name: "s", kind: "x" });
    const seq = await happens(store);
    await happens(store);
    const token = await taken(store, one);
    await store.events.deliver("s", token, { seq: seq, ttl: TTL });
    await store.events.deliver("s", token, { error: "boom", ttl: TTL });
    const before = [await store.events.page({ after: 0, limit: 10 }), await store.events.sinks()];
    const again = await reopen();
    assert.deepEqual([await again.events.page({ after: 0, limit: 10 }), await again.events.sinks()], before);
  });

  check.shared("a deliverer in another process is visible, and two never hold the same sink", async ({ store, another }) => {
    const other = await another();
    const [one, two] = [await register(store), await register(other)];
    await store.events.position({ name: "s", kind: "x" });
    const got = await Promise.all([hold(store, one), hold(other, two)]);
    assert.equal(got.filter((answer) => answer?.token !== null).length, 1);
  });
}

/** A job of a queue that asks for events. */
const TELLS = { declares: { queue: "work", name: "work", settings: { events: true, keep: {} }, limits: [] } };
function telling(): NewJob {
  return { ...newJob(), ...TELLS };
}

/** An operator's act that is always told: something to deliver. */
async function happens(store: Store, name = "something"): Promise<number> {
  await store.events.position({ name, kind: "test" });
  await store.events.dropSink(name);
  return store.events.position();
}

async function processes(store: Store): Promise<[ProcessId, ProcessId]> {
  return [await register(store, "one"), await register(store, "two")];
}

function hold(store: Store, holder: ProcessId, token: Fence | null = null, name = "s") {
  return store.events.hold(name, { holder, ttl: TTL, token });
}

async function taken(store: Store, holder: ProcessId): Promise<Fence> {
  const token = (await hold(store, holder))?.token;
  assert.ok(token, "the right to deliver");
  return token;
}
