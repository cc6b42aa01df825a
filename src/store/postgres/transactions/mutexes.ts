import { randomUUID } from "node:crypto";
import { crc32 } from "node:zlib";
import { listOf } from "../connection/driver.ts";
import { RerunTransaction } from "../connection/faults.ts";
import type { Tx } from "./transaction.ts";

/** Mutexes are row locks, which only roles with rights on the schema can take. Advisory locks are open to every role. */
export const MUTEX = { builds: 1, numbers: 2, retention: 3 } as const;

export const QUEUE_MUTEXES = { first: 1_000, count: 1_024 } as const;

function queueMutex(queue: string): number {
  return QUEUE_MUTEXES.first + (crc32(queue) % QUEUE_MUTEXES.count);
}

/** Returns one row when the transaction has the mutex. The next statement sees what the holders before it committed. */
function lockMutex(s: string, id: number): string {
  return `select true from ${s}.mutexes where id = ${id} for update`;
}

export function tryLockMutex(s: string, id: number): string {
  return `${lockMutex(s, id)} skip locked`;
}

/** The holder of a queue's lock waits this long for any other lock: a user may hold that for hours, and no store could claim. */
const MAX_WAIT_MS = 250;

/** Another transaction holds what this one needs, and may wait for this one, so this one rolls back and tries again. */
export class Stalled extends RerunTransaction {
  constructor() {
    super("Another transaction has it locked.");
  }
}

// A transaction that decides about a queue's limits locks the queue until the commit: before any row and in mutex order, against
// deadlocks. It does not wait for one needed later. A mutex stores the name of the last transaction that decided under it: a
// store that finds its own knows that its counters hold. Without counters in memory, a limited drain is half as fast.
export class QueueLocks {
  /** Called when counters of these queues may have changed since this store decided. */
  onStale: (isStale: (queue: string) => boolean) => void = () => {};
  readonly #sql: Record<"lock" | "tryLock" | "decided", string>;
  readonly #handle = randomUUID();
  #transactions = 0;
  readonly #decisions = new Map<number, string>();
  readonly #named = new WeakMap<Tx, { name: string; mutexes: Set<number> }>();
  /** Queues that a transaction needed when it was too late to wait. When it runs again, it takes all of them first. */
  #wanted: readonly string[] = [];
  #yields = false;

  constructor(s: string) {
    const taking = (skipLocked: string) => `
      with locked as materialized (
        select id, decision from ${s}.mutexes where id = any($1::integer[]) order by id for update ${skipLocked})
      select id, decision, set_config('lock_timeout', '${MAX_WAIT_MS}', true) from locked`;
    this.#sql = {
      lock: taking(""),
      tryLock: taking("skip locked"),
      decided: `update ${s}.mutexes set decision = $2 where id = any($1::integer[])`,
    };
  }

  async take(tx: Tx, queues: Iterable<string>): Promise<void> {
    const held = tx.queues;
    const missing = [...new Set(queues)].filter((queue) => !held.includes(queue));
    if (missing.length === 0) return;
    const heldMutexes = held.map(queueMutex);
    const mutexes = [...new Set(missing.map(queueMutex))].filter((mutex) => !heldMutexes.includes(mutex));
    tx.queues = [...held, ...missing];
    if (mutexes.length === 0) return;
    const isLate = tx.isLate || Math.min(...mutexes) < Math.max(0, ...heldMutexes);
    const locked = await tx.rows<[number, string | null]>(isLate ? this.#sql.tryLock : this.#sql.lock, listOf(mutexes));
    if (locked.length === mutexes.length)
      return this.#forget(locked.flatMap(([id, last]) => (this.#isOwn(id, last) ? [] : [id])));
    this.#wanted = [...held, ...missing];
    throw new RerunTransaction("Another transaction has the lock of a queue that comes first.", { soon: true });
  }

  /** Records that the transaction has changed counters of these queues, whose locks it holds. */
  decided(tx: Tx, queues: Iterable<string>): void {
    let named = this.#named.get(tx);
    if (named === undefined)
      this.#named.set(tx, (named = { name: `${this.#handle} ${++this.#transactions}`, mutexes: new Set() }));
    const { name, mutexes } = named;
    const added = [...new Set(Array.from(queues, queueMutex))].filter((mutex) => !mutexes.has(mutex));
    if (added.length === 0) return;
    for (const mutex of added) {
      mutexes.add(mutex);
      this.#decisions.set(mutex, name);
    }
    tx.onUndo(() => this.#forget(added));
    // The answer is not awaited: if it fails, so does the commit.
    tx.rows(this.#sql.decided, listOf(added), name).catch(() => {});
  }

  /** Records that counters of this queue were changed without the limit gate. */
  changed(tx: Tx, queue: string): void {
    this.#forget([queueMutex(queue)]);
    this.decided(tx, [queue]);
  }

  forget(): void {
    this.#decisions.clear();
  }

  #isOwn(mutex: number, last: string | null): boolean {
    return last !== null && this.#decisions.get(mutex) === last;
  }

  #forget(mutexes: readonly number[]): void {
    for (const mutex of mutexes) this.#decisions.delete(mutex);
    if (mutexes.length > 0) this.onStale((queue) => mutexes.includes(queueMutex(queue)));
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

// A row that one transaction at a time holds until its commit, after queue locks and before any other row. `builds` serializes
// every change of builds; `counter` serializes and counts changes of lanes and settings.
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

  /** Called when what the lock protects has changed under a transaction. After some conflicts, the transaction locks first. */
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
