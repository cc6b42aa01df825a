import assert from "node:assert/strict";
import type { Event } from "../../src/core/jobs/event.ts";
import type { Claimed, Declaration, Store } from "../../src/store/store.ts";
import { add, addOne, badJob, claim, claimOne, declaring, ERROR, newJob, running, settle, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";

const TOLD: Declaration = declaring([], { settings: { events: true, keep: {} } });

export function jobEventCases(check: Check): void {
  check("each step of a job is one event, in order, with its own dedupe key", async ({ store, clock }) => {
    await store.queues.declare([TOLD]);
    const held = await running(store, { policy: { crashes: 2 } });
    await settle(store, held, { kind: "error", error: { ...ERROR, stack: "secret" }, delay: 0 });
    await takeBack(store, "crashed", await claimOne(store));
    await settle(store, await claimOne(store), { kind: "error", error: ERROR, retry: false });
    await store.retry(held.id);
    await settle(store, await claimOne(store), { kind: "released" });
    await settle(store, await claimOne(store), { kind: "succeeded", output: '"secret"' });
    const events = await store.events.page({ after: 0, limit: 100 });
    const own = events.filter(({ job }) => job === held.id);
    assert.deepEqual(typesOf(own), [
      "job.enqueued",
      "job.started",
      "job.returned",
      "job.started",
      "job.returned",
      "job.started",
      "job.failed",
      "job.retried",
      "job.started",
      "job.returned",
      "job.started",
      "job.succeeded",
    ]);
    assert.equal(new Set(events.map(({ dedupeKey }) => dedupeKey)).size, events.length);
    for (const { at, data } of own) {
      assert.equal(at, clock.now());
      const { id, name, queue, version } = data as Record<string, unknown>;
      assert.deepEqual({ id, name, queue, version }, { id: held.id, name: "work", queue: "work", version: 1 });
      assert.equal(JSON.stringify(data).includes("secret"), false, "neither payloads nor stacks are told");
    }
    assert.deepEqual((own[2] as { data: { error?: unknown } }).data.error, ERROR);
  });

  check("jobs that are claimed and settled together have one event each", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const ids = await add(store, ...Array.from({ length: 40 }, () => ({})));
    const held = await claim(store);
    await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    const events = await store.events.page({ after: 0, limit: 1_000 });
    for (const type of ["job.enqueued", "job.started", "job.succeeded"]) {
      const told = events.filter((event) => event.type === type).map(({ job }) => job);
      assert.deepEqual(told.toSorted(), ids.toSorted(), type);
    }
    assert.equal(events.length, 120);
  });

  for (const [what, { act, types }] of Object.entries(ENDS)) {
    check(`a job that ${what} has one event for it`, async ({ store }) => {
      await store.queues.declare([TOLD]);
      const held = await running(store, { policy: { crashes: 1 } });
      const before = await store.events.position();
      await act(store, held);
      const events = (await store.events.page({ after: before, limit: 10 })).filter(({ job }) => job === held.id);
      assert.deepEqual(typesOf(events), types);
    });
  }

  check("a job that waits for, is released by or is cancelled by its upstream has an event for it", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const upstream = await running(store, { name: "silent" });
    const [child, other] = (await add(store, { after: [upstream.id] }, { name: "silent", after: [upstream.id] })) as [
      string,
      string,
    ];
    const grandchild = await addOne(store, { after: [other] });
    await settle(store, upstream, { kind: "error", error: ERROR, retry: false });
    const late = await addOne(store, { after: [upstream.id] });
    const told = (await store.events.page({ after: 0, limit: 100 })).map(({ type, job }) => [type, job]);
    assert.deepEqual(told, [
      ["job.enqueued", child],
      ["job.enqueued", grandchild],
      ["job.cancelled", child],
      ["job.cancelled", grandchild],
      ["job.enqueued", late],
      ["job.cancelled", late],
    ]);
  });

  check("follow-ups have their events with the success that creates them", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const held = await running(store);
    await settle(store, held, SUCCEEDED, [newJob({ followUpId: "f-1" }), newJob({ name: "silent", followUpId: "f-2" })]);
    const events = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(
      events.slice(2).map(({ type, job }) => [type, job]),
      [
        ["job.succeeded", held.id],
        ["job.enqueued", "f-1"],
      ],
    );
  });

  check("queues without `events` write events only for operators' actions", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const silent = await running(store, { name: "silent" });
    await settle(store, silent, { kind: "error", error: ERROR, retry: false });
    assert.deepEqual(await store.events.page({ after: 0, limit: 10 }), []);
    await store.retry(silent.id);
    await store.cancel(silent.id);
    const events = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(
      events.map(({ type, job }) => [type, job]),
      [
        ["job.retried", silent.id],
        ["job.cancelled", silent.id],
      ],
    );
  });

  check("a definition that declares events and enqueues in one turn has an event for its first job", async ({ store }) => {
    const id = await addOne(store, { declares: TOLD, limitKeys: [] });
    assert.deepEqual(
      (await store.events.page({ after: 0, limit: 10 })).map(({ type, job }) => [type, job]),
      [["job.enqueued", id]],
    );
  });

  check("a queue that no longer declares events writes none", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const held = await running(store);
    await store.queues.declare([declaring([], { settings: { events: false, keep: {} } })]);
    await settle(store, held, SUCCEEDED);
    assert.deepEqual(typesOf(await store.events.page({ after: 0, limit: 10 })), ["job.enqueued", "job.started"]);
  });

  check("rolled back, rejected and duplicate jobs write no event", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const [id] = (await add(store, { id: "one", key: "k" })) as [string];
    const before = await store.events.position();
    const [good, bad] = await Promise.allSettled([store.cancel("absent"), store.enqueue([newJob(), badJob()])]);
    assert.deepEqual([good.status, bad.status], ["fulfilled", "rejected"]);
    await store.enqueue([newJob({ id: "one" }), newJob({ key: "k" }), newJob({ after: ["absent"] })]);
    await store.enqueue([newJob(), newJob({ after: ["absent"] })], { whole: true });
    assert.equal(await store.retry(id), false);
    assert.equal(await store.events.position(), before);
  });

  check.inProcess("a rolled back user transaction writes no event", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const before = await store.events.position();
    const undone = store.transact((handle) => {
      store.enqueueWithin(handle, [newJob()]);
      throw new Error("no");
    });
    await assert.rejects(undone, /no/);
    assert.equal(await store.events.position(), before);
  });

  check.inProcess("a job added in the caller's own transaction has its event in that transaction", async ({ store }) => {
    await store.queues.declare([TOLD]);
    const [added] = await store.transact((handle) => store.enqueueWithin(handle, [newJob()]) as { id: string }[]);
    assert.deepEqual(
      (await store.events.page({ after: 0, limit: 10 })).map(({ type, job }) => [type, job]),
      [["job.enqueued", added?.id]],
    );
  });

  check.shared("another process learns at once that a queue declares events", async ({ store, another }) => {
    const other = await another();
    await addOne(other);
    await store.queues.declare([TOLD]);
    const held = await claimOne(other);
    await settle(other, held, SUCCEEDED);
    assert.deepEqual(typesOf(await store.events.page({ after: 0, limit: 10 })), ["job.started", "job.succeeded"]);
  });
}

const ENDS: Record<string, { types: string[]; act: (store: Store, held: Claimed) => Promise<unknown> }> = {
  succeeds: { types: ["job.succeeded"], act: (store, held) => settle(store, held, SUCCEEDED) },
  "comes back later": {
    types: ["job.returned"],
    act: (store, held) => settle(store, held, { kind: "later", error: ERROR, delay: 5 }),
  },
  "is unreadable": {
    types: ["job.quarantined"],
    act: (store, held) => settle(store, held, { kind: "unreadable", error: ERROR }),
  },
  "crashes once too often": { types: ["job.quarantined"], act: (store, held) => takeBack(store, "crashed", held) },
  stalls: { types: ["job.returned"], act: (store, held) => takeBack(store, "stalled", held) },
  "is cancelled while it runs": { types: ["job.cancelled"], act: (store, held) => store.cancel(held.id) },
};

function typesOf(events: readonly Event[]): string[] {
  return events.map(({ type }) => type);
}
