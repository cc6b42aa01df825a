import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import { LeaseTable, LeaseWatch } from "../../src/engine/leases.ts";
import { testClock } from "../../src/testing/index.ts";

const LEASE = 30_000;
/** The longest that a loss may go unnoticed. */
const LATEST = 50;

test("a lease that is not renewed is lost when it expires, and not before", async (t) => {
  const { clock, hold, losses } = scene(t);
  const slot = hold(1);
  await clock.advance(LEASE - 1);
  assert.deepEqual(losses, []);
  await clock.advance(1 + LATEST);
  assert.deepEqual(losses, [1]);
  await clock.advance(LEASE);
  assert.deepEqual(losses, [1], "once");
  assert.equal(slot.leaseTable.read(slot.slot), null);
});

test("a renewed or settled lease is not lost", async (t) => {
  const { clock, hold, losses } = scene(t);
  const [renewed, settled] = [hold(1), hold(2)];
  await clock.advance(LEASE - 1_000);
  const held = renewed.leaseTable.read(renewed.slot);
  assert.ok(held);
  renewed.leaseTable.setExpiresAt(held, clock.monotonic() + LEASE);
  settled.leaseTable.free(settled.slot);
  await clock.advance(LEASE - 1_000);
  assert.deepEqual(losses, []);
  await clock.advance(1_000 + LATEST);
  assert.deepEqual(losses, [1]);
});

test("after a stall the process has a third of a lease to renew", async (t) => {
  const { clock, hold, losses, stall } = scene(t);
  const { leaseTable, slot } = hold(1);
  hold(2);
  await clock.advance(1_000);
  await stall(LEASE * 2);
  await clock.advance(LEASE / 3 - 1_000);
  assert.deepEqual(losses, []);
  const held = leaseTable.read(slot);
  assert.ok(held);
  leaseTable.setExpiresAt(held, clock.monotonic() + LEASE);
  await clock.advance(1_000 + LATEST);
  assert.deepEqual(losses, [2]);
});

test("on a stuttering host a lease is lost at most a third of a lease after it expired", async (t) => {
  const { clock, hold, losses, stall } = scene(t);
  hold(1);
  const since = clock.monotonic();
  while (losses.length === 0 && clock.monotonic() - since < 10 * LEASE) {
    await clock.advance(1_000);
    await stall(200);
  }
  assert.deepEqual(losses, [1]);
  assert.ok(clock.monotonic() - since <= LEASE + LEASE / 3 + 2_500, `after ${clock.monotonic() - since} ms`);
});

function scene(t: TestContext) {
  const clock = testClock();
  const leaseTable = new LeaseTable();
  const losses: number[] = [];
  let skipped = 0;
  // Time that passes while nothing runs: no timer fires in it.
  const monotonic = () => clock.monotonic() + skipped;
  const watch = new LeaseWatch({
    leaseTable,
    clock: { now: () => clock.now(), monotonic, after: (millis, call) => clock.after(millis, call) },
    onLoss: ({ job, reason }) => {
      assert.equal(reason, "LEASE_LOST");
      losses.push(job);
    },
  });
  watch.start();
  t.after(() => watch.stop());
  const hold = (job: number) => {
    const since = monotonic();
    const slot = leaseTable.add({ job: job as JobKey, fence: 7 as Fence, lease: LEASE }, { expiresAt: since + LEASE, since });
    return { leaseTable, slot };
  };
  const stall = async (millis: number) => {
    skipped += millis;
    await clock.advance(0);
  };
  return { clock: { advance: (millis: number) => clock.advance(millis), monotonic }, hold, losses, stall };
}
