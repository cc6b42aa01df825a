import type { Decisions } from "./decisions.ts";
import { listOf } from "./driver.ts";
import { Overtaken } from "./faults.ts";
import type { Tx } from "./transaction.ts";

/**
 * How long whoever holds the lock of a queue waits for anything else, in milliseconds. What others do takes a few; a
 * user's own transaction may stay open for hours, and nobody could claim from the queue meanwhile.
 */
const LONGEST_WAIT = 250;

/** Somebody else has what it needs, and may well be waiting for what it holds: it lets go, and tries again until it can. */
export class Stalled extends Overtaken {
  constructor() {
    super("Somebody else's transaction has it locked.");
  }
}

/**
 * Who decides about the limits of a queue holds its lock until the commit; everybody else waits. It comes before any
 * lock on a row, and those of several queues come in the order of their names: so nobody waits in a circle. Whoever finds
 * out later that he needs one does not wait for it.
 */
export class QueueLocks {
  readonly #decisions: Decisions;
  readonly #sql: Record<"lock" | "tryLock", string>;
  /** What a transaction turned out to need when it was too late to wait: when it runs again, it takes all of them first. */
  #wanted: readonly string[] = [];
  #yields = false;

  constructor(s: string, decisions: Decisions) {
    this.#decisions = decisions;
    const name = `hashtextextended('holdfast limits ${s.replaceAll("'", "''")} ' || name, 0)`;
    // Waited for as long as it takes; from then on, nothing is.
    const taking = (lock: string) => `
      with lock as materialized (select ${lock}(${name})::text as answer from unnest($1::text[]) as queue (name))
      select coalesce(bool_and(answer <> 'false'), true), set_config('lock_timeout', '${LONGEST_WAIT}', true) from lock`;
    this.#sql = { lock: taking("pg_advisory_xact_lock"), tryLock: taking("pg_try_advisory_xact_lock") };
  }

  /** The next statement finds what those have left who had the lock before. */
  async take(tx: Tx, queues: Iterable<string>): Promise<void> {
    const held = tx.queues;
    const missing = [...new Set(queues)].filter((queue) => !held.includes(queue)).sort(byName);
    const [first] = missing;
    if (first === undefined) return;
    const isLate = tx.isLate || held.some((queue) => byName(first, queue) < 0);
    tx.queues = [...held, ...missing];
    const locked = tx.rows<[boolean]>(isLate ? this.#sql.tryLock : this.#sql.lock, listOf(missing));
    const [[row]] = await Promise.all([locked, this.#decisions.read(tx, missing)]);
    if (row?.[0]) return;
    this.#wanted = [...held, ...missing];
    throw new Overtaken("Somebody else has the lock of a queue that comes first.", { soon: true });
  }

  /** Before anything else, with others that are known to be needed; null when it is none. */
  takeWanted(tx: Tx, also: readonly string[]): Promise<void> | null {
    if (this.#wanted.length > 0 || this.#yields) {
      tx.onCommit(() => {
        this.#wanted = [];
        this.#yields = false;
      });
    }
    const queues = [...this.#wanted, ...also];
    return queues.length === 0 ? null : this.take(tx, queues);
  }

  /** What had to wait too long runs again, and takes no lock that it can do without. */
  get yields(): boolean {
    return this.#yields;
  }

  stalled(): void {
    this.#yields = true;
  }
}

function byName(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
