import { Overtaken } from "../connection/faults.ts";
import { lockMutex, MUTEX, tryLockMutex } from "../transactions/mutexes.ts";
import type { Tx } from "../transactions/transaction.ts";

/**
 * Whoever moves builds, or does anything else to them that is written down, has the turn until the commit: these acts are few,
 * and come one after the other. So of two who want to lead a pipeline the second finds the first. It comes after the locks
 * of queues and before any row.
 */
export class Turn {
  readonly #sql: Record<"take" | "tryTake", string>;
  /** Somebody else had it when it was too late to wait: when the transaction runs again, it takes it first. */
  #wanted = false;

  constructor(s: string) {
    this.#sql = { take: lockMutex(s, MUTEX.builds), tryTake: tryLockMutex(s, MUTEX.builds) };
  }

  /** The next statement finds what those have left who had it before. */
  async take(tx: Tx): Promise<void> {
    const taken = this.#take(tx);
    tx.isLate = true;
    await taken;
  }

  /** Before any row; null when it is not wanted. Whatever else is taken first may still be waited for. */
  takeWanted(tx: Tx): Promise<void> | null {
    if (!this.#wanted) return null;
    tx.onCommit(() => (this.#wanted = false));
    return this.#take(tx);
  }

  async #take(tx: Tx): Promise<void> {
    const taken = await tx.rows(tx.isLate ? this.#sql.tryTake : this.#sql.take);
    if (taken.length > 0) return;
    this.#wanted = true;
    throw new Overtaken("Somebody else moves builds.", { soon: true });
  }
}
