import { crc32 } from "node:zlib";
import { listOf } from "../connection/driver.ts";
import { RerunTransaction } from "../connection/faults.ts";
import type { LimitCache } from "../limits/limits.ts";
import type { Tx } from "./transaction.ts";

/**
 * Transactions take turns by locking rows of `mutexes`. Only a role with rights on the schema can lock its rows; advisory locks
 * are open to every role that can connect.
 */
export const MUTEX = { builds: 1, numbers: 2, retention: 3 } as const;

export const QUEUE_MUTEXES = { first: 1_000, count: 1_024 } as const;

function queueMutex(queue: string): number {
  return QUEUE_MUTEXES.first + (crc32(queue) % QUEUE_MUTEXES.count);
}

/** One row when the transaction has the mutex. The next statement sees what the holders before it committed. */
function lockMutex(s: string, id: number): string {
  return `select true from ${s}.mutexes where id = ${id} for update`;
}

export function tryLockMutex(s: string, id: number): string {
  return `${lockMutex(s, id)} skip locked`;
}

/**
 * How long the holder of a queue's lock waits for any other lock. Transactions of stores take milliseconds; a user's may stay
 * open for hours, and no store could claim from the queue meanwhile.
 */
const MAX_WAIT_MS = 250;

/** Another transaction holds what this one needs, and may wait for this one: roll back and try again. */
export class Stalled extends RerunTransaction {
  constructor() {
    super("Another transaction has it locked.");
  }
}

/**
 * A transaction that decides about the limits of a queue holds the queue's lock until the commit. Queue locks come before any
 * row, in the order of their mutexes, so that no two transactions deadlock. A transaction that needs one later does not wait
 * for it.
 */
export class QueueLocks {
  readonly #cache: LimitCache;
  readonly #sql: Record<"lock" | "tryLock", string>;
  /** Queues that a transaction needed when it was too late to wait: when it runs again, it takes all of them first. */
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

  get yields(): boolean {
    return this.#yields;
  }

  stalled(): void {
    this.#yields = true;
  }
}

const MAX_CONFLICTS = 3;

/**
 * A row that one transaction at a time holds until its commit. It comes after the locks of queues and before any other row.
 * `builds`: for every change of builds. `counter`: for changes of lanes and settings, which it counts.
 */
export class OrderedLock {
  readonly #select: string;
  #isWanted = false;
  #conflicts = 0;

  constructor(s: string, row: "builds" | "counter") {
    this.#select = row === "builds" ? lockMutex(s, MUTEX.builds) : `select true from ${s}.counter where id = 1 for update`;
  }

  async take(tx: Tx): Promise<void> {
    const taken = this.#take(tx);
    tx.isLate = true;
    await taken;
  }

  takeWanted(tx: Tx): Promise<void> | null {
    if (this.#isWanted || this.#conflicts > 0) {
      tx.onCommit(() => {
        this.#isWanted = false;
        this.#conflicts = 0;
      });
    }
    return this.#isWanted ? this.#take(tx) : null;
  }

  /** What it protects has changed under a transaction, which runs again: not for ever. */
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
