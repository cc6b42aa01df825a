import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import {
  type Amount,
  larger,
  minus,
  MAX_AMOUNT,
  NO_COST,
  plus,
  amountText,
  toAmount,
  toCost,
} from "../../src/core/pipelines/budget.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";

const amounts = fc.record({ micros: fc.maxSafeNat(), tokens: fc.maxSafeNat() }).map(cut);

test("a cost is whole millionths of a dollar and whole tokens", () => {
  assert.deepEqual(toAmount({ usd: 0.002, tokens: 1500 }, "cost"), { micros: 2_000, tokens: 1_500 });
  assert.deepEqual(toAmount({}, "cost"), NO_COST);
  assert.deepEqual(toAmount({ usd: -0, tokens: undefined }, "cost"), { micros: 0, tokens: 0 });
});

test("a decimal amount is counted exactly, without floating-point errors", () => {
  for (const [usd, micros] of [
    [1.1, 1_100_000],
    [0.07, 70_000],
    [4.35, 4_350_000],
    [0.000001, 1],
    [999_999.999999, 999_999_999_999],
  ] as const) {
    assert.equal(toAmount({ usd }, "cost").micros, micros, String(usd));
  }
});

test("fractions of the smallest unit are rounded up", () => {
  assert.deepEqual(toAmount({ usd: 0.0000001, tokens: 0.1 }, "cost"), { micros: 1, tokens: 1 });
  assert.equal(toAmount({ usd: 0.0000011 }, "cost").micros, 2);
  assert.equal(toAmount({ usd: Number.MIN_VALUE }, "cost").micros, 1);
});

test("every amount survives formatting and parsing", () => {
  fc.assert(fc.property(amounts, (amount) => assert.deepEqual(toAmount(toCost(amount), "cost"), amount)));
});

test("no cost is rounded down, and none up by more than a millionth", () => {
  fc.assert(
    fc.property(fc.double({ min: 0, max: 1e6, noNaN: true }), (usd) => {
      const { micros } = toAmount({ usd }, "cost");
      assert.ok(micros / 1e6 >= usd);
      assert.ok((micros - 1) / 1e6 < usd);
    }),
  );
});

const REFUSED: [unknown, string][] = [
  [{ usd: -1 }, "cost.usd must be a number from 0 to 1000000000, got -1"],
  [{ usd: Number.NaN }, "cost.usd must be a number from 0 to 1000000000, got NaN"],
  [{ usd: Number.POSITIVE_INFINITY }, "cost.usd must be a number from 0 to 1000000000, got Infinity"],
  [{ usd: 1e10 }, "cost.usd must be a number from 0 to 1000000000, got 10000000000"],
  [{ tokens: Number.MAX_SAFE_INTEGER }, "cost.tokens must be a number from 0 to 1000000000000000, got 9007199254740991"],
  [{ tokens: -0.5 }, "cost.tokens must be a number from 0 to 1000000000000000, got -0.5"],
  [{ usd: "0.1" }, 'cost.usd must be a number from 0 to 1000000000, got "0.1"'],
  [{ usd: 1n }, "cost.usd must be a number from 0 to 1000000000, got the bigint 1n"],
  [{ usd: null }, "cost.usd must be a number from 0 to 1000000000, got null"],
  [{ eur: 1 }, 'cost has an unknown part "eur"'],
  [null, "cost must be an object, got null"],
  [0.1, "cost must be an object, got 0.1"],
  [[], "cost must be an object, got an array"],
  [undefined, "cost must be an object, got undefined"],
];
for (const [cost, says] of REFUSED) {
  test(`a cost is rejected: ${says}`, () => {
    assert.throws(
      () => toAmount(cost, "cost"),
      (error) =>
        error instanceof HoldfastError && error.code === "COST_INVALID" && error.message === `${says}.` && error.hint !== "",
    );
  });
}

test("sums are whole, never negative, and stop at the largest countable amount", () => {
  fc.assert(
    fc.property(amounts, amounts, (a, b) => {
      for (const c of [plus(a, b), minus(a, b), larger(a, b), minus(plus(a, b), b)]) assert.ok(isAmount(c));
      assert.deepEqual(minus(plus(a, b), b), a);
    }),
  );
  const most: Amount = { micros: Number.MAX_SAFE_INTEGER, tokens: Number.MAX_SAFE_INTEGER };
  assert.deepEqual(plus(most, most), most);
});

test("amounts are printed in dollars and tokens", () => {
  assert.equal(amountText(NO_COST), "$0.00");
  assert.equal(amountText({ micros: 1_250_000, tokens: 300 }), "$1.25 and 300 tokens");
  assert.equal(amountText({ micros: 2_000, tokens: 0 }), "$0.002");
  assert.equal(amountText({ micros: 1, tokens: 0 }), "$0.000001");
  assert.equal(amountText({ micros: 0, tokens: 1 }), "1 token");
});

function cut({ micros, tokens }: Amount): Amount {
  return { micros: micros % (MAX_AMOUNT + 1), tokens: tokens % (MAX_AMOUNT + 1) };
}

function isAmount({ micros, tokens }: Amount): boolean {
  return [micros, tokens].every((part) => Number.isSafeInteger(part) && part >= 0);
}
