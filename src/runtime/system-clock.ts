import type { Clock } from "../core/clock.ts";

/** Real time. Monotonic time is the kernel's, so threads of one process agree on it. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic,
  after(millis, call) {
    let timer: NodeJS.Timeout;
    // Node's own timers reach 24 days; longer ones are made of several.
    const wait = (left: number) => {
      const step = Math.min(left, 2 ** 31 - 1);
      timer = setTimeout(() => (left > step ? wait(left - step) : call()), step).unref();
    };
    wait(millis);
    return () => clearTimeout(timer);
  },
};

/** A user's clock may tell only the time of day; timers and intervals then stay real. */
export function clockFrom(given: { now(): number } | undefined): Clock {
  if (given === undefined) return systemClock;
  if ("monotonic" in given && "after" in given) return given as Clock;
  return { ...systemClock, now: () => Math.round(given.now()) };
}

function monotonic(): number {
  const [seconds, nanos] = process.hrtime();
  return seconds * 1_000 + nanos / 1_000_000;
}
