import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import { type Holder, judgeLease, renewalInterval, type StaleLease, type LeaseVerdict } from "../../src/core/jobs/lease.ts";

const NOW = 1_000_000;
const LEASE = 30_000;
const RENEWAL = 10_000;

/** When the lease ends, seen from now, and for how long it was watched expired. */
const SITUATIONS = {
  "not expired": [1, 0],
  "just claimed": [LEASE, 0],
  "further away than it can be": [LEASE + 1, 0],
  "expired this instant": [0, 0],
  "expired, watched for less than a renewal": [-60_000, RENEWAL - 1],
  "expired, watched for a renewal": [-60_000, RENEWAL],
} as const;
type Situation = keyof typeof SITUATIONS;

const TABLE: Record<Situation, Record<Holder, LeaseVerdict>> = {
  "not expired": { "by-hand": "keep", alive: "keep", orphan: "keep", unknown: "keep", dead: "crashed", rebooted: "interrupted" },
  "just claimed": { "by-hand": "keep", alive: "keep", orphan: "keep", unknown: "keep", dead: "crashed", rebooted: "interrupted" },
  "further away than it can be": {
    "by-hand": "cut",
    alive: "cut",
    orphan: "cut",
    unknown: "cut",
    dead: "crashed",
    rebooted: "interrupted",
  },
  "expired this instant": {
    "by-hand": "crashed",
    alive: "keep",
    orphan: "interrupted",
    unknown: "keep",
    dead: "crashed",
    rebooted: "interrupted",
  },
  "expired, watched for less than a renewal": {
    "by-hand": "crashed",
    alive: "keep",
    orphan: "interrupted",
    unknown: "keep",
    dead: "crashed",
    rebooted: "interrupted",
  },
  "expired, watched for a renewal": {
    "by-hand": "crashed",
    alive: "stalled",
    orphan: "interrupted",
    unknown: "crashed",
    dead: "crashed",
    rebooted: "interrupted",
  },
};

for (const [situation, verdicts] of Object.entries(TABLE)) {
  for (const [holder, verdict] of Object.entries(verdicts)) {
    test(`a lease that is ${situation}, its holder ${holder}: ${verdict}`, () => {
      const [ends, expiredFor] = SITUATIONS[situation as Situation];
      assert.equal(judgeLease(held(ends), holder as Holder, expiredFor), verdict);
    });
  }
}

test("a living holder never loses a lease that it renews in time, whatever the clock says", () => {
  fc.assert(
    fc.property(fc.integer({ min: -1e12, max: 1e12 }), fc.integer({ min: 0, max: RENEWAL - 1 }), (step, expiredFor) => {
      const verdict = judgeLease(held(LEASE - step), "alive", expiredFor);
      assert.ok(verdict === "keep" || verdict === "cut", verdict);
    }),
  );
});

test("the job of a live holder is never judged as crashed", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: -1e12, max: 1e12 }),
      fc.nat(),
      fc.constantFrom<Holder>("alive", "orphan"),
      (step, expiredFor, holder) => {
        assert.notEqual(judgeLease(held(-step), holder, expiredFor), "crashed");
      },
    ),
  );
});

test("leases are renewed after a third of their duration", () => {
  assert.equal(renewalInterval(30_000), 10_000);
  assert.equal(renewalInterval(1_000), 333);
  assert.equal(renewalInterval(1), 1);
});

function held(left: number): StaleLease {
  return { job: 1 as JobKey, fence: 1 as Fence, holder: null, expiresAt: NOW + left, lease: LEASE, left };
}
