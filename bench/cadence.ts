import { setTimeout as pause } from "node:timers/promises";

const SHORTEST_MS = 20;
const LONGEST_MS = 80;

/**
 * Waits a random 20 to 80 ms between the jobs of a pick-up bench, the same sequence in every run. A fixed short cadence
 * keeps the worker's looks at their shortest interval, and hides what a job after a pause waits for.
 */
export class Cadence {
  #state: number;

  constructor(seed = 1) {
    this.#state = seed;
  }

  next(): Promise<void> {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0;
    return pause(SHORTEST_MS + (this.#state / 2 ** 32) * (LONGEST_MS - SHORTEST_MS));
  }
}
