import type { Rows, Sql, Value } from "./driver.ts";
import { closedError, explain, isLost } from "./faults.ts";

/** Between two tries to reach a server that is gone, in milliseconds; at most the second. */
const BACKOFF = 50;
const LONGEST_BACKOFF = 1_000;

/** Reads, each by itself, over connections of their own: nobody who looks waits for those who write. */
export class Reader {
  readonly #sql: Sql;
  readonly #options: { address: string; patience: number; random: () => number };

  #closed = false;

  constructor(sql: Sql, options: { address: string; patience: number; random: () => number }) {
    this.#sql = sql;
    this.#options = options;
  }

  /** Reading twice does no harm: a lost connection is tried again, for a while. */
  readonly rows: Rows = <Row extends readonly unknown[]>(text: string, ...values: Value[]): Promise<Row[]> =>
    this.#patiently(() => this.#sql.unsafe(text, values as never[], { prepare: true }).values() as unknown as Promise<Row[]>);

  /**
   * Statements without values as one transaction, which nobody has to hold open: the server runs it through by itself,
   * also when whoever sent it dies or is stopped. The rows of each. It must do no harm to run it twice.
   */
  script<Row extends readonly unknown[]>(...statements: string[]): Promise<Row[][]> {
    return this.#patiently(() => this.#sql.unsafe(statements.join(";")).values() as unknown as Promise<Row[][]>);
  }

  /** Sent once: for what is not worth waiting for. */
  async attempt(text: string, ...values: Value[]): Promise<readonly unknown[]> {
    return this.#sql.unsafe(text, values as never[], { prepare: true }).values();
  }

  async #patiently<T>(send: () => Promise<T>): Promise<T> {
    if (this.#closed) throw closedError();
    const since = performance.now();
    for (let losses = 0; ; losses++) {
      try {
        return await send();
      } catch (error) {
        const patient = performance.now() - since < this.#options.patience;
        if (!isLost(error) || !patient) throw explain(error, this.#options.address);
        const longest = Math.min(LONGEST_BACKOFF, BACKOFF * 2 ** losses);
        await new Promise((resolve) => setTimeout(resolve, longest * (0.5 + this.#options.random() / 2)));
      }
    }
  }

  close(): Promise<void> {
    this.#closed = true;
    return this.#sql.end({ timeout: 5 });
  }
}
