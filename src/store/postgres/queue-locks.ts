import { listOf } from "./driver.ts";
import { Overtaken } from "./faults.ts";
import type { Tx } from "./group.ts";

/**
 * Who decides about the limits of a queue holds its lock until the commit; everybody else waits. It comes before any
 * lock on a row of its jobs, and those of several queues come in the order of their names: so nobody waits in a circle.
 */
export class QueueLocks {
  readonly #sql: Record<"lock" | "tryLock", string>;
  readonly #held = new WeakMap<Tx, string[]>();
  /** What a transaction turned out to need, once it held others already: when it runs again, it takes all of them first. */
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
    const held = this.#held.get(tx) ?? [];
    const missing = new Set([...queues, ...(held.length === 0 ? this.#wanted : [])]);
    for (const queue of held) missing.delete(queue);
    if (missing.size === 0) return;
    const inOrder = [...missing].sort(byName);
    const all = [...held, ...inOrder].sort(byName);
    const isLate = byName(inOrder[0] as string, held.at(-1) ?? "") < 0;
    this.#held.set(tx, all);
    if (!isLate) {
      await tx.rows(this.#sql.lock, listOf(inOrder));
      tx.onCommit(() => (this.#wanted = []));
      return;
    }
    const locked = await tx.rows<[boolean]>(this.#sql.tryLock, listOf(inOrder));
    if (locked.every(([got]) => got)) return;
    this.#wanted = all;
    throw new Overtaken("Somebody else has the lock of a queue that comes first.");
  }
}

function byName(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
