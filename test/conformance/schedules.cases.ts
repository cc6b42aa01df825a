import assert from "node:assert/strict";
import type { ScheduleDraft, StoredSchedule, Tick } from "../../src/store/queues.ts";
import type { Store } from "../../src/store/store.ts";
import { add, changesDuring, claim, claimOne, newJob, pass, scheduleOf, see, seeAll, settle, SUCCEEDED } from "./parts.ts";
import type { Check } from "./suite.ts";

const HOUR = 3_600_000;

export function scheduleCases(check: Check): void {
  check("a saved schedule is found by its key", async ({ store, clock }) => {
    assert.deepEqual(await store.schedules.list(), []);
    assert.equal(await scheduleOf(store, "nightly"), null);
    const nextAt = clock.now() + HOUR;
    const saved = await save(store, { key: "nightly", within: 5_000, missed: "all", overlap: false, nextAt });
    assert.deepEqual(saved, {
      key: "nightly",
      job: "work",
      cron: "0 * * * *",
      timezone: "UTC",
      missed: "all",
      within: 5_000,
      overlap: false,
      paused: false,
      nextAt,
      revision: saved.revision,
    });
    await save(store, { key: "daily", nextAt });
    assert.deepEqual(await scheduleOf(store, "nightly"), saved);
    assert.deepEqual(
      (await store.schedules.list()).map(({ key }) => key),
      ["daily", "nightly"],
    );
    assert.deepEqual(await seeAll(store), [], "and no job yet");
  });

  check("a schedule saved with the same pattern and zone keeps its next tick, and updates the rest", async (ground) => {
    const { store, clock } = ground;
    const first = await save(store, { nextAt: clock.now() });
    const template = newJob({ name: "other", input: '"new"' });
    const again = await save(store, { nextAt: clock.now() + HOUR, missed: "skip", overlap: false, template });
    assert.equal(again.nextAt, first.nextAt, "a tick that is due stays due");
    assert.notEqual(again.revision, first.revision);
    assert.deepEqual([again.job, again.missed, again.overlap], ["other", "skip", false]);
    assert.equal(await store.schedules.tick(tickOf(again)), true);
    assert.deepEqual(
      (await seeAll(store)).map(({ name, input }) => [name, input]),
      [["other", "new"]],
    );
    assert.equal((await store.schedules.list()).length, 1);
  });

  for (const change of [{ cron: "30 * * * *" }, { timezone: "Europe/Berlin" }]) {
    check(`a schedule saved with ${JSON.stringify(change)} starts again with the given tick`, async ({ store, clock }) => {
      await save(store, { nextAt: clock.now() });
      const nextAt = clock.now() + HOUR;
      assert.equal((await save(store, { nextAt, ...change })).nextAt, nextAt);
      assert.deepEqual(await dueIn(store, clock), []);
    });
  }

  check("schedules are due from the instant of their tick on, the most overdue first", async ({ store, clock }) => {
    assert.deepEqual(await store.schedules.list({ due: true }), []);
    const late = await save(store, { key: "late", nextAt: clock.now() + 2_000 });
    const soon = await save(store, { key: "soon", nextAt: clock.now() + 1_000 });
    pass(clock, 999);
    assert.deepEqual(await dueIn(store, clock), []);
    assert.deepEqual(await store.schedules.list({ due: true }), [soon], "it ticks next");
    pass(clock, 1);
    assert.deepEqual(await store.schedules.list({ due: true }), [soon]);
    pass(clock, 1_000);
    assert.deepEqual(await store.schedules.list({ due: true }), [soon, late]);
  });

  check("a tick adds a job for each instant, in order, and advances the schedule", async ({ store, clock }) => {
    const start = clock.now();
    const schedule = await save(store, { nextAt: start, template: newJob({ input: '{"n":7}', priority: 3, queue: "q" }) });
    pass(clock, 5_000);
    const fire = [start, start + 1_000, start + 2_000];
    const changes = await changesDuring(store, async () => {
      assert.equal(await store.schedules.tick(tickOf(schedule, { fire, nextAt: start + HOUR })), true);
    });
    assert.ok(changes.some(({ ready }) => ready?.has("q")));
    const claimed = await claim(store);
    assert.deepEqual(
      claimed.map(({ scheduledFor, input, priority, queue }) => [scheduledFor, input, priority, queue]),
      fire.map((at) => [at, '{"n":7}', 3, "q"]),
    );
    assert.equal((await see(store, claimed[0]?.id ?? "")).runAt, start);
    const moved = (await scheduleOf(store, "work")) ?? assert.fail();
    assert.deepEqual([moved.nextAt, moved.lastAt], [start + HOUR, start + 2_000]);
  });

  check("a tick without instants only advances the schedule", async ({ store, clock }) => {
    const schedule = await save(store, { nextAt: clock.now() });
    assert.equal(await store.schedules.tick(tickOf(schedule, { fire: [], nextAt: clock.now() + HOUR })), true);
    assert.deepEqual(await seeAll(store), []);
    const moved = (await scheduleOf(store, "work")) ?? assert.fail();
    assert.deepEqual([moved.nextAt, moved.lastAt], [clock.now() + HOUR, undefined]);
  });

  check("a tick that two callers have read is executed once", async ({ store, clock }) => {
    const schedule = await save(store, { nextAt: clock.now() });
    const tick = tickOf(schedule);
    const won = await Promise.all([store.schedules.tick(tick), store.schedules.tick(tick), store.schedules.tick(tick)]);
    assert.deepEqual(won, [true, false, false]);
    assert.equal(await store.schedules.tick(tick), false);
    assert.equal((await seeAll(store)).length, 1);
  });

  check.shared("a tick that many processes have read is executed once", async ({ store, another, clock }) => {
    const others = [store, await another(), await another(), await another()];
    let schedule = await save(store, { nextAt: clock.now() });
    for (let round = 1; round <= 20; round++) {
      const seen = schedule;
      const won = await Promise.all(others.map((one) => one.schedules.tick(tickOf(seen))));
      assert.equal(won.filter(Boolean).length, 1, `round ${round}`);
      schedule = (await scheduleOf(store, "work")) ?? assert.fail();
      pass(clock, HOUR);
    }
    const claimed = await claim(store);
    assert.equal(claimed.length, 20);
    assert.equal(new Set(claimed.map(({ scheduledFor }) => scheduledFor)).size, 20, "each tick has its job");
  });

  check.shared("a schedule and its last tick survive a reopening", async ({ store, reopen, clock }) => {
    const schedule = await save(store, { nextAt: clock.now() });
    await store.schedules.tick(tickOf(schedule));
    const before = await store.schedules.list();
    const reopened = await reopen();
    assert.deepEqual(await reopened.schedules.list(), before);
    assert.equal(await reopened.schedules.tick(tickOf(schedule)), false);
  });

  const OUTDATED: Record<string, (store: Store, schedule: StoredSchedule) => Promise<unknown>> = {
    "was saved anew": (store, { nextAt }) => save(store, { nextAt }),
    "was paused": (store, { key }) => store.schedules.update(key, "paused"),
    "was removed": (store, { key }) => store.schedules.update(key, "removed"),
    "was removed and made again": async (store, { key, nextAt }) => {
      await store.schedules.update(key, "removed");
      await save(store, { nextAt });
    },
    "has moved on": (store, schedule) => store.schedules.tick(tickOf(schedule, { fire: [] })),
  };
  for (const [what, outdate] of Object.entries(OUTDATED)) {
    check(`the tick of a schedule that ${what} since it was read changes nothing`, async ({ store, clock }) => {
      const schedule = await save(store, { nextAt: clock.now() });
      await outdate(store, schedule);
      const before = await store.schedules.list();
      assert.equal(await store.schedules.tick(tickOf(schedule)), false);
      assert.deepEqual(await store.schedules.list(), before);
      assert.deepEqual(await seeAll(store), []);
    });
  }

  check("a tick whose job cannot be written does not advance the schedule", async ({ store, clock }) => {
    const broken = { ...newJob(), policy: null as never };
    const schedule = await save(store, { nextAt: clock.now(), template: broken });
    await assert.rejects(store.schedules.tick(tickOf(schedule)));
    assert.deepEqual(await store.schedules.list(), [schedule]);
    assert.deepEqual(await seeAll(store), []);
  });

  // ── overlap ──

  check("without overlap a tick is skipped while the last job is unfinished, and only then", async ({ store, clock }) => {
    await save(store, { nextAt: clock.now(), overlap: false });
    const ticks = async () => {
      pass(clock, HOUR);
      assert.equal(await store.schedules.tick(tickOf((await scheduleOf(store, "work")) ?? assert.fail())), true);
      return (await seeAll(store)).length;
    };
    assert.equal(await ticks(), 1);
    const firstAt = (await scheduleOf(store, "work"))?.lastAt;
    assert.equal(await ticks(), 1, "it is pending");
    const claimed = await claimOne(store);
    assert.equal(await ticks(), 1, "it is running");
    assert.equal((await scheduleOf(store, "work"))?.lastAt, firstAt, "a skipped tick is none");
    await settle(store, claimed, SUCCEEDED);
    assert.equal(await ticks(), 2);
    await store.cancel((await seeAll(store)).at(-1)?.id ?? "");
    await store.prune({ state: "cancelled", limit: 10 });
    assert.equal(await ticks(), 2, "one was pruned, one is new");
  });

  check("without overlap several ticks at once add one job", async ({ store, clock }) => {
    const schedule = await save(store, { nextAt: clock.now(), overlap: false });
    const fire = [clock.now() - 2_000, clock.now() - 1_000, clock.now()];
    assert.equal(await store.schedules.tick(tickOf(schedule, { fire })), true);
    assert.deepEqual(
      (await claim(store)).map(({ scheduledFor }) => scheduledFor),
      [fire[0]],
    );
  });

  check("other jobs of the same name do not count as overlap", async ({ store, clock }) => {
    await add(store, {}, {});
    const schedule = await save(store, { nextAt: clock.now(), overlap: false });
    await store.schedules.tick(tickOf(schedule));
    assert.equal((await seeAll(store)).length, 3);
  });

  // ── by hand ──

  check("a trigger adds a job now, and does not change the next tick", async ({ store, clock }) => {
    const { nextAt } = await save(store, { nextAt: clock.now() + HOUR });
    pass(clock, 1_234);
    const answer = await store.schedules.trigger("work");
    const claimed = await claimOne(store);
    assert.deepEqual(answer, { id: claimed.id, duplicate: false });
    assert.equal(claimed.scheduledFor, clock.now());
    const after = (await scheduleOf(store, "work")) ?? assert.fail();
    assert.deepEqual([after.nextAt, after.lastAt], [nextAt, undefined], "it was no tick");
    assert.equal(await store.schedules.trigger("absent"), null);
  });

  check("a paused schedule can be triggered", async ({ store, clock }) => {
    await save(store, { nextAt: clock.now() + HOUR });
    await store.schedules.update("work", "paused");
    assert.notEqual(await store.schedules.trigger("work"), null);
    assert.equal((await seeAll(store)).length, 1);
  });

  check("without overlap a trigger returns the unfinished job, and a triggered job delays a tick", async (ground) => {
    const { store, clock } = ground;
    await save(store, { nextAt: clock.now(), overlap: false });
    const first = await store.schedules.trigger("work");
    assert.deepEqual(await store.schedules.trigger("work"), { id: first?.id, duplicate: true });
    await store.schedules.tick(tickOf((await scheduleOf(store, "work")) ?? assert.fail()));
    assert.equal((await seeAll(store)).length, 1);
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.equal((await store.schedules.trigger("work"))?.id === first?.id, false);
  });

  check("a removed schedule is gone, and its jobs stay", async ({ store, clock }) => {
    const schedule = await save(store, { nextAt: clock.now() });
    await store.schedules.tick(tickOf(schedule));
    assert.equal(await store.schedules.update("work", "removed"), true);
    assert.equal(await store.schedules.update("work", "removed"), false);
    assert.deepEqual(await store.schedules.list(), []);
    assert.equal((await seeAll(store)).length, 1);
  });

  check("a paused schedule has no tick, stays paused when it is saved, and resumes with the given tick", async (ground) => {
    const { store, clock } = ground;
    await save(store, { nextAt: clock.now() });
    assert.equal(await store.schedules.update("work", "paused"), true);
    assert.equal(await store.schedules.update("work", "paused"), true, "twice is once");
    assert.deepEqual(await store.schedules.list({ due: true }), []);
    const saved = await save(store, { nextAt: clock.now() });
    assert.equal(saved.paused, true);
    assert.equal(await store.schedules.update(saved.key, { resumed: clock.now() + HOUR, revision: saved.revision }), true);
    assert.deepEqual(
      (await store.schedules.list({ due: true })).map(({ nextAt }) => nextAt),
      [clock.now() + HOUR],
    );
    assert.equal(await store.schedules.update("absent", "paused"), false);
  });

  check("resuming a schedule that is not paused skips no tick", async ({ store, clock }) => {
    const schedule = await save(store, { nextAt: clock.now() });
    assert.equal(await store.schedules.update(schedule.key, { resumed: clock.now() + HOUR, revision: schedule.revision }), false);
    assert.deepEqual(await dueIn(store, clock), [schedule]);
  });

  check("resuming a schedule that was saved since it was read is rejected", async ({ store, clock }) => {
    const old = await save(store, { nextAt: clock.now() });
    await store.schedules.update("work", "paused");
    const saved = await save(store, { nextAt: clock.now() + 5, cron: "5 * * * *" });
    assert.equal(await store.schedules.update(old.key, { resumed: clock.now() + HOUR, revision: old.revision }), false);
    assert.deepEqual(await store.schedules.list(), [saved]);
    assert.equal(await store.schedules.update("absent", { resumed: clock.now(), revision: 1 }), false);
  });
}

function save(store: Store, draft: Partial<ScheduleDraft> & { nextAt: number }): Promise<StoredSchedule> {
  const rest = { cron: "0 * * * *", timezone: "UTC", missed: "once", within: null, overlap: true } as const;
  return store.schedules.save({ key: "work", template: newJob(), ...rest, ...draft });
}

async function dueIn(store: Store, { now }: { now(): number }): Promise<StoredSchedule[]> {
  return (await store.schedules.list({ due: true })).filter(({ nextAt }) => nextAt <= now());
}

/** One job, for the tick that is next; then an hour later. */
function tickOf({ key, revision, nextAt: from }: StoredSchedule, rest: Partial<Tick> = {}): Tick {
  return { key, revision, from, fire: [from], nextAt: from + HOUR, ...rest };
}
