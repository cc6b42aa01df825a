import { readFileSync } from "node:fs";

/** However busy it is, this share of the time counts: who waits for what never comes is found out anyway. */
const LEAST = 0.25;

/**
 * Processor time that other programs take of this machine, from construction until the caller asks how long something
 * would have taken without them. The kernel reports how long a process waited for a processor; where it does not, all
 * time counts.
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
