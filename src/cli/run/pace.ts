import type { Build } from "../../core/build-view.ts";

/** What is further back says little about what comes. */
const WINDOW = 15_000;
/** Of less nobody can tell. */
const LEAST = 1_000;

/** How fast a build goes, and how long it will. */
export class Pace {
  readonly #seen: { at: number; ended: number }[] = [];

  /** `at` in milliseconds that never jump. */
  see(build: Build, at: number): void {
    const ended = sum(build, ({ ran, failed }) => ran + failed);
    if (this.#seen.at(-1)?.ended === ended && this.#seen.length > 1) this.#seen.pop();
    this.#seen.push({ at, ended });
    while (this.#seen.length > 2 && (this.#seen[1]?.at ?? at) < at - WINDOW) this.#seen.shift();
  }

  /** Pieces of work a second; null: nobody can tell yet. */
  rate(): number | null {
    const [first, last] = [this.#seen[0], this.#seen.at(-1)];
    if (first === undefined || last === undefined || last.at - first.at < LEAST) return null;
    return ((last.ended - first.ended) * 1_000) / (last.at - first.at);
  }

  /** In milliseconds. */
  timeLeft(build: Build): number | null {
    const rate = this.rate();
    return rate === null || rate === 0 ? null : (sum(build, ({ left }) => left) * 1_000) / rate;
  }
}

type Stage = Build["stages"][string];

function sum({ stages }: Build, of: (stage: Stage) => number): number {
  return Object.values(stages).reduce((total, stage) => total + of(stage), 0);
}
