import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { MAX_TICKS, type Missed, nextTick, ON_TIME_MS, type ScheduleRule, dueTicks } from "../../src/core/jobs/schedule.ts";

const SECOND = 1_000;
const MINUTE = 60_000;
const HOUR = 3_600_000;
const DAY = 86_400_000;
const RULE: ScheduleRule = { cron: "* * * * *", timezone: "UTC", missed: "once", within: null, nextAt: 0 };

describe("a pattern", () => {
  const REFUSED: [unknown, string][] = [
    ["", "CRON_INVALID"],
    ["* * * *", "CRON_INVALID"],
    ["every day", "CRON_INVALID"],
    ["60 * * * *", "CRON_INVALID"],
    ["0 24 * * *", "CRON_INVALID"],
    ["*/0 * * * *", "CRON_INVALID"],
    ["@reboot", "CRON_INVALID"],
    ["@every 5m", "CRON_INVALID"],
    ["2026-01-01T00:00:00", "CRON_INVALID"],
    ["0 0 0 1 1 * 2030", "CRON_INVALID"],
    ["0 0 30 2 *", "CRON_INVALID"],
    ["0 0 31 4,6,9,11 *", "CRON_INVALID"],
    [undefined, "CRON_INVALID"],
    [null, "CRON_INVALID"],
    [5, "CRON_INVALID"],
    ["0 ".repeat(1_000), "CRON_INVALID"],
  ];
  for (const [cron, code] of REFUSED) {
    test(`${String(JSON.stringify(cron)).slice(0, 30)} is rejected, with a valid pattern in the hint`, () => {
      const error = refusal(() => nextTick(cron as string, "UTC", at("2026-01-01T00:00:00Z")));
      assert.equal(error.code, code);
      assert.ok(error.hint.length > 0);
    });
  }

  for (const timezone of ["", "Mars/Olympus", "Berlin", "CEST!", 5, null]) {
    test(`a pattern in the time zone ${JSON.stringify(timezone)} is rejected`, () => {
      assert.equal(refusal(() => nextTick("@daily", timezone as string, 0)).code, "TIMEZONE_INVALID");
    });
  }

  const NEXT: [string, string, string][] = [
    ["* * * * *", "2026-01-01T10:00:00Z", "2026-01-01T10:01:00Z"],
    ["* * * * *", "2026-01-01T09:59:59.999Z", "2026-01-01T10:00:00Z"],
    ["*/10 * * * * *", "2026-01-01T10:00:00.001Z", "2026-01-01T10:00:10Z"],
    ["@hourly", "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"],
    ["@daily", "2026-01-01T10:00:00Z", "2026-01-02T00:00:00Z"],
    ["@weekly", "2026-01-01T10:00:00Z", "2026-01-04T00:00:00Z"],
    ["@monthly", "2026-01-01T10:00:00Z", "2026-02-01T00:00:00Z"],
    ["@yearly", "2026-01-01T10:00:00Z", "2027-01-01T00:00:00Z"],
    ["0 0 29 2 *", "2026-01-01T10:00:00Z", "2028-02-29T00:00:00Z"],
    ["0 0 L * *", "2026-01-01T10:00:00Z", "2026-01-31T00:00:00Z"],
    ["30 9 * * MON-FRI", "2026-01-02T10:00:00Z", "2026-01-05T09:30:00Z"],
    ["0 2,14 * * *", "2026-01-01T02:00:00Z", "2026-01-01T14:00:00Z"],
  ];
  for (const [cron, after, next] of NEXT) {
    test(`${cron} after ${after} ticks at ${next}`, () => assert.equal(nextTick(cron, "UTC", at(after)), at(next)));
  }

  test("a pattern is parsed without reading the clock", (t) => {
    const rule = { ...RULE, cron: "30 2 * * *", timezone: "Europe/Berlin", nextAt: at("2026-03-01T01:30:00Z") };
    const ask = () => [nextTick("0 5 * * *", "Asia/Kolkata", 1e12), dueTicks(rule, at("2026-03-05T12:00:00Z"))];
    const today = ask();
    t.mock.timers.enable({ apis: ["Date"], now: at("1999-12-31T23:59:59Z") });
    assert.deepEqual(ask(), today);
  });
});

describe("when the clocks change", () => {
  /** Ticks from an instant on, in UTC. */
  const days: [string, string, string, string[]][] = [
    // Forward at 2:00 to 3:00: a time of day that there is not comes when the clocks have jumped.
    ["30 2 * * *", "Europe/Berlin", "2026-03-28T00:00Z", ["28T01:30", "29T01:00", "30T00:30"]],
    // Back at 3:00 to 2:00: a time of day that there is twice comes the first time.
    ["30 2 * * *", "Europe/Berlin", "2026-10-24T00:00Z", ["24T00:30", "25T00:30", "26T01:30"]],
    ["30 2 * * *", "America/New_York", "2026-03-07T00:00Z", ["07T07:30", "08T07:00", "09T06:30"]],
    ["30 1 * * *", "America/New_York", "2026-10-31T00:00Z", ["31T05:30", "01T05:30", "02T06:30"]],
    // By half an hour: forward at 2:00, back at 2:00.
    ["15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00Z", ["02T15:45", "03T15:30", "04T15:15"]],
    ["45 1 * * *", "Australia/Lord_Howe", "2026-04-03T12:00Z", ["03T14:45", "04T14:45", "05T15:15"]],
    // Listed times are times of day too.
    ["30 2,14 * * *", "Europe/Berlin", "2026-10-24T20:00Z", ["25T00:30", "25T13:30", "26T01:30"]],
    ["30 2,14 * * *", "Europe/Berlin", "2026-03-28T20:00Z", ["29T01:00", "29T12:30", "30T00:30"]],
    // What is repeated follows the hours as they pass.
    ["0 * * * *", "Europe/Berlin", "2026-03-29T00:30Z", ["29T01:00", "29T02:00", "29T03:00"]],
    ["0 * * * *", "Europe/Berlin", "2026-10-24T23:30Z", ["25T00:00", "25T01:00", "25T02:00"]],
  ];
  for (const [cron, timezone, from, expected] of days) {
    test(`${cron} in ${timezone} from ${from} ticks at ${expected.join(", ")}`, () => {
      const ticks: string[] = [];
      for (let tick = at(from); ticks.length < expected.length;) {
        tick = nextTick(cron, timezone, tick);
        ticks.push(new Date(tick).toISOString().slice(8, 16));
      }
      assert.deepEqual(ticks, expected);
    });
  }

  for (const timezone of ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo"]) {
    test(`a time of day in ${timezone} ticks once on each day of the year`, () => {
      const day = new Intl.DateTimeFormat("en-CA", { timeZone: timezone });
      for (const time of ["0 0", "45 1", "15 2", "30 2"]) {
        const seen = new Map<string, number>();
        for (let tick = at("2026-01-01T00:00:00Z"); tick < at("2027-01-01T00:00:00Z");) {
          tick = nextTick(`${time} * * *`, timezone, tick);
          const name = day.format(tick);
          seen.set(name, (seen.get(name) ?? 0) + 1);
        }
        assert.deepEqual(
          [...seen].filter(([, times]) => times !== 1),
          [],
          time,
        );
        assert.ok(seen.size >= 365, `${time}: ${seen.size} days`);
      }
    });
  }
});

describe("of the ticks that are due", () => {
  const noon = at("2026-01-01T12:00:00Z");

  test("no tick is due before the next one's instant", () => {
    assert.equal(dueTicks({ ...RULE, nextAt: noon }, noon - 1), null);
    assert.deepEqual(dueTicks({ ...RULE, nextAt: noon }, noon), { fire: [noon], nextAt: noon + MINUTE });
  });

  for (const missed of ["skip", "once", "all"] as const) {
    test(`"${missed}" runs each tick that is on time, up to ten seconds late`, () => {
      assert.deepEqual(dueTicks({ ...RULE, missed, nextAt: noon }, noon + ON_TIME_MS)?.fire, [noon]);
      const seconds = { ...RULE, cron: "* * * * * *", missed, nextAt: noon };
      assert.deepEqual(dueTicks(seconds, noon + 3_500), {
        fire: [noon, noon + SECOND, noon + 2 * SECOND, noon + 3 * SECOND],
        nextAt: noon + 4 * SECOND,
      });
    });
  }

  const LATE: [Missed, number | null, number, number[]][] = [
    // Missed, within, so many milliseconds after noon, what runs of the minutes.
    ["skip", null, ON_TIME_MS + 1, []],
    ["skip", null, HOUR + 5_000, [HOUR]],
    ["skip", null, HOUR + 30_000, []],
    ["once", null, ON_TIME_MS + 1, [0]],
    ["once", null, HOUR + 5_000, [HOUR]],
    ["once", null, HOUR + 30_000, [HOUR]],
    ["once", null, 400 * DAY + 30_000, [400 * DAY]],
    ["once", 20_000, 30_000, []],
    ["once", 30_000, 30_000, [0]],
    ["once", 0, 5_000, [0]],
    ["all", null, 3 * MINUTE + 30_000, [0, MINUTE, 2 * MINUTE, 3 * MINUTE]],
    ["all", 2 * MINUTE, 3 * MINUTE + 30_000, [2 * MINUTE, 3 * MINUTE]],
    ["all", 2 * MINUTE, 3 * MINUTE, [MINUTE, 2 * MINUTE, 3 * MINUTE]],
    ["all", 0, 3 * MINUTE + 5_000, [3 * MINUTE]],
    ["all", 0, 3 * MINUTE + 30_000, []],
  ];
  for (const [missed, within, late, expected] of LATE) {
    test(`"${missed}" ${within === null ? "" : `within ${within} ms `}runs ${expected.length} of the minutes, ${late} ms later`, () => {
      const due = dueTicks({ ...RULE, missed, within, nextAt: noon }, noon + late);
      assert.deepEqual(
        due?.fire.map((tick) => tick - noon),
        expected,
      );
      assert.equal(due?.nextAt, noon + (Math.floor(late / MINUTE) + 1) * MINUTE);
    });
  }

  test('"all" comes in chunks, and reaches back a day unless told otherwise', () => {
    const rule: ScheduleRule = { ...RULE, missed: "all", nextAt: noon };
    const now = noon + 3 * DAY;
    const ticks: number[] = [];
    for (let due = dueTicks(rule, now); due !== null; due = dueTicks(rule, now)) {
      assert.ok(due.fire.length <= MAX_TICKS);
      ticks.push(...due.fire);
      rule.nextAt = due.nextAt;
    }
    assert.deepEqual(
      ticks,
      Array.from({ length: 24 * 60 + 1 }, (_, i) => noon + 2 * DAY + i * MINUTE),
    );
  });

  test("the newest of millions of ticks is found without visiting the others", () => {
    // The first half of each minute, every second; looked at in the middle of the other half.
    const newest = noon + 365 * DAY + 29_000;
    const started = performance.now();
    const due = dueTicks({ ...RULE, cron: "0-29 * * * * *", nextAt: noon }, newest + 16_000);
    assert.deepEqual(due, { fire: [newest], nextAt: noon + 365 * DAY + MINUTE });
    assert.ok(performance.now() - started < 1_000, "to walk would take minutes");
  });
});

const PATTERNS = [
  "* * * * * *",
  "*/7 * * * * *",
  "* * * * *",
  "*/13 * * * *",
  "30 2 * * *",
  "0 2,14 * * *",
  "15 */6 * * *",
  "0 0 1 * *",
];
const ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"];
const anyRule = fc.record({
  cron: fc.constantFrom(...PATTERNS),
  timezone: fc.constantFrom(...ZONES),
  missed: fc.constantFrom<Missed>("skip", "once", "all"),
  within: fc.constantFrom(null, 0, 5 * SECOND, HOUR),
});
/** Around the nights on which clocks change, too. */
const anyStart = fc
  .tuple(fc.constantFrom("2026-03-28T22:00Z", "2026-10-24T22:00Z", "2026-03-08T05:00Z", "2026-06-01T00:00Z"), fc.nat(4 * HOUR))
  .map(([from, more]) => at(from) + more);
/** The clock, from look to look: mostly on, now and then back. */
const anySteps = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: fc.nat(5_000) },
    { weight: 3, arbitrary: fc.nat(2 * HOUR) },
    { weight: 1, arbitrary: fc.nat(3 * DAY) },
    { weight: 1, arbitrary: fc.integer({ min: -HOUR, max: 0 }) },
  ),
  { minLength: 1, maxLength: 12 },
);

describe("whatever the clock does between two looks", () => {
  test("ticks rise, none repeats or comes early, each matches the pattern, and on time none is lost", () => {
    fc.assert(
      fc.property(anyRule, anyStart, anySteps, (given, start, steps) => {
        const rule: ScheduleRule = { ...given, nextAt: nextTick(given.cron, given.timezone, start) };
        let now = start;
        let last = Number.NEGATIVE_INFINITY;
        for (const step of steps) {
          now += step;
          for (let chunks = 0; chunks < 3; chunks++) {
            const due = dueTicks(rule, now);
            if (due === null) break;
            assert.ok(due.nextAt > rule.nextAt, "it gets on");
            assert.ok(rule.missed === "all" || due.nextAt > now, "all that is due is dealt with");
            for (const [i, tick] of due.fire.entries()) {
              assert.ok(tick > last, "ticks rise");
              assert.ok(tick <= now && tick >= rule.nextAt && tick < due.nextAt, "none too early, none of the past");
              if (i % 25 === 0)
                assert.equal(nextTick(rule.cron, rule.timezone, tick - SECOND), tick, "it is a tick of the pattern");
              last = tick;
            }
            const fired = new Set(due.fire);
            const from = Math.max(rule.nextAt, now - ON_TIME_MS);
            for (let tick = nextTick(rule.cron, rule.timezone, Math.ceil(from / SECOND) * SECOND - SECOND); tick <= now;) {
              if (tick >= due.nextAt) break;
              assert.ok(fired.has(tick), "what is on time is not lost");
              tick = nextTick(rule.cron, rule.timezone, tick);
            }
            rule.nextAt = due.nextAt;
          }
        }
      }),
      { numRuns: 100 },
    );
  });

  test("checked in time, each tick comes in order, with every value of `missed`", () => {
    fc.assert(
      fc.property(anyRule, anyStart, fc.array(fc.nat(ON_TIME_MS), { maxLength: 30 }), (given, start, steps) => {
        const rule: ScheduleRule = { ...given, nextAt: nextTick(given.cron, given.timezone, start) };
        const first = rule.nextAt;
        const fired: number[] = [];
        let now = start;
        for (const step of steps) {
          now += step;
          const due = dueTicks(rule, now);
          if (due === null) continue;
          fired.push(...due.fire);
          rule.nextAt = due.nextAt;
        }
        const expected: number[] = [];
        for (let tick = first; tick <= now; tick = nextTick(rule.cron, rule.timezone, tick)) expected.push(tick);
        assert.deepEqual(fired, expected);
      }),
      { numRuns: 100 },
    );
  });

  test('"once" runs the newest that was missed, however many there were', () => {
    fc.assert(
      fc.property(anyRule, anyStart, fc.integer({ min: ON_TIME_MS + 1, max: 10 * MINUTE }), (given, start, late) => {
        const rule: ScheduleRule = {
          ...given,
          missed: "once",
          within: null,
          nextAt: nextTick(given.cron, given.timezone, start),
        };
        const now = rule.nextAt + late;
        let newest = rule.nextAt;
        for (let tick = newest; tick <= now; tick = nextTick(rule.cron, rule.timezone, tick)) newest = tick;
        assert.equal(dueTicks(rule, now)?.fire.at(-1), newest);
      }),
      { numRuns: 50 },
    );
  });
});

function at(instant: string): number {
  return new Date(instant).getTime();
}

function refusal(act: () => unknown): HoldfastError {
  try {
    act();
  } catch (error) {
    assert.ok(error instanceof HoldfastError, String(error));
    return error;
  }
  assert.fail("it was not refused");
}
