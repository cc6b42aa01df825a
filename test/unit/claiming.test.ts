import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import {
  type Candidate,
  chooseCandidates,
  type ClaimSource,
  type Lane,
  LaneIndex,
  type ClaimableLane,
  type MatchedLane,
  outlookOf,
  quotas,
  nextPrefetch,
  nextReadFactor,
  ClaimableLanes,
  QueueRotation,
} from "../../src/core/jobs/claiming.ts";
import type { JobKey } from "../../src/core/text/ids.ts";
import { byClaimOrder } from "../../src/core/jobs/job.ts";

const OPEN = { isPaused: () => false };
const LANES: Lane[] = [
  { id: 1, queue: "mail", name: "mail", version: 1 },
  { id: 2, queue: "mail", name: "digest", version: 1 },
  { id: 3, queue: "scan", name: "scan", version: 1 },
  { id: 4, queue: "scan", name: "scan", version: 2 },
];

test("a claim takes from the lanes that its sources name, queue by queue", () => {
  assert.deepEqual(from({}), [
    [1, 2],
    [3, 4],
  ]);
  assert.deepEqual(from({ queue: "mail" }), [[1, 2]]);
  assert.deepEqual(from({ name: "scan", version: 2 }, { name: "mail" }), [[1], [4]]);
  assert.deepEqual(from({ name: "absent" }), []);
  assert.deepEqual(from({ queue: "scan", max: 0 }), [], "as many as it may have are taken");
});

test("a paused or locked queue is not claimed from", () => {
  assert.deepEqual(
    queues((queue) => queue === "mail", []),
    ["scan"],
  );
  assert.deepEqual(
    queues(() => false, ["scan", "absent"]),
    ["mail"],
  );
});

test("lanes added later match the first source that names them, as if they had been there before", () => {
  const sources = fc.array(
    fc.record(
      {
        queue: fc.constantFrom("a", "b"),
        name: fc.constantFrom("x", "y"),
        version: fc.constantFrom(1, 2),
        lease: fc.constant(1),
      },
      { requiredKeys: ["lease"] },
    ),
    { maxLength: 4 },
  );
  const lanes: Lane[] = [];
  for (const queue of ["a", "b"])
    for (const name of ["x", "y"]) for (const version of [1, 2]) lanes.push({ id: lanes.length, queue, name, version });
  fc.assert(
    fc.property(sources, fc.nat(lanes.length), (given, before) => {
      const grown = new LaneIndex();
      for (const lane of lanes.slice(0, before)) grown.add(lane);
      grown.matching(given);
      for (const lane of lanes.slice(before)) grown.add(lane);
      const expected = lanes.flatMap((lane) => {
        const source = given.find((one) =>
          (["queue", "name", "version"] as const).every((what) => one[what] === undefined || one[what] === lane[what]),
        );
        return source === undefined ? [] : [{ lane, source }];
      });
      assert.deepEqual(grown.matching(given).all, expected);
    }),
  );
});

test("each queue gets its share first, and queues with more jobs get the rest", () => {
  assert.deepEqual(quotas(10, 1), [10]);
  assert.deepEqual(quotas(10, 3), [4, 10]);
  assert.deepEqual(quotas(1, 3), [1, 1]);
});

test("a worker that claims one job at a time serves every queue in turn", () => {
  const turns = new QueueRotation();
  const lanes = ["a", "b", "c"].map((queue, i) => [laneUsageOf({ id: i, queue, name: queue, version: 1 })]);
  const served = new Map<string, number>();
  for (let claim = 1; claim <= 30; claim++) {
    const [first] = turns.order(lanes, () => (claim % 7) / 7) as [ClaimableLane[]];
    turns.recordServed(first, claim);
    const { queue } = (first[0] as ClaimableLane).lane;
    served.set(queue, (served.get(queue) ?? 0) + 1);
  }
  assert.deepEqual([...served.values()], [10, 10, 10]);
});

test("jobs of several lanes start in order, up to the wanted number, a source's maximum, and one suspect", () => {
  const lanes = fc.array(
    fc.record({
      budget: fc.integer({ min: 0, max: 4 }),
      jobs: fc.array(fc.record({ priority: fc.integer({ min: -1, max: 1 }), suspect: fc.boolean() }), { maxLength: 6 }),
    }),
    { minLength: 1, maxLength: 3 },
  );
  fc.assert(
    fc.property(lanes, fc.integer({ min: 1, max: 8 }), (given, max) => {
      const shares = given.map(({ budget }, i) => ({ ...laneUsageOf(LANES[i] as Lane), budget: { left: budget } }));
      let key = 0;
      const candidates = given.flatMap(({ jobs }, i) =>
        jobs.map((job): Candidate => ({ ...job, key: ++key as JobKey, claimable: shares[i] as ClaimableLane })),
      );
      const { chosen, held } = chooseCandidates(candidates.slice(), new Map(), max, () => "started");
      assert.equal(held, 0);
      assert.deepEqual(chosen, chosen.toSorted(byClaimOrder));
      assert.ok(chosen.length <= max);
      assert.ok(chosen.filter(({ suspect }) => suspect).length <= 1);
      for (const [i, share] of shares.entries()) {
        const taken = chosen.filter((one) => one.claimable === share).length;
        assert.equal(share.budget.left, (given[i] as { budget: number }).budget - taken);
      }
      // No job was passed over for one whose turn is later.
      const last = chosen.length === max ? chosen.at(-1) : undefined;
      for (const one of candidates) {
        if (chosen.includes(one) || (last !== undefined && byClaimOrder(last, one) < 0)) continue;
        assert.ok(one.claimable.budget.left === 0 || (one.suspect && chosen.some(({ suspect }) => suspect)));
      }
    }),
  );
});

test("behind held jobs no job starts that may come after an unread one", () => {
  const [a, b] = [laneUsageOf(LANES[0] as Lane), laneUsageOf(LANES[1] as Lane)];
  const [first, second, other, late] = [candidate(1, a), candidate(4, a), candidate(2, b), candidate(9, b)];
  // Of lane a more than these two may be there; both are held back.
  const { chosen, held } = chooseCandidates([first, second, other, late], new Map([[a, second]]), 9, ({ claimable }) =>
    claimable === a ? "held" : "started",
  );
  assert.deepEqual([chosen, held], [[other], 2]);
});

test("after the last ready job of a key, the jobs that became ready are read first", () => {
  const share = laneUsageOf(LANES[0] as Lane);
  const candidates = [1, 2, 3].map((key) => candidate(key, share));
  const { chosen } = chooseCandidates(candidates, new Map(), 9, ({ key }) => (key === 2 ? "last" : "started"));
  assert.deepEqual(
    chosen.map(({ key }) => key),
    [1, 2],
  );
});

test("while most jobs are held back, each read is larger, up to a limit", () => {
  let ahead = 1;
  const read = [];
  for (let round = 0; round < 9; round++) read.push((ahead = nextReadFactor(ahead, { chosen: [], held: 5 })));
  assert.deepEqual(read, [2, 4, 8, 16, 32, 64, 128, 128, 128]);
  assert.equal(nextReadFactor(64, { chosen: [1, 2], held: 2 }), 1);
});

test("the outlook has the soonest instant, and due jobs are ready", () => {
  assert.deepEqual(outlookOf(false, [null, 150, 120], 100), { ready: false, nextIn: 20 });
  assert.deepEqual(outlookOf(false, [null, 90], 100), { ready: true, nextIn: 0 });
  assert.deepEqual(outlookOf(true, [], 100), { ready: true, nextIn: null });
});

function from(...sources: Partial<ClaimSource>[]): number[][] {
  const shares = new ClaimableLanes(OPEN, []).byQueue(matching(sources.map(sourceOf)));
  return shares.map((lanes) => lanes.map(({ lane }) => lane.id));
}

function queues(isPaused: (queue: string) => boolean, locked: string[]): (string | undefined)[] {
  return new ClaimableLanes({ isPaused }, locked).byQueue(matching([{ lease: 1 }])).map(([share]) => share?.lane.queue);
}

function matching(sources: ClaimSource[]): MatchedLane[] {
  const index = new LaneIndex();
  for (const lane of LANES) index.add(lane);
  return index.matching(sources).all;
}

function laneUsageOf(lane: Lane): ClaimableLane {
  return { lane, lease: 1_000, budget: { left: 100 } };
}

function candidate(key: number, share: ClaimableLane): Candidate {
  return { key: key as JobKey, priority: 0, claimable: share, suspect: false };
}

function sourceOf(source: Partial<ClaimSource>): ClaimSource {
  return { lease: 1, ...source };
}

test("a worker claims ahead at most what it finishes within 100 ms at the pace of its last turn", () => {
  assert.equal(nextPrefetch(0, 10, { count: 10, longestMs: 0 }), 10, "it doubles at most");
  assert.equal(nextPrefetch(400, 10, { count: 10, longestMs: 0 }), 810);
  assert.equal(nextPrefetch(1_000, 10, { count: 10, longestMs: 0 }), 1_024);
  assert.equal(nextPrefetch(400, 10, { count: 10, longestMs: 20 }), 40, "50 finish, of which 10 run");
  assert.equal(nextPrefetch(400, 10, { count: 10, longestMs: 1_000 }), 0, "slow handlers");
});

test("an attempt that ends alone shows no pace, unless the worker runs one at a time", () => {
  assert.equal(nextPrefetch(40, 10, { count: 1, longestMs: 1 }), 20);
  assert.equal(nextPrefetch(40, 1, { count: 1, longestMs: 1 }), 81);
});
