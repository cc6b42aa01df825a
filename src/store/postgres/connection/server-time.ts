import type { Rows } from "./driver.ts";

const ASK_INTERVAL_MS = 1_000;

/**
 * The database's time, estimated without a query. Rows are written in that time, so decisions about them must not use this
 * host's clock, which may be an hour off.
 */
export class ServerTime {
  readonly #sql: string;
  readonly #monotonic: () => number;
  #ahead: number | null = null;
  #askedAt = Number.NEGATIVE_INFINITY;

  constructor(s: string, monotonic: () => number) {
    this.#sql = `select ${s}.clock(null)`;
    this.#monotonic = monotonic;
  }

  now(): number {
    return Math.round(this.#monotonic() + (this.#ahead ?? 0));
  }

  async keep(rows: Rows): Promise<void> {
    if (this.#monotonic() - this.#askedAt >= ASK_INTERVAL_MS) await this.ask(rows);
  }

  async ask(rows: Rows): Promise<void> {
    const before = (this.#askedAt = this.#monotonic());
    const [row] = await rows<[number]>(this.#sql);
    this.learn((row as [number])[0], before, this.#monotonic());
  }

  /**
   * The answer was given between these two instants: the estimate moves no further than that demands, so a slow answer never
   * makes it worse.
   */
  learn(answer: number, before: number, after: number): void {
    const [least, most] = [answer - after, answer + 1 - before];
    this.#ahead = this.#ahead === null ? (least + most) / 2 : Math.min(most, Math.max(least, this.#ahead));
  }
}
