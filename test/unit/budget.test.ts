import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import {
  approveBudget,
  type Budget,
  chargeOf,
  meanCost,
  fromBudget,
  reserveBatch,
  type Ledger,
  judgeStart,
  reserve,
  settleReservation,
  toBudget,
  UNLIMITED,
  type Amount,
  NO_COST,
  plus,
  UNITS,
} from "../../src/core/pipelines/budget.ts";

describe("a budget", () => {
  test("a budget limits only what it names", () => {
    assert.deepEqual(toBudget({ usd: 5 }, "budget"), { micros: 5_000_000, tokens: null });
    assert.deepEqual(toBudget({ tokens: 100 }, "budget"), { micros: null, tokens: 100 });
    assert.deepEqual(toBudget({}, "budget"), UNLIMITED);
    assert.deepEqual(fromBudget({ micros: 5_000_000, tokens: null }), { usd: 5 });
    assert.deepEqual(fromBudget({ micros: null, tokens: 3 }), { tokens: 3 });
  });

  test("a budget is rounded down, because it is a limit", () => {
    assert.deepEqual(toBudget({ usd: 0.0000019, tokens: 1.9 }, "budget"), { micros: 1, tokens: 1 });
    assert.equal(toBudget({ usd: 1.1 }, "budget").micros, 1_100_000);
  });

  test("a budget that is not a valid amount is rejected", () => {
    for (const wrong of [{ usd: -1 }, { tokens: Number.NaN }, 5, null]) {
      assert.throws(() => toBudget(wrong, "budget"), { code: "COST_INVALID" });
    }
  });

  test("a budget of zero lets only free work start", () => {
    const empty = ledger({ budget: { micros: 0, tokens: null } });
    assert.equal(judgeStart(empty, NO_COST).kind, "start");
    assert.equal(judgeStart(empty, usd(1)).kind, "pause");
  });
});

describe("an attempt may start", () => {
  test("an attempt may start if its estimate fits exactly beside spend and reservations", () => {
    const tight = ledger({ budget: { micros: 10, tokens: null }, spent: usd(4), reserved: usd(3) });
    assert.deepEqual(judgeStart(tight, usd(3)), { kind: "start" });
    assert.deepEqual(judgeStart(tight, usd(4)), { kind: "wait" });
  });

  test("an attempt waits while reservations of others take the room, because they may cost less", () => {
    const waiting = ledger({ budget: { micros: 10, tokens: null }, reserved: usd(8) });
    assert.deepEqual(judgeStart(waiting, usd(5)), { kind: "wait" });
    assert.deepEqual(judgeStart(settleReservation(waiting, usd(8), usd(2)), usd(5)), { kind: "start" });
  });

  test("an attempt whose estimate does not fit beside the spend pauses the build", () => {
    const short = ledger({ budget: { micros: 10, tokens: null }, spent: usd(8) });
    assert.deepEqual(judgeStart(short, usd(3)), { kind: "pause", reason: "budget_precheck_block", unit: "micros" });
  });

  test("no attempt starts when the spend exceeds the budget, not even a free one", () => {
    const over = ledger({ budget: { micros: 10, tokens: null }, spent: usd(11) });
    assert.deepEqual(judgeStart(over, NO_COST), { kind: "pause", reason: "budget_exceeded", unit: "micros" });
  });

  test("tokens limit an attempt as money does", () => {
    const both = ledger({ budget: { micros: 1_000, tokens: 10 }, spent: { micros: 0, tokens: 8 } });
    assert.deepEqual(judgeStart(both, { micros: 1, tokens: 3 }), {
      kind: "pause",
      reason: "budget_precheck_block",
      unit: "tokens",
    });
  });

  test("an attempt of a batch fits only beside those before it", () => {
    const {
      start,
      next,
      ledger: taken,
    } = reserveBatch(ledger({ budget: { micros: 10, tokens: null } }), [usd(4), usd(4), usd(4)]);
    assert.equal(start, 2);
    assert.equal(next.kind, "wait");
    assert.deepEqual(taken.reserved, usd(8));
    assert.equal(reserveBatch(ledger({}), [usd(4), usd(4)]).start, 2);
  });
});

describe("an attempt is charged", () => {
  const attempt = { reported: { micros: 5, tokens: 0 }, estimate: { micros: 3, tokens: 7 } };

  test("an attempt that settles is charged what it reported, in success and failure", () => {
    assert.deepEqual(chargeOf("holder", attempt), attempt.reported);
  });

  test("a reclaimed attempt is charged the larger of reported cost and estimate, so that a crash loop is not free", () => {
    assert.deepEqual(chargeOf("reclaimer", attempt), { micros: 5, tokens: 7 });
  });

  test("an attempt whose handler was never called is charged nothing", () => {
    assert.deepEqual(chargeOf("unstarted", attempt), NO_COST);
  });
});

describe("the estimate of a stage that gives none", () => {
  test("the estimate of a stage without one is the mean cost of its attempts, rounded up", () => {
    assert.deepEqual(meanCost({ attempts: 3, spent: { micros: 10, tokens: 9 } }), { micros: 4, tokens: 3 });
  });

  test("the estimate of a stage without attempts is unknown", () => {
    assert.equal(meanCost({ attempts: 0, spent: NO_COST }), null);
  });
});

describe("an approved budget", () => {
  const spent = ledger({ budget: { micros: 10_000_000, tokens: 50 }, spent: { micros: 9_000_000, tokens: 20 } });

  test("an approved budget is a new total, and parts that it does not name stay", () => {
    assert.deepEqual(approveBudget(spent, { usd: 20 }, usd(2_000_000)), { micros: 20_000_000, tokens: 50 });
    assert.deepEqual(approveBudget(spent, { usd: 11 }, usd(2_000_000)).micros, 11_000_000);
  });

  test("an approved budget that would pause the build again is rejected, with the required amount in the hint", () => {
    for (const cost of [{ usd: 10.9 }, { usd: 1 }, { tokens: 100 }]) {
      assert.throws(() => approveBudget(spent, cost, usd(2_000_000)), { code: "BUDGET_TOO_SMALL", hint: /at least \$11\.00/ });
    }
    assert.throws(() => approveBudget(spent, { usd: 20 }, { micros: 0, tokens: 31 }), {
      code: "BUDGET_TOO_SMALL",
      hint: /51 tokens/,
    });
    assert.throws(() => approveBudget(spent, {}, NO_COST), { code: "BUDGET_INVALID" });
  });

  test("an approved budget lets the refused attempt start", () => {
    fc.assert(
      fc.property(amount(50), amount(50), amount(200), (spent, refused, total) => {
        const before = ledger({ budget: { micros: 0, tokens: 0 }, spent });
        try {
          const budget = approveBudget(before, { usd: total.micros / 1e6, tokens: total.tokens }, refused);
          assert.equal(judgeStart({ ...before, budget }, refused).kind, "start");
        } catch (error) {
          assert.equal((error as { code?: string }).code, "BUDGET_TOO_SMALL");
        }
      }),
    );
  });
});

describe("over random schedules of starts and ends", () => {
  test("over random schedules the overshoot is at most what was in flight when the budget was passed", () => {
    fc.assert(
      fc.property(budgets(), schedule(40), (budget, steps) => {
        const { ledger, inFlightAtPass } = play(budget, steps);
        for (const unit of UNITS) {
          const limit = budget[unit];
          if (limit !== null) assert.ok(ledger.spent[unit] <= limit + inFlightAtPass[unit], unit);
        }
      }),
      { numRuns: 500 },
    );
  });

  test("over random schedules nothing is spent beyond the budget if no attempt costs more than its estimate", () => {
    fc.assert(
      fc.property(budgets(), schedule(40), (budget, steps) => {
        const honest = steps.map((step) => Object.assign({}, step, { actual: least(step.actual, step.estimate) }));
        const { ledger } = play(budget, honest);
        for (const unit of UNITS) assert.ok(budget[unit] === null || ledger.spent[unit] <= budget[unit], unit);
      }),
      { numRuns: 500 },
    );
  });

  test("over random schedules the reservation is the sum of estimates in flight, and zero at the end", () => {
    fc.assert(
      fc.property(budgets(), schedule(40), (budget, steps) => {
        assert.deepEqual(play(budget, steps).ledger.reserved, NO_COST);
      }),
    );
  });

  test("over random schedules no attempt waits for ever: with nothing in flight it starts or the build pauses", () => {
    fc.assert(
      fc.property(budgets(), amount(50), amount(50), (budget, spent, estimate) => {
        assert.notEqual(judgeStart(ledger({ budget, spent }), estimate).kind, "wait");
      }),
    );
  });
});

interface Step {
  estimate: Amount;
  actual: Amount;
  teller: "holder" | "reclaimer" | "unstarted";
  /** Whether something ends before this one is tried, and which. */
  ends: number | null;
}

/** Starts what may start, ends the given attempts, and at last all; notes what was in flight when a limit was first passed. */
function play(budget: Budget, steps: readonly Step[]): { ledger: Ledger; inFlightAtPass: Amount } {
  let now = ledger({ budget });
  const inFlight: Step[] = [];
  const inFlightAtPass = { micros: 0, tokens: 0 };
  const passed = new Set<string>();
  const end = (index: number) => {
    const before = inFlight.map((step) => chargeOf(step.teller, { reported: step.actual, estimate: step.estimate }));
    const [step] = inFlight.splice(index, 1);
    if (step === undefined) return;
    now = settleReservation(now, step.estimate, before[index] as Amount);
    for (const unit of UNITS) {
      const limit = budget[unit];
      if (limit === null || passed.has(unit) || now.spent[unit] <= limit) continue;
      passed.add(unit);
      inFlightAtPass[unit] = before.reduce(plus, NO_COST)[unit];
    }
    const reserved = inFlight.map(({ estimate }) => estimate).reduce(plus, NO_COST);
    assert.deepEqual(now.reserved, reserved);
  };
  for (const step of steps) {
    if (step.ends !== null && inFlight.length > 0) end(step.ends % inFlight.length);
    if (judgeStart(now, step.estimate).kind !== "start") continue;
    now = reserve(now, step.estimate);
    inFlight.push(step);
  }
  while (inFlight.length > 0) end(0);
  return { ledger: now, inFlightAtPass };
}

function schedule(maxLength: number): fc.Arbitrary<Step[]> {
  const step = fc.record({
    estimate: amount(10),
    actual: amount(30),
    teller: fc.constantFrom<Step["teller"][]>("holder", "holder", "reclaimer", "unstarted"),
    ends: fc.option(fc.nat(100)),
  });
  return fc.array(step, { maxLength });
}

function budgets(): fc.Arbitrary<Budget> {
  return fc.record({ micros: fc.option(fc.nat(100)), tokens: fc.option(fc.nat(100)) });
}

function amount(max: number): fc.Arbitrary<Amount> {
  return fc.record({ micros: fc.nat(max), tokens: fc.nat(max) });
}

function least(a: Amount, b: Amount): Amount {
  return { micros: Math.min(a.micros, b.micros), tokens: Math.min(a.tokens, b.tokens) };
}

function ledger(some: Partial<Ledger>): Ledger {
  return { budget: UNLIMITED, spent: NO_COST, reserved: NO_COST, ...some };
}

function usd(micros: number): Amount {
  return { micros, tokens: 0 };
}
