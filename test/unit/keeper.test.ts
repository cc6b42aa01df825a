import assert from "node:assert/strict";
import { test } from "node:test";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import { LeaseTable, Keeper, type Loss } from "../../src/engine/leases.ts";
import type { LeaseState, Settlement, Store } from "../../src/store/store.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";

const LEASE = 30_000;

test("the keeper renews due leases together, after a third of a lease", async () => {
  const scene = new Scene();
  scene.running(1);
  scene.running(2);
  await scene.pass(5_000);
  scene.running(3);
  assert.equal(await scene.pass(4_999), "nothing renewed");
  await scene.pass(1);
  assert.deepEqual(scene.renewed, [[1, 2]]);
  await scene.pass(5_000);
  assert.deepEqual(scene.renewed, [[1, 2], [3]]);
});

test("a settled lease is not renewed", async () => {
  const scene = new Scene();
  const slot = scene.running(1);
  scene.leaseTable.free(slot);
  await scene.pass(LEASE);
  assert.deepEqual(scene.renewed, []);
});

test("a failed renewal is repeated, and no lease is lost before it expires", async () => {
  const scene = new Scene();
  scene.running(1);
  scene.trouble = new Error("database is locked");
  for (let waited = 0; waited < LEASE - 1_000; waited += 1_000) await scene.pass(1_000);
  assert.deepEqual(scene.losses, []);
  scene.trouble = null;
  await scene.pass(0);
  assert.deepEqual(scene.renewed, [[1]]);

  scene.trouble = new Error("database is locked");
  await scene.pass(LEASE);
  assert.deepEqual(scene.losses, ["1: LEASE_LOST"]);
});

test("a lease that another worker holds is reported as lost at the renewal", async () => {
  const scene = new Scene();
  scene.running(1);
  scene.running(2);
  scene.fates.set(1, "lost");
  await scene.pass(10_000);
  assert.deepEqual(scene.losses, ["1: LEASE_LOST"]);
});

test("a job that was cancelled elsewhere is noticed within a quarter of a second", async () => {
  const scene = new Scene();
  scene.running(1);
  scene.fates.set(1, "cancelled");
  await scene.pass(250);
  assert.deepEqual(scene.losses, ["1: CANCELLED"]);
});

test("an attempt past its timeout is taken from the main thread, then ended as an error", async () => {
  const scene = new Scene();
  const slot = scene.running(1, 60_000);
  scene.onSettle = () => assert.equal(scene.leaseTable.read(slot), null);
  await scene.pass(59_999);
  assert.deepEqual(scene.settled, []);
  await scene.pass(1);
  assert.deepEqual(scene.settled, ["1: error TIMEOUT"]);
  assert.deepEqual(scene.losses, ["1: TIMEOUT"]);
});

test("a claimed job that has not started within a second is released, and can no longer start", async () => {
  const scene = new Scene();
  const slot = scene.waiting(1);
  scene.onSettle = () => assert.equal(scene.leaseTable.start(slot, scene.clock.monotonic() + 60_000), false);
  await scene.pass(999);
  assert.deepEqual(scene.settled, []);
  await scene.pass(1);
  assert.deepEqual(scene.settled, ["1: released"]);
  assert.deepEqual(scene.losses, ["1: GIVEN_BACK"]);
});

test("an outcome that cannot be written is retried, and delays no other", async () => {
  const scene = new Scene();
  scene.waiting(1);
  scene.waiting(2);
  scene.onSettle = (settlements) => {
    if (settlements.some(({ job }) => job === 1)) throw new Error("no");
  };
  await assert.rejects(scene.pass(1_000));
  assert.deepEqual(scene.settled, ["2: released"]);
  await assert.rejects(scene.pass(100));
  scene.onSettle = () => {};
  await scene.pass(100);
  assert.deepEqual(scene.settled, ["2: released", "1: released"]);
});

test("a job that starts at the last moment is not released", async () => {
  const scene = new Scene();
  const slot = scene.waiting(1);
  await scene.pass(999);
  assert.equal(scene.leaseTable.start(slot, scene.clock.monotonic() + 60_000), true);
  await scene.pass(1);
  assert.deepEqual([scene.settled, scene.losses], [[], []]);
});

test("a slot reused during a renewal is not mistaken for the old lease", () => {
  const scene = new Scene();
  const slot = scene.running(1);
  const old = scene.leaseTable.read(slot);
  assert.ok(old);
  scene.leaseTable.free(slot);
  assert.equal(scene.running(2), slot, "the same slot");
  assert.equal(scene.leaseTable.revoke(old), false);
  scene.leaseTable.setExpiresAt(old, 1e9);
  assert.equal(scene.leaseTable.read(slot)?.job, 2);
  assert.notEqual(scene.leaseTable.read(slot)?.expiresAt, 1e9);
});

/** A keeper over a store that only writes down what it is asked. */
class Scene {
  readonly clock: TestClock = testClock();
  readonly leaseTable = new LeaseTable();
  readonly renewed: number[][] = [];
  readonly settled: string[] = [];
  readonly losses: string[] = [];
  readonly fates = new Map<number, LeaseState>();
  trouble: Error | null = null;
  onSettle: (settlements: readonly Settlement[]) => void = () => {};
  readonly #keeper: Keeper;

  constructor() {
    const fateOf = ({ job }: { job: number }): LeaseState => this.fates.get(job) ?? "held";
    const store: Pick<Store, "renew" | "settle" | "inspect"> = {
      renew: async (leases) => {
        if (this.trouble !== null) throw this.trouble;
        this.renewed.push(leases.map(({ job }) => job));
        return leases.map(fateOf);
      },
      settle: async (settlements) => {
        this.onSettle(settlements);
        this.settled.push(...settlements.map(say));
        return settlements.map(fateOf);
      },
      inspect: async (leases) => leases.map(fateOf),
    };
    this.#keeper = new Keeper({
      store: store as Store,
      leaseTable: this.leaseTable,
      clock: this.clock,
      onLoss: ({ job, reason }: Loss) => this.losses.push(`${job}: ${reason}`),
      onTimedOut: () => {},
    });
  }

  waiting(job: number): number {
    const since = this.clock.monotonic();
    const lease = { job: job as JobKey, fence: 7 as Fence, lease: LEASE };
    return this.leaseTable.add(lease, { expiresAt: since + LEASE, since });
  }

  running(job: number, timeout = 3_600_000): number {
    const slot = this.waiting(job);
    this.leaseTable.start(slot, this.clock.monotonic() + timeout);
    return slot;
  }

  async pass(millis: number): Promise<string> {
    const before = this.renewed.length;
    await this.clock.advance(millis);
    await this.#keeper.round();
    return this.renewed.length === before ? "nothing renewed" : "renewed";
  }
}

function say({ job, outcome }: Settlement): string {
  return `${job}: ${outcome.kind}${outcome.kind === "error" ? ` ${outcome.error.code}` : ""}`;
}
