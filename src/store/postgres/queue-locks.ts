import { listOf } from "./driver.ts";
import { Overtaken } from "./faults.ts";
import type { Tx } from "./transaction.ts";

/**
 * Who decides about the limits of a queue holds its lock until the commit; everybody else waits. It comes before any
 * lock on a row of its jobs, and before the row that counts lanes and settings; those of several queues come in the
 * order of their names: so nobody waits in a circle.
 */
export class QueueLocks {
  readonly #sql: Record<"lock" | "tryLock", string>;
  /** What a transaction turned out to need when it was too late to wait: when it runs again, it takes all of them first. */
  #wanted: readonly string[] = [];

  constructor(s: string) {
    const name = `hashtextextended('holdfast limits ${s.replaceAll("'", "''")} ' || name, 0)`;
    this.#sql = {
      lock: `select pg_advisory_xact_lock(${name}) from unnest($1::text[]) as queue (name)`,
      tryLock: `select pg_try_advisory_xact_lock(${name}) from unnest($1::text[]) as queue (name)`,
    };
  }

  /** The next statement finds what those have left who had the lock before. */
  async take(tx: Tx, queues: Iterable<string>): Promise<void> {
    const held = tx.queues;
    const missing = [...new Set(queues)].filter((queue) => !held.includes(queue)).sort(byName);
    const [first] = missing;
    if (first === undefined) return;
    const isLate = tx.isLate || held.some((queue) => byName(first, queue) < 0);
    tx.queues = [...held, ...missing];
    if (!isLate) return void (await tx.rows(this.#sql.lock, listOf(missing)));
    const locked = await tx.rows<[boolean]>(this.#sql.tryLock, listOf(missing));
    if (locked.every(([got]) => got)) return;
    this.#wanted = [...held, ...missing];
    throw new Overtaken("Somebody else has the lock of a queue that comes first.", { soon: true });
  }

  /** Before anything else; null when it is none. */
  takeWanted(tx: Tx): Promise<void> | null {
    if (this.#wanted.length === 0) return null;
    tx.onCommit(() => (this.#wanted = []));
    return this.take(tx, this.#wanted);
  }
}

function byName(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
