import type { Clock } from "../core/clock.ts";
import { type Duration, toMillis } from "../core/duration.ts";

export interface TestClock extends Clock {
  /** Moves time on, stopping at each timer on the way, until everything that it set off has come to rest. */
  advance(by: Duration): Promise<void>;
  /** The wall clock is set, as an administrator or a time server would; no time passes. */
  set(now: number): void;
}

/**
 * A clock that stands still until told otherwise.
 *
 * ```ts
 * const clock = testClock();
 * const hf = await open(":memory:", { clock });
 * await clock.advance("1h");
 * ```
 */
export function testClock(start = Date.UTC(2026, 0, 1)): TestClock {
  let passed = 0;
  let wall = start;
  const timers = new Set<{ at: number; call: () => void }>();

  return {
    now: () => wall,
    monotonic: () => passed,
    set: (now) => void (wall = now),
    after(millis, call) {
      const timer = { at: passed + Math.max(0, millis), call };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    async advance(by) {
      const end = passed + toMillis(by, "advance");
      for (;;) {
        await settled();
        const next = [...timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
        const to = next?.at ?? end;
        wall += Math.max(0, to - passed);
        passed = Math.max(passed, to);
        if (next === undefined) break;
        timers.delete(next);
        next.call();
      }
      await settled();
    },
  };
}

/** A few turns of the event loop: a commit is one, what it wakes is another. */
async function settled(): Promise<void> {
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
}
