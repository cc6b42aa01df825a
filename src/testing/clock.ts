import { describeValue, invalidOption, limitArguments, rejectSurplus } from "../core/text/options.ts";
import { type Clock, type Duration, toMillis } from "../core/text/duration.ts";

export interface TestClock extends Clock {
  /** Advances time, timer by timer, and waits until the work that they start has settled. */
  advance(by: Duration): Promise<void>;
  /** Sets the wall clock, as an administrator or a time server would; no time passes. */
  set(now: number): void;
}

/**
 * A clock that advances only on request.
 *
 * ```ts
 * const clock = testClock();
 * const hf = await open(":memory:", { clock });
 * await clock.advance("1h");
 * ```
 */
export function testClock(start = Date.UTC(2026, 0, 1)): TestClock {
  rejectSurplus(arguments, 1, "testClock");
  let passed = 0;
  let wall = checkTime(start);
  const timers = new Set<{ at: number; call: () => void }>();
  const underWay = new Set<Promise<unknown>>();

  const clock: TestClock = {
    now: () => wall,
    monotonic: () => passed,
    set: (now) => void (wall = now),
    after(millis, call) {
      // Round up to whole milliseconds, so that no timer is early.
      const timer = { at: passed + Math.max(0, Math.ceil(millis)), call };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    during(work) {
      const over = () => void underWay.delete(work);
      underWay.add(work);
      work.then(over, over);
    },
    async advance(by) {
      const end = passed + toMillis(by, "advance");
      for (;;) {
        await settled(underWay);
        const next = [...timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
        const to = next?.at ?? end;
        wall += Math.max(0, to - passed);
        passed = Math.max(passed, to);
        if (next === undefined) break;
        timers.delete(next);
        next.call();
      }
      await settled(underWay);
    },
  };
  return limitArguments(clock, "clock", { now: 0, monotonic: 0, set: 1, after: 2, advance: 1 });
}

function checkTime(start: unknown): number {
  if (typeof start === "number" && Number.isFinite(start)) return start;
  throw invalidOption(
    `testClock's start must be milliseconds since 1970, got ${describeValue(start)}.`,
    "Give a number such as Date.now().",
  );
}

/** How often resolved waits may start new ones before the clock advances anyway. */
const MAX_ROUNDS = 1_000;

/** Waits for a server's answers and some turns of the event loop: a commit takes one, and what it wakes takes another. */
async function settled(underWay: ReadonlySet<Promise<unknown>>): Promise<void> {
  for (let round = 0; round < MAX_ROUNDS; round++) {
    for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
    if (underWay.size === 0) return;
    await Promise.allSettled(underWay);
  }
}
