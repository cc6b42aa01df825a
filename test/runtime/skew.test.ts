import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import type { Clock } from "../../src/core/text/duration.ts";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { LeaseTable } from "../../src/engine/leases.ts";
import { Janitor } from "../../src/engine/maintenance/janitor.ts";
import { Scheduler } from "../../src/engine/schedules.ts";
import { locate, openStore } from "../../src/store/open-store.ts";
import type { Store } from "../../src/store/store.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import { claim, claimOne, LEASE, newJob } from "../conformance/parts.ts";
import { type Logged, logInto } from "./parts.ts";

/** A process on another host than the store's, whose wall clock is wrong. Monotonic time passes the same everywhere. */
const HOUR = 3_600_000;
const SKEWS = { "an hour ahead": HOUR, "an hour behind": -HOUR, right: 0 };

for (const [said, skew] of Object.entries(SKEWS)) {
  test(`a process whose clock is ${said} creates a tick's job at the store's time`, async (t) => {
    const { store, clock, scheduler } = await scene(t, skew);
    const start = clock.now();
    await store.schedules.save({
      key: "report",
      cron: "*/10 * * * *",
      timezone: "UTC",
      missed: "all",
      within: null,
      overlap: true,
      template: newJob(),
      nextAt: start + 600_000,
    });
    scheduler.start();
    await clock.advance("9m");
    assert.deepEqual((await claim(store)).length, 0, "too early");
    await clock.advance("21m");
    assert.deepEqual(
      (await claim(store)).map(({ scheduledFor }) => scheduledFor),
      [1, 2, 3].map((n) => start + n * 600_000),
    );
  });

  test(`a process whose clock is ${said} reclaims what expired by the store's time, and nothing else`, async (t) => {
    const { store, clock, janitor } = await scene(t, skew);
    await store.enqueue([newJob()]);
    const held = await claimOne(store);
    await clock.advance(LEASE - 1);
    assert.equal(await janitor.recover(), null);
    assert.deepEqual(await store.inspect([held]), ["held"]);
    await clock.advance(1);
    assert.equal((await janitor.recover())?.expired.jobs, 1);
    assert.deepEqual(await store.inspect([held]), ["lost"]);
  });

  test(`an operator whose clock is ${said} reclaims by the store's time`, async (t) => {
    const { store, clock, janitor } = await scene(t, skew);
    await store.enqueue([newJob()]);
    await claim(store);
    await clock.advance(LEASE + 4_999);
    assert.equal(await janitor.reclaimStale(5_000, "an operator"), null);
    await clock.advance(1);
    assert.equal((await janitor.reclaimStale(5_000, "an operator"))?.expired.jobs, 1);
  });
}

interface Scene {
  store: Store;
  clock: TestClock;
  scheduler: Scheduler;
  janitor: Janitor;
}

async function scene(t: TestContext, skew: number): Promise<Scene> {
  const clock = testClock();
  const wrong: Clock = { ...clock, now: () => clock.now() + skew };
  const store = await openStore(locate(":memory:", {}), { clock, injected: true });
  const logged: Logged[] = [];
  const log = logInto(logged);
  const scheduler = new Scheduler({ store, clock: wrong, log });
  const janitor = new Janitor({ store, leaseTable: new LeaseTable(), clock: wrong, log, self: 1 as ProcessId });
  t.after(async () => {
    await scheduler.stop();
    await store.close();
    assert.deepEqual(logged, []);
  });
  return { store, clock, scheduler, janitor };
}
