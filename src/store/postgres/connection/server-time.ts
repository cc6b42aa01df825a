import type { Rows } from "./driver.ts";

/** How often it is asked for, at most, in milliseconds. */
const KEEP = 1_000;

/**
 * The database's time, as far as it can be told from here without asking. What is written is written in that time, so
 * decisions about what was read must not use the clock of this host, which may be an hour off.
 */
export class ServerTime {
  readonly #sql: string;
  readonly #monotonic: () => number;
  /** How far it is ahead of this process's monotonic clock. */
  #ahead: number | null = null;
  #askedAt = Number.NEGATIVE_INFINITY;

  constructor(s: string, monotonic: () => number) {
    this.#sql = `select ${s}.clock(null)`;
    this.#monotonic = monotonic;
  }

  now(): number {
    return Math.round(this.#monotonic() + (this.#ahead ?? 0));
  }

  /** Asks again, now and then: clocks drift, and are set. */
  async keep(rows: Rows): Promise<void> {
    if (this.#monotonic() - this.#askedAt >= KEEP) await this.ask(rows);
  }

  async ask(rows: Rows): Promise<void> {
    const before = (this.#askedAt = this.#monotonic());
    const [row] = await rows<[number]>(this.#sql);
    this.learn((row as [number])[0], before, this.#monotonic());
  }

  /**
   * The answer was given at some moment between these two: what is believed is moved no further than that demands, so a
   * slow answer never makes a good belief worse.
   */
  learn(answer: number, before: number, after: number): void {
    const [least, most] = [answer - after, answer + 1 - before];
    this.#ahead = this.#ahead === null ? (least + most) / 2 : Math.min(most, Math.max(least, this.#ahead));
  }
}
