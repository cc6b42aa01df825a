import { readFileSync } from "node:fs";

/** However busy it is, this share of the time counts: who waits for what never comes is found out anyway. */
const LEAST = 0.25;

/**
 * What others take of this machine: from now on, until it is asked how long something would have taken without them. It is
 * told by the kernel, where it tells how long somebody waited for a processor; elsewhere all counts.
 */
export class Busy {
  readonly #since = performance.now();
  readonly #waited = waited();

  fair(millis: number): number {
    const share = (waited() - this.#waited) / (performance.now() - this.#since);
    return millis * Math.max(LEAST, 1 - share);
  }
}

/** Milliseconds, since the machine was started. */
function waited(): number {
  try {
    const [, micros = "0"] = /^some .*total=(\d+)/m.exec(readFileSync("/proc/pressure/cpu", "utf8")) ?? [];
    return Number(micros) / 1_000;
  } catch {
    return 0;
  }
}
