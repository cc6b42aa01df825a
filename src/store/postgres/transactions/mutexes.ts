import { crc32 } from "node:zlib";
import { listOf } from "../connection/driver.ts";
import { RerunTransaction } from "../connection/faults.ts";
import type { LimitCache } from "../limits/limits.ts";
import type { Tx } from "./transaction.ts";

/**
 * Transactions take turns by locking rows of the table `mutexes`. Only a role that may change the schema can lock its rows;
 * advisory locks are open to every role that can connect.
 */
export const MUTEX = { builds: 1, numbers: 2, retention: 3 } as const;

/** Each queue has one of these; queues that share one take turns, too. */
export const QUEUE_MUTEXES = { first: 1_000, count: 1_024 } as const;

function queueMutex(queue: string): number {
  return QUEUE_MUTEXES.first + (crc32(queue) % QUEUE_MUTEXES.count);
}

/** Answers with one row when the transaction has the mutex. The next statement sees what the holders before it committed. */
function lockMutex(s: string, id: number): string {
  return `select true from ${s}.mutexes where id = ${id} for update`;
}

/** The same without waiting: no row while another transaction has it. */
export function tryLockMutex(s: string, id: number): string {
  return `${lockMutex(s, id)} skip locked`;
}

/**
 * How long the holder of a queue's lock waits for any other lock. Transactions of stores take a few milliseconds; a user's
 * may stay open for hours, and no store could claim from the queue meanwhile.
 */
const MAX_WAIT_MS = 250;

/** Another transaction holds what this one needs, and may wait for what it holds: it is rolled back and tried again. */
export class Stalled extends RerunTransaction {
  constructor() {
    super("Another transaction has it locked.");
  }
}

/**
 * A transaction that decides about the limits of a queue holds its lock until the commit; others wait. It comes before any
 * other row, and those of several queues come in the order of their mutexes: so no two wait for each other. A transaction that
 * finds out later that it needs one does not wait for it.
 */
export class QueueLocks {
  readonly #cache: LimitCache;
  readonly #sql: Record<"lock" | "tryLock", string>;
  /** What a transaction turned out to need when it was too late to wait: when it runs again, it takes all of them first. */
  #wanted: readonly string[] = [];
  #yields = false;

  constructor(s: string, cache: LimitCache) {
    this.#cache = cache;
    const taking = (skipLocked: string) => `
      with locked as materialized (
        select id from ${s}.mutexes where id = any($1::integer[]) order by id for update ${skipLocked})
      select count(*) = cardinality($1::integer[]), set_config('lock_timeout', '${MAX_WAIT_MS}', true) from locked`;
    this.#sql = { lock: taking(""), tryLock: taking("skip locked") };
  }

  /** The next statement finds what those have left who had the lock before. */
  async take(tx: Tx, queues: Iterable<string>): Promise<void> {
    const held = tx.queues;
    const missing = [...new Set(queues)].filter((queue) => !held.includes(queue));
    if (missing.length === 0) return;
    const mutexes = [...new Set(missing.map(queueMutex))];
    const first = Math.min(...mutexes);
    const isLate = tx.isLate || held.some((queue) => first < queueMutex(queue));
    tx.queues = [...held, ...missing];
    const locked = tx.rows<[boolean]>(isLate ? this.#sql.tryLock : this.#sql.lock, listOf(mutexes));
    const [[row]] = await Promise.all([locked, this.#cache.read(tx, missing)]);
    if (row?.[0]) return;
    this.#wanted = [...held, ...missing];
    throw new RerunTransaction("Another transaction has the lock of a queue that comes first.", { soon: true });
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

/** After so many conflicts in a row a transaction takes the lock at its beginning. */
const MAX_CONFLICTS = 3;

/**
 * A row that one transaction at a time holds until its commit. It comes after the locks of queues and before any other row.
 *
 * - `builds`: for every change of builds. There are few, and they come one after the other: of two processes that want to
 *   orchestrate a pipeline, the second finds the first.
 * - `counter`: for changes of lanes and settings, which it counts.
 */
export class OrderedLock {
  readonly #select: string;
  /** Another transaction had it when it was too late to wait: the next try takes it first. */
  #isWanted = false;
  #conflicts = 0;

  constructor(s: string, row: "builds" | "counter") {
    this.#select = row === "builds" ? lockMutex(s, MUTEX.builds) : `select true from ${s}.counter where id = 1 for update`;
  }

  /** The next statement sees what the holders before it committed. */
  async take(tx: Tx): Promise<void> {
    const taken = this.#take(tx);
    tx.isLate = true;
    await taken;
  }

  /** At the beginning of a transaction; null when it is not wanted. Other locks may still be waited for. */
  takeWanted(tx: Tx): Promise<void> | null {
    if (this.#isWanted || this.#conflicts > 0) {
      tx.onCommit(() => {
        this.#isWanted = false;
        this.#conflicts = 0;
      });
    }
    return this.#isWanted ? this.#take(tx) : null;
  }

  /** What it protects has changed under a transaction, which runs again: not for ever, however often it changes. */
  conflicted(): void {
    this.#isWanted ||= ++this.#conflicts >= MAX_CONFLICTS;
  }

  async #take(tx: Tx): Promise<void> {
    const taken = await tx.rows(tx.isLate ? `${this.#select} skip locked` : this.#select);
    if (taken.length > 0) return;
    this.#isWanted = true;
    throw new RerunTransaction("Another transaction has a lock that comes first.", { soon: true });
  }
}
