import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { HoldfastError } from "../../src/core/text/errors.ts";
import {
  capBucket,
  countEnd,
  type LimitRule,
  canJoin,
  opensAt,
  parseRate,
  type Rate,
  countFree,
  countStart,
  type Usage,
  MAX_READY_JOBS,
  readyWindow,
} from "../../src/core/limits/limit.ts";

const NOW = Date.UTC(2026, 0, 1);

describe("a rate as it is written", () => {
  test("a rate is a number of starts in a period", () => {
    assert.deepEqual(parseRate("10/s", "rate"), { starts: 10, per: 1_000 });
    assert.deepEqual(parseRate("50/m", "rate"), { starts: 50, per: 60_000 });
    assert.deepEqual(parseRate("1000/h", "rate"), { starts: 1_000, per: 3_600_000 });
    assert.deepEqual(parseRate("1/d", "rate"), { starts: 1, per: 86_400_000 });
  });

  test("the period of a rate may have a fraction", () => {
    assert.deepEqual(parseRate("0.5/s", "rate"), { starts: 1, per: 2_000 });
    assert.deepEqual(parseRate("2.5/s", "rate"), { starts: 2, per: 800 });
  });

  for (const wrong of [
    "",
    "10",
    "10/",
    "/s",
    "0/s",
    "-1/s",
    "10/w",
    "1e3/s",
    "10 /s",
    "10/s ",
    "NaN/s",
    "99999999999/s",
    10,
    null,
    {},
  ]) {
    test(`a rate of ${JSON.stringify(wrong)} is rejected with a hint`, () => {
      assert.throws(
        () => parseRate(wrong, "The rate of job x"),
        (error) => error instanceof HoldfastError && error.code === "RATE_INVALID" && error.hint.includes("10/s"),
      );
    });
  }
});

describe("concurrency", () => {
  test("concurrency leaves room for jobs that do not run yet, and never less than zero", () => {
    const rule = ruleOf({ concurrency: 2 });
    assert.deepEqual(
      [0, 1, 2, 5].map((running) => countFree(rule, { running, bucket: 0 }, NOW)),
      [2, 1, 0, 0],
    );
    assert.equal(opensAt(rule, { running: 2, bucket: 0 }, NOW), null, "no instant frees a slot");
  });

  test("concurrency without a number is no limit", () => {
    assert.ok(countFree(ruleOf({}), { running: 1_000_000, bucket: 0 }, NOW) > 1_000_000);
  });
});

describe("a rate", () => {
  const rule = ruleOf({ rate: { starts: 3, per: 1_000 } });

  test("a rate allows all its starts at once, then one after another", () => {
    const usage = unused();
    for (let left = 3; left > 0; left--) {
      assert.equal(countFree(rule, usage, NOW), left);
      countStart(rule, usage, NOW);
    }
    assert.equal(countFree(rule, usage, NOW), 0);
    const opens = opensAt(rule, usage, NOW) as number;
    assert.equal(opens, NOW + 334);
    assert.equal(countFree(rule, usage, opens - 1), 0);
    assert.equal(countFree(rule, usage, opens), 1);
    assert.equal(countFree(rule, usage, NOW + 1_000), 3);
    assert.equal(countFree(rule, usage, NOW + 1_000_000), 3, "nothing is saved up");
  });

  test("a rate gets back the start of an attempt that never began, and not of one that ended", () => {
    const usage = unused();
    for (let i = 0; i < 3; i++) countStart(rule, usage, NOW);
    countEnd(rule, usage, true);
    assert.equal(countFree(rule, usage, NOW), 0);
    countEnd(rule, usage, false);
    assert.deepEqual([usage.running, countFree(rule, usage, NOW)], [1, 1]);
  });

  test("rate and concurrency apply together, and the smaller one wins", () => {
    const both = ruleOf({ concurrency: 2, rate: { starts: 3, per: 1_000 } });
    const usage = unused();
    assert.equal(countFree(both, usage, NOW), 2);
    for (let i = 0; i < 2; i++) countStart(both, usage, NOW);
    for (let i = 0; i < 2; i++) countEnd(both, usage, true);
    assert.equal(countFree(both, usage, NOW), 1);
  });

  test("a rate opens within its period after the clock was set back", () => {
    const usage = unused();
    for (let i = 0; i < 3; i++) countStart(rule, usage, NOW);
    const before = NOW - 86_400_000;
    assert.equal(countFree(rule, usage, before), 0);
    usage.bucket = capBucket(rule, usage.bucket, before);
    assert.equal(opensAt(rule, usage, before), before + 334);
    assert.equal(countFree(rule, usage, before + 334), 1);
    assert.equal(countFree(rule, usage, before + 1_000), 3);
  });
});

test("no more jobs are ready than could start, and at most a window", () => {
  assert.deepEqual([0, 1, MAX_READY_JOBS, 1_000_000].map(readyWindow), [0, 1, MAX_READY_JOBS, MAX_READY_JOBS]);
  assert.ok(canJoin(5, 5) && canJoin(MAX_READY_JOBS, 1));
  assert.ok(!canJoin(MAX_READY_JOBS + 5, 5), "those that outrank them are not without number either");
});

const rates = fc.record({ starts: fc.integer({ min: 1, max: 200 }), per: fc.integer({ min: 1, max: 100_000 }) });
const gaps = fc.array(fc.integer({ min: 0, max: 3_000 }), { minLength: 1, maxLength: 200 });

test("in any time t at most starts + starts × t / per jobs start", () => {
  fc.assert(
    fc.property(rates, gaps, fc.integer({ min: 1, max: 5 }), (rate, waits, eager) => {
      const rule = ruleOf({ rate });
      const usage = unused();
      const at: number[] = [];
      let now = NOW;
      for (const wait of waits) {
        now += wait;
        for (let i = 0; i < eager * rate.starts && countFree(rule, usage, now) > 0; i++) {
          countStart(rule, usage, now);
          at.push(now);
        }
      }
      for (let from = 0; from < at.length; from += 1 + Math.floor(at.length / 50)) {
        for (let to = from; to < at.length; to += 1 + Math.floor(at.length / 50)) {
          // A start is counted in 1,024ths of a millisecond.
          const time = ((at[to] as number) - (at[from] as number)) * (1 + 1 / 1_024);
          const most = rate.starts + (rate.starts * time) / rate.per;
          assert.ok(to - from + 1 <= most + 1e-2, `${to - from + 1} started, at most ${most}`);
        }
      }
    }),
  );
});

test("a job that waits until the rate opens may start then, and not a millisecond before", () => {
  fc.assert(
    fc.property(rates.filter(isCoarse), gaps, (rate, waits) => {
      const rule = ruleOf({ rate });
      const usage = unused();
      let now = NOW;
      for (const wait of waits) {
        now += wait;
        while (countFree(rule, usage, now) > 0) countStart(rule, usage, now);
        const opens = opensAt(rule, usage, now);
        assert.ok(opens !== null && opens > now && opens <= now + rate.per, `opens at ${opens}, now ${now}`);
        assert.ok(countFree(rule, usage, opens) > 0, "open");
        assert.equal(countFree(rule, usage, opens - 1), 0, "not yet");
      }
    }),
  );
});

test("running jobs never exceed the concurrency and return to zero", () => {
  const steps = fc.array(fc.constantFrom("start", "end", "give back", "wait"), { maxLength: 200 });
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 8 }), fc.option(rates, { nil: null }), steps, (concurrency, rate, moves) => {
      const rule = ruleOf({ concurrency, rate });
      const usage = unused();
      let now = NOW;
      for (const move of moves) {
        if (move === "start" && countFree(rule, usage, now) > 0) countStart(rule, usage, now);
        if (move !== "start" && move !== "wait" && usage.running > 0) countEnd(rule, usage, move === "end");
        if (move === "wait") now += 100;
        assert.ok(usage.running >= 0 && usage.running <= concurrency);
        assert.ok(countFree(rule, usage, now) <= concurrency - usage.running);
      }
      while (usage.running > 0) countEnd(rule, usage, true);
      assert.equal(countFree(rule, usage, now + 1_000_000), rate === null ? concurrency : Math.min(concurrency, rate.starts));
    }),
  );
});

function ruleOf(given: Partial<LimitRule>): LimitRule {
  return { of: "job", position: 0, keyed: true, concurrency: null, rate: null, ...given };
}

function unused(): Usage {
  return { running: 0, bucket: 0 };
}

/** Instants are whole milliseconds; a rate finer than that opens with the next one. */
function isCoarse({ starts, per }: Rate): boolean {
  return per / starts >= 1;
}
