import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import type { JobKey } from "../../src/core/text/ids.ts";
import { byClaimOrder } from "../../src/core/jobs/job.ts";
import { type LimitRule, MAX_READY_JOBS } from "../../src/core/limits/limit.ts";
import { CounterCache } from "../../src/core/limits/lane-usage.ts";
import { type LimitedJob, limitsText, LimitGate } from "../../src/core/limits/limit-gate.ts";
import { plain, Table, type TableJob } from "./limit-gate-table.ts";
import { LONG } from "../selection.ts";

const NOW = Date.UTC(2026, 0, 1);

describe("what is to be written", () => {
  test("of a new counter is all of it at once", () => {
    const { answer, changes } = decide([rule({ concurrency: 1 })], (limitGate) =>
      [1, 2, 3].map((key) => limitGate.admit(job(key, [[0, "a"]]))),
    );
    assert.deepEqual(answer, [null, "limit", "limit"]);
    const [usage, ...others] = changes?.saved ?? [];
    assert.deepEqual([usage?.id, usage?.passed, usage?.parked, others.length], [null, 1, 2, 0]);
    assert.deepEqual(
      changes?.parked.map((one) => [one.usage === usage, one.job.key]),
      [
        [true, 2],
        [true, 3],
      ],
    );
    assert.deepEqual([changes?.unparked, changes?.due, changes?.removed, changes?.opened], [[], [], [], []]);
  });

  test("of a counter that comes and goes in one operation is nothing", () => {
    const { changes } = decide([rule({ concurrency: 1 })], (limitGate) => {
      limitGate.admit(job(1, [[0, "a"]]));
      limitGate.withdraw(job(1, [[0, "a"]]), null);
    });
    assert.ok(Object.values(changes ?? { none: [1] }).every((list) => list.length === 0));
  });

  test("of a job that is parked and let pass in one operation is no place, and that it stands ready", () => {
    const { changes } = decide([rule({ concurrency: 1 })], (limitGate) => {
      limitGate.admit(job(1, [[0, "a"]]));
      assert.equal(limitGate.admit(job(2, [[0, "a"]])), "limit");
      limitGate.withdraw(job(1, [[0, "a"]]), null);
    });
    assert.deepEqual([changes?.parked, changes?.unparked], [[], []]);
    assert.deepEqual(changes?.opened, [{ key: 2, lane: 1 }]);
  });

  test("of a job that moves on to its next limit is where it came from and where it is, not what lies between", () => {
    const table = new Table([rule({ concurrency: 1 }), rule({ concurrency: 5 }), rule({ concurrency: 1 })]);
    const [narrow, wide] = [job(1, [[0, "a"]]), job(2, [[2, "b"]])];
    add(table, narrow, wide);
    start(table, 1);
    start(table, 2);
    add(
      table,
      job(3, [
        [0, "a"],
        [1, ""],
        [2, "b"],
      ]),
    );
    const { changes } = table.decide(NOW, (limitGate) => limitGate.finish(1, narrow.limits, true));
    assert.deepEqual(
      changes?.unparked.map(({ usage, job: { key } }) => [usage.counter.rule, key]),
      [[0, 3]],
    );
    assert.deepEqual(
      changes?.parked.map(({ usage, job: { key } }) => [usage.counter.rule, key]),
      [[2, 3]],
    );
    assert.deepEqual(changes?.opened, []);
  });

  test("of one that is withdrawn and comes back in one operation is where it stands in the end", () => {
    const table = new Table([rule({ concurrency: 1 }), rule({ concurrency: 1 })]);
    const [first, second] = [job(1, [[0, "a"]]), job(2, [[1, "b"]])];
    const both = job(3, [
      [0, "a"],
      [1, "b"],
    ]);
    add(table, first, second);
    start(table, 1);
    start(table, 2);
    add(table, both);
    const unchanged = table.decide(NOW, (limitGate) => {
      limitGate.withdraw(both, "limit");
      assert.equal(limitGate.admit(both), "limit");
    });
    assert.deepEqual([unchanged.changes?.unparked, unchanged.changes?.parked], [[], []]);
    const { changes } = table.decide(NOW, (limitGate) => {
      limitGate.withdraw(both, "limit");
      limitGate.finish(1, first.limits, true);
      assert.equal(limitGate.admit(both), "limit", "now at the second");
      limitGate.withdraw(both, "limit");
      assert.equal(limitGate.admit(both), "limit");
      limitGate.withdraw(both, "limit");
    });
    assert.deepEqual(
      changes?.unparked.map(({ usage, job: { key } }) => [usage.counter.rule, key]),
      [[0, 3]],
    );
    assert.deepEqual(changes?.parked, []);
    assert.deepEqual(
      changes?.saved.map((usage) => [usage.counter.rule, usage.running, usage.passed, usage.parked]),
      [[1, 1, 0, 0]],
    );
  });

  test("of one that is held and let pass in one operation is that it stands ready", () => {
    const table = new Table([rule({ concurrency: 2 })]);
    const [first, second, third] = [job(1, [[0, "a"]]), job(2, [[0, "a"]]), { ...job(3, [[0, "a"]]), lane: 2 }];
    add(table, first, second, third);
    start(table, 1);
    start(table, 2);
    const { changes } = table.decide(NOW, (limitGate) => {
      assert.equal(limitGate.tryStart(third), "held");
      limitGate.finish(1, first.limits, true);
    });
    assert.deepEqual([changes?.closed, changes?.opened, changes?.parked], [[], [{ key: 3, lane: 2 }], []]);
  });

  test("is nothing when nothing was asked", () => {
    assert.equal(new LimitGate(new Table([]), NOW).collectChanges(), null);
  });
});

test("who holds no room reads no parked jobs", () => {
  const table = new Table([rule({ concurrency: 1 })]);
  add(table, ...Array.from({ length: 50 }, (_, i) => job(i + 1, [[0, "a"]])));
  start(table, 1);
  const { fetched } = table.decideFetching(NOW, (limitGate) => limitGate.admit(job(60, [[0, "a"]])));
  assert.equal(fetched, 1, "the counter alone");
});

test("those that leave a later limit let others pass the first, when that was full of them", () => {
  const table = new Table([rule({ concurrency: 2 }), rule({ concurrency: 1 })]);
  const crowd = Array.from({ length: MAX_READY_JOBS + 20 }, (_, i) =>
    job(i + 1, [
      [0, "a"],
      [1, "b"],
    ]),
  );
  add(table, ...crowd);
  start(table, 1);
  const [before] = table.usages(0, "a");
  assert.deepEqual([before?.beyond, before?.parked], [MAX_READY_JOBS, 19]);
  const { changes } = table.decide(NOW, (limitGate) => limitGate.finish(1, crowd[0]?.limits ?? "", true));
  table.write(changes);
  const [after] = table.usages(0, "a");
  assert.deepEqual([after?.beyond, after?.parked], [MAX_READY_JOBS, 18]);
});

test("a rate that is forgotten with its counter is not remembered when the clock is set back", () => {
  const table = new Table([rule({ rate: { starts: 1, per: 1_000 } })]);
  const limitGate = new LimitGate(table, NOW);
  const write = () => table.write(limitGate.collectChanges());
  const first = job(1, [[0, "a"]]);
  limitGate.admit(first);
  write();
  limitGate.tryStart(first);
  write();
  limitGate.setNow(NOW + 2_000).finish(1, first.limits, true);
  write();
  assert.deepEqual(table.usages(0, "a"), []);
  assert.equal(limitGate.setNow(NOW - 5_000).admit(job(2, [[0, "a"]])), null);
});

const RULES = fc.tuple(
  fc.record({ concurrency: fc.integer({ min: 1, max: 3 }), rate: fc.constant(null) }),
  fc.record({
    concurrency: fc.constant(null),
    rate: fc.record({ starts: fc.integer({ min: 1, max: 4 }), per: fc.constant(1_000) }),
  }),
  fc.record({
    concurrency: fc.constantFrom(2, 5, 150),
    rate: fc.option(fc.record({ starts: fc.integer({ min: 1, max: 150 }), per: fc.constantFrom(777, 60_000) })),
  }),
);
const KEYS = fc.constantFrom("a", "b");
const LIMITS = fc.oneof(
  fc.tuple(KEYS).map(([key]) => [[0, key]]),
  fc.tuple(KEYS).map(([key]) => [[1, key]]),
  fc.tuple(KEYS).map(([key]) => [
    [0, key],
    [2, ""],
  ]),
  fc.tuple(KEYS, KEYS).map(([key, other]) => [
    [0, key],
    [1, other],
    [2, ""],
  ]),
) as fc.Arbitrary<[number, string][]>;
const LANE = fc.constantFrom(1, 2);
const STEP = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      what: fc.constant("add" as const),
      jobs: fc.array(fc.record({ limits: LIMITS, lane: LANE, priority: fc.constantFrom(0, 0, 0, 1, -1) }), {
        minLength: 1,
        maxLength: 8,
      }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      what: fc.constant("crowd" as const),
      limits: LIMITS,
      lane: LANE,
      many: fc.integer({ min: 30, max: 250 }),
    }),
  },
  { weight: 5, arbitrary: fc.record({ what: fc.constant("claim" as const), lane: LANE, most: fc.constantFrom(1, 3, 200) }) },
  {
    weight: 5,
    arbitrary: fc.record({
      what: fc.constant("end" as const),
      which: fc.array(fc.nat(), { minLength: 1, maxLength: 5 }),
      began: fc.boolean(),
      back: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      what: fc.constant("withdraw" as const),
      which: fc.array(fc.nat(), { minLength: 1, maxLength: 30 }),
      back: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ what: fc.constant("pass" as const), by: fc.constantFrom(1, 250, 1_000, 70_000, -90_000) }),
  },
);
type Step = typeof STEP extends fc.Arbitrary<infer T> ? T : never;

test("decisions with all rows loaded, with rows fetched on demand and with cached rows are the same", () => {
  let [fetched, spared] = [0, 0];
  fc.assert(
    fc.property(RULES, fc.array(STEP, { minLength: 1, maxLength: 40 }), (limits, steps) => {
      const table = new Table(limits.map((one) => rule(one)));
      const remembering = new LimitGate(table, NOW);
      const remembered = new CounterCache();
      let now = NOW;
      let setBack = false;
      const operate = <T>(operation: (limitGate: LimitGate) => T): T => {
        const known = table.decide(now, operation);
        const missed = table.decideFetching(now, operation);
        const recalled = table.decideFetching(now, operation, remembered);
        fetched += missed.fetched;
        spared += missed.fetched - recalled.fetched;
        for (const { answer, changes } of [missed, recalled]) {
          assert.deepEqual(answer, known.answer);
          assert.deepEqual(plain(changes), plain(known.changes));
        }
        assert.deepEqual(operation(remembering.setNow(now)), known.answer);
        const changes = remembering.collectChanges();
        assert.deepEqual(plain(changes), plain(known.changes));
        pending.push(() => {
          table.write(known.changes);
          table.name(changes);
        });
        return known.answer;
      };
      const pending: (() => void)[] = [];
      const flush = () => pending.splice(0).forEach((write) => write());
      for (const step of steps) {
        if (step.what === "pass") {
          now += step.by;
          setBack ||= step.by < 0;
          operate((limitGate) => table.due(now).forEach((one) => limitGate.recheck(one.rule, one.key)));
        } else perform(table, step, operate);
        flush();
        table.check();
        if (!setBack) assert.deepEqual(table.due(now).length === 0 ? table.stuck(now) : [], []);
      }
    }),
    { numRuns: LONG ? 5_000 : 300 },
  );
  assert.ok(fetched > 1_000, `${fetched} limitRows were missing`);
  assert.ok(spared > fetched / 5, `${spared} of ${fetched} were remembered`);
});

/** One operation, and what it means for the rows of its jobs, which are there before its changes are written. */
function perform(
  table: Table,
  step: Exclude<Step, { what: "pass" }>,
  operate: <T>(operation: (limitGate: LimitGate) => T) => T,
): void {
  switch (step.what) {
    case "add":
    case "crowd": {
      const wanted = step.what === "add" ? step.jobs : Array.from({ length: step.many }, () => ({ ...step, priority: 0 }));
      const jobs = wanted.map(({ limits, lane, priority }, i) =>
        Object.assign(job(table.jobs.size + 1 + i, limits), { lane, priority }),
      );
      const gates = operate((limitGate) => jobs.map((one) => limitGate.admit(one)));
      jobs.forEach((one, i) => table.jobs.set(one.key, { ...one, state: "pending", gate: gates[i] ?? null }));
      return;
    }
    case "claim": {
      const ready = of(table, "pending").filter((one) => one.lane === step.lane && one.gate === null);
      const asked = ready.toSorted(byClaimOrder).slice(0, step.most);
      const verdicts = operate((limitGate) => asked.map((one) => limitGate.tryStart(one)));
      asked.forEach((one, i) => {
        if (verdicts[i] !== "held") one.state = "running";
      });
      return;
    }
    case "end": {
      const ended = some(of(table, "running"), step.which);
      const gates = operate((limitGate) =>
        ended.map((one) => {
          limitGate.finish(one.lane, one.limits, step.began);
          return step.back ? limitGate.admit(one) : null;
        }),
      );
      ended.forEach((one, i) => Object.assign(one, { state: step.back ? "pending" : "over", gate: gates[i] }));
      return;
    }
    case "withdraw": {
      const gone = some(of(table, "pending"), step.which);
      const freed = some(of(table, "running"), step.which.slice(0, 2));
      // Some come back at once, and half of those are gone again.
      const stay = step.back ? Math.ceil(gone.length / 2) : 0;
      const gates = operate((limitGate) => {
        for (const one of gone) limitGate.withdraw(one, one.gate);
        for (const { lane, limits } of freed) limitGate.finish(lane, limits, true);
        const back = step.back ? gone.map((one) => limitGate.admit(one)) : [];
        for (const [i, one] of gone.entries()) if (step.back && i >= stay) limitGate.withdraw(one, back[i] ?? null);
        return back;
      });
      for (const one of freed) one.state = "over";
      gone.forEach((one, i) => Object.assign(one, i < stay ? { gate: gates[i] } : { state: "over", gate: null }));
    }
  }
}

function some<T>(from: readonly T[], which: readonly number[]): T[] {
  return from.length === 0 ? [] : [...new Set(which.map((one) => from[one % from.length] as T))];
}

function of(table: Table, state: TableJob["state"]): TableJob[] {
  return [...table.jobs.values()].filter((one) => one.state === state);
}

function decide<T>(rules: LimitRule[], operation: (limitGate: LimitGate) => T): ReturnType<typeof Table.prototype.decide<T>> {
  return new Table(rules).decide(NOW, operation);
}

function add(table: Table, ...jobs: LimitedJob[]): void {
  const { answer, changes } = table.decide(NOW, (limitGate) => jobs.map((one) => limitGate.admit(one)));
  jobs.forEach((one, i) => table.jobs.set(one.key, { ...one, state: "pending", gate: answer[i] ?? null }));
  table.write(changes);
}

function start(table: Table, key: number): void {
  const one = table.jobs.get(key as JobKey) as TableJob;
  const { answer, changes } = table.decide(NOW, (limitGate) => limitGate.tryStart(one));
  assert.notEqual(answer, "held");
  one.state = "running";
  table.write(changes);
}

function job(key: number, limits: [number, string][]): LimitedJob {
  const text = limitsText(
    limits.map(([one]) => one),
    limits.map(([, one]) => one),
  );
  return { key: key as JobKey, lane: 1, priority: 0, limits: text as string };
}

function rule(given: Partial<LimitRule>): LimitRule {
  return { of: "job", position: 0, keyed: true, concurrency: null, rate: null, ...given };
}
