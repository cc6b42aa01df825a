import { Overtaken } from "./connection/faults.ts";
import type { Tx } from "./transactions/transaction.ts";

/** So often in a row somebody else may change what is known before a commit; then nobody does until it is done. */
const MOST_MISSES = 3;

/**
 * The row that counts lanes and settings. Whoever changes one of them holds it until the commit, so that they come one
 * after the other. It comes after the locks of queues and before any other row.
 */
export class Counter {
  readonly #sql: Record<"hold" | "tryHold", string>;
  /** Somebody else had it when it was too late to wait: when the transaction runs again, it takes it first. */
  #wanted = false;
  #misses = 0;

  constructor(s: string) {
    const hold = `select 1 from ${s}.counter where id = 1 for update`;
    this.#sql = { hold, tryHold: `${hold} skip locked` };
  }

  async hold(tx: Tx): Promise<void> {
    const rows = await tx.rows(tx.isLate ? this.#sql.tryHold : this.#sql.hold);
    if (rows.length > 0) return;
    this.#wanted = true;
    throw new Overtaken("Somebody else changes lanes or settings.", { soon: true });
  }

  /** Before any other row; null when it is not wanted. */
  holdWanted(tx: Tx): Promise<void> | null {
    if (this.#wanted || this.#misses > 0) {
      tx.onCommit(() => {
        this.#wanted = false;
        this.#misses = 0;
      });
    }
    return this.#wanted ? this.hold(tx) : null;
  }

  /** What a transaction relied on was changed by others, and it runs again: not for ever, however often they change it. */
  missed(): void {
    this.#wanted ||= ++this.#misses >= MOST_MISSES;
  }
}
