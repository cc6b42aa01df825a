import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import type { JobKey } from "../../src/core/text/ids.ts";
import { byClaimOrder } from "../../src/core/jobs/job.ts";
import { type LimitRule, MAX_READY_JOBS } from "../../src/core/limits/limit.ts";
import { type LimitedJob, limitsText, LimitGate } from "../../src/core/limits/limit-gate.ts";
import { Table, type TableJob } from "./limit-gate-table.ts";
import { LONG } from "../selection.ts";

const NOW = Date.UTC(2026, 0, 1);

describe("what is to be written", () => {
  test("a new counter is written as a whole", () => {
    const table = new Table([rule({ rate: { starts: 1, per: 1_000 } })]);
    const jobs = [1, 2, 3].map((key) => job(key, [[0, "a"]]));
    const { answer, changes } = table.operate(NOW, jobs, (gate) => jobs.map((one) => gate.admit(one)));
    assert.deepEqual(answer, [null, "limit", "limit"]);
    const [usage, ...others] = changes.added;
    assert.deepEqual([usage?.passed, usage?.parked, others.length], [1, 2, 0]);
    assert.deepEqual(
      changes.parked.map(({ counter, job: key }) => [counter === usage?.id, key]),
      [
        [true, 2],
        [true, 3],
      ],
    );
    assert.deepEqual([changes.saved, changes.unparked, changes.removed, changes.opened], [[], [], [], []]);
  });

  test("jobs beyond the free slots of their only limit stand ready, and are parked if a claim reads them", () => {
    const table = new Table([rule({ concurrency: 1 })]);
    const [first, ...others] = [1, 2, 3].map((key) => job(key, [[0, "a"]])) as [TableJob, ...TableJob[]];
    const { answer, changes } = table.operate(NOW, [first, ...others], (gate) => [
      ...[first, ...others].map((one) => gate.admit(one)),
      ...[first, ...others].map((one) => gate.tryStart(one)),
    ]);
    assert.deepEqual(answer, [null, null, null, "started", "held", "held"]);
    assert.deepEqual(
      [changes.closed, changes.parked.map(({ job: key }) => key)],
      [
        [2, 3],
        [2, 3],
      ],
    );
  });

  test("a job of a key without a free slot is parked", () => {
    const table = new Table([rule({ concurrency: 1 })]);
    add(table, job(1, [[0, "a"]]));
    start(table, 1);
    const late = job(2, [[0, "a"]]);
    assert.deepEqual(table.operate(NOW, [late], (gate) => gate.admit(late)).answer, "limit");
  });

  test("a counter that appears and disappears in one operation writes nothing", () => {
    const table = new Table([rule({ concurrency: 1 })]);
    const one = job(1, [[0, "a"]]);
    const { changes } = table.operate(NOW, [one], (gate) => {
      gate.admit(one);
      gate.withdraw(one, null);
    });
    const { lanes: _, ...written } = { lanes: null, ...changes };
    assert.ok(Object.values(written).every((list) => "length" in list && list.length === 0));
  });

  test("a job parked and admitted in one operation is written as ready, without a place", () => {
    const table = new Table([rule({ rate: { starts: 1, per: 1_000 } })]);
    const [one, two] = [job(1, [[0, "a"]]), job(2, [[0, "a"]])];
    const { changes } = table.operate(NOW, [one], (gate) => {
      gate.admit(one);
      assert.equal(gate.admit(two), "limit");
      gate.withdraw(one, null);
    });
    assert.deepEqual([changes.parked, changes.unparked], [[], []]);
    assert.deepEqual(changes.opened, [2]);
  });

  test("a job that moves to its next limit is written with its old and its final place only", () => {
    const table = new Table([rule({ concurrency: 1 }), rule({ concurrency: 5 }), rule({ concurrency: 1 })]);
    const [narrow, wide] = [job(1, [[0, "a"]]), job(2, [[2, "b"]])];
    const third = job(3, [
      [0, "a"],
      [1, ""],
      [2, "b"],
    ]);
    add(table, narrow, wide);
    start(table, 1);
    start(table, 2);
    add(table, third);
    const { changes } = table.operate(NOW, [narrow], (gate) => gate.finish(1, narrow.limits, true));
    assert.deepEqual(placesOf(table, changes.unparked), [[0, 3]]);
    assert.deepEqual(placesOf(table, changes.parked), [[2, 3]]);
    assert.deepEqual(changes.opened, []);
  });

  test("a job withdrawn and returned in one operation is written at its final place", () => {
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
    const unchanged = table.operate(NOW, [both], (gate) => {
      table.withdraw(gate, both, "limit");
      assert.equal(gate.admit(both), "limit");
    });
    assert.deepEqual([unchanged.changes.unparked, unchanged.changes.parked], [[], []]);
    const { changes } = table.operate(NOW, [both, first], (gate) => {
      table.withdraw(gate, both, "limit");
      gate.finish(1, first.limits, true);
      assert.equal(gate.admit(both), "limit", "now at the second");
      table.withdraw(gate, both, "limit");
      assert.equal(gate.admit(both), "limit");
      table.withdraw(gate, both, "limit");
    });
    assert.equal(changes.unparked.length, 1);
    assert.deepEqual(changes.parked, []);
    assert.deepEqual(
      changes.saved.map((usage) => [usage.rule, usage.running, usage.passed, usage.parked]),
      [[1, 1, 0, 0]],
    );
  });

  test("a job held and admitted in one operation is written as ready", () => {
    const table = new Table([rule({ concurrency: 2 })]);
    const [first, second, third] = [job(1, [[0, "a"]]), job(2, [[0, "a"]]), { ...job(3, [[0, "a"]]), lane: 2 }];
    add(table, first, second, third);
    start(table, 1);
    start(table, 2);
    const { changes } = table.operate(NOW, [first], (gate) => {
      assert.equal(gate.tryStart(third), "held");
      gate.finish(1, first.limits, true);
    });
    assert.deepEqual([changes.closed, changes.opened, changes.parked], [[], [3], []]);
  });

  test("no request writes nothing", () => {
    assert.equal(new LimitGate(() => rule({})).takeChanges(), null);
  });
});

test("a gate without free slots reads no parked jobs", () => {
  const table = new Table([rule({ concurrency: 1 })], { keeps: false });
  add(table, ...Array.from({ length: 50 }, (_, i) => job(i + 1, [[0, "a"]])));
  start(table, 1);
  table.reads = { counters: 0, parked: 0 };
  add(table, job(60, [[0, "a"]]));
  assert.deepEqual(table.reads, { counters: 1, parked: 0 });
});

test("jobs that leave a later limit admit others at the first", () => {
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
  table.operate(NOW, crowd, (gate) => gate.finish(1, crowd[0]?.limits ?? "", true));
  const [after] = table.usages(0, "a");
  assert.deepEqual([after?.beyond, after?.parked], [MAX_READY_JOBS, 18]);
});

test("a rate that was dropped with its counter is not remembered when the clock is set back", () => {
  const table = new Table([rule({ rate: { starts: 1, per: 1_000 } })]);
  const first = job(1, [[0, "a"]]);
  add(table, first);
  start(table, 1);
  table.operate(NOW + 2_000, [first], (gate) => gate.finish(1, first.limits, true));
  assert.deepEqual(table.usages(0, "a"), []);
  const second = job(2, [[0, "a"]]);
  assert.equal(table.operate(NOW - 5_000, [second], (gate) => gate.admit(second)).answer, null);
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

for (const keeps of [true, false]) {
  const which = keeps ? "keeps its rows" : "reads all rows anew";
  test(`whatever a gate decides that ${which}, the counters match the jobs, and no job is stuck`, () => {
    fc.assert(
      fc.property(RULES, fc.array(STEP, { minLength: 1, maxLength: 40 }), (limits, steps) => {
        const table = new Table(
          limits.map((one) => rule(one)),
          { keeps },
        );
        let now = NOW;
        let isSetBack = false;
        for (const step of steps) {
          if (step.what === "pass") {
            now += step.by;
            isSetBack ||= step.by < 0;
          }
          perform(table, now, step);
          table.check();
          if (!isSetBack && !table.isDue(now)) assert.deepEqual(table.stuck(now), []);
        }
      }),
      { numRuns: LONG ? 5_000 : 300 },
    );
  });
}

test("a gate that keeps its rows reads no counter and no parked job twice", () => {
  const table = new Table([rule({ concurrency: 1 })]);
  add(table, ...Array.from({ length: 20 }, (_, i) => job(i + 1, [[0, "a"]])));
  for (let key = 1; key <= 20; key++) {
    start(table, key);
    table.operate(NOW, [job(key, [[0, "a"]])], (gate) => gate.finish(1, job(key, [[0, "a"]]).limits, true));
  }
  assert.deepEqual(table.reads, { counters: 1, parked: 0 });
});

/** One operation, and what it means for the rows of its jobs. */
function perform(table: Table, now: number, step: Step): void {
  switch (step.what) {
    case "pass":
      return table.recheckDue(now);
    case "add":
    case "crowd": {
      const wanted = step.what === "add" ? step.jobs : Array.from({ length: step.many }, () => ({ ...step, priority: 0 }));
      const jobs = wanted.map(({ limits, lane, priority }, i) =>
        Object.assign(job(table.jobs.size + 1 + i, limits), { lane, priority }),
      );
      const { answer, changes } = table.operate(now, jobs, (gate) => jobs.map((one) => gate.admit(one)));
      jobs.forEach((one, i) => table.jobs.set(one.key, { ...one, state: "pending", gate: answer[i] ?? null }));
      return table.setGates(changes);
    }
    case "claim": {
      const ready = of(table, "pending").filter((one) => one.lane === step.lane && one.gate === null);
      const asked = ready.toSorted(byClaimOrder).slice(0, step.most);
      const { answer, changes } = table.operate(now, asked, (gate) => asked.map((one) => gate.tryStart(one)));
      asked.forEach((one, i) => {
        if (answer[i] !== "held") one.state = "running";
      });
      return table.setGates(changes);
    }
    case "end": {
      const ended = some(of(table, "running"), step.which);
      const { answer, changes } = table.operate(now, ended, (gate) =>
        ended.map((one) => {
          gate.finish(one.lane, one.limits, step.began);
          return step.back ? gate.admit(one) : null;
        }),
      );
      ended.forEach((one, i) => Object.assign(one, { state: step.back ? "pending" : "over", gate: answer[i] }));
      return table.setGates(changes);
    }
    case "withdraw": {
      const gone = some(of(table, "pending"), step.which);
      const freed = some(of(table, "running"), step.which.slice(0, 2));
      // Some come back at once, and half of those are gone again.
      const stay = step.back ? Math.ceil(gone.length / 2) : 0;
      const { answer, changes } = table.operate(now, [...gone, ...freed], (gate) => {
        for (const one of gone) table.withdraw(gate, one, one.gate);
        for (const { lane, limits } of freed) gate.finish(lane, limits, true);
        const back = step.back ? gone.map((one) => gate.admit(one)) : [];
        for (const [i, one] of gone.entries()) if (step.back && i >= stay) table.withdraw(gate, one, back[i] ?? null);
        return back;
      });
      for (const one of freed) one.state = "over";
      gone.forEach((one, i) => Object.assign(one, i < stay ? { gate: answer[i] } : { state: "over", gate: null }));
      table.setGates(changes);
    }
  }
}

function some<T>(from: readonly T[], which: readonly number[]): T[] {
  return from.length === 0 ? [] : [...new Set(which.map((one) => from[one % from.length] as T))];
}

function of(table: Table, state: TableJob["state"]): TableJob[] {
  return [...table.jobs.values()].filter((one) => one.state === state);
}

function add(table: Table, ...jobs: LimitedJob[]): void {
  const { answer, changes } = table.operate(NOW, jobs, (gate) => jobs.map((one) => gate.admit(one)));
  jobs.forEach((one, i) => table.jobs.set(one.key, { ...one, state: "pending", gate: answer[i] ?? null }));
  table.setGates(changes);
}

function start(table: Table, key: number): void {
  const one = table.jobs.get(key as JobKey) as TableJob;
  const { answer, changes } = table.operate(NOW, [one], (gate) => gate.tryStart(one));
  assert.notEqual(answer, "held");
  one.state = "running";
  table.setGates(changes);
}

function placesOf(table: Table, rows: readonly { counter: number; job: number }[]): [rule: number, job: number][] {
  const usages = table.rules.flatMap((_, i) => ["a", "b", ""].flatMap((key) => table.usages(i, key)));
  return rows.map(({ counter, job: key }) => [usages.find(({ id }) => id === counter)?.rule ?? 0, key]);
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
