import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { type Duration, durationText, toMillis } from "../../src/core/text/duration.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { RetryAfterError } from "../../src/core/jobs/event.ts";

const GOOD: [Duration, number][] = [
  [0, 0],
  [250, 250],
  [1.4, 1],
  ["500ms", 500],
  ["0s", 0],
  ["30s", 30_000],
  ["1.5s", 1_500],
  ["10m", 600_000],
  ["2h", 7_200_000],
  ["7d", 604_800_000],
];
for (const [given, millis] of GOOD) {
  test(`${JSON.stringify(given)} is ${millis} ms`, () => assert.equal(toMillis(given, "lease"), millis));
}

const BAD: unknown[] = [
  -1,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  1e300,
  "",
  "5",
  "5 s",
  "s",
  "-5s",
  "5y",
  "1e3s",
  ".5s",
  "5S",
  null,
  undefined,
  {},
  5n,
];
for (const given of BAD) {
  test(`${typeof given === "bigint" ? "5n" : (JSON.stringify(given) ?? "undefined")} (${typeof given}) is not a duration`, () => {
    assert.throws(
      () => toMillis(given as Duration, "lease"),
      (error) =>
        error instanceof HoldfastError &&
        error.code === "DURATION_INVALID" &&
        error.message.startsWith("lease must be a duration, got ") &&
        error.hint.includes("milliseconds") === (typeof given !== "string"),
    );
  });
}

test("a number and its unit multiply", () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 10_000 }), fc.constantFrom("ms", "s", "m", "h", "d"), (n, unit) => {
      const one = toMillis(`1${unit}`, "d");
      assert.equal(toMillis(`${n}${unit}`, "d"), n * one);
    }),
  );
});

test("durations are printed in the longest unit that fits", () => {
  for (const [millis, said] of [
    [0, "0ms"],
    [999, "999ms"],
    [1_000, "1s"],
    [1_500, "1.5s"],
    [59_999, "60s"],
    [720_000, "12m"],
    [10_800_000, "3h"],
    [86_400_000, "1d"],
  ] as const) {
    assert.equal(durationText(millis), said);
  }
});

test("a RetryAfterError takes a duration or a date, and rejects other values", () => {
  assert.equal(new RetryAfterError("30s").after, 30_000);
  const at = new Date(5);
  assert.equal(new RetryAfterError(at, "busy").after, at);
  assert.throws(() => new RetryAfterError("soon" as Duration), { code: "DURATION_INVALID" });
});
