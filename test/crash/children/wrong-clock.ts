import { readFileSync } from "node:fs";

/**
 * Loaded before anything else, in each thread: a host whose clock is wrong by as much as a file says, also while the
 * process runs. Time that only goes by (`performance.now`) is as it is, as when an operator sets a clock.
 */
const file = process.env["HOLDFAST_TEST_CLOCK"] as string;
const { now } = Date;

function wrong(): number {
  return now() + Number(readFileSync(file, "utf8"));
}

globalThis.Date = class extends Date {
  static override now = wrong;

  constructor(...given: unknown[]) {
    // With nothing given it is now.
    super(...((given.length === 0 ? [wrong()] : given) as [number]));
  }
} as DateConstructor;
