import { crc32 } from "node:zlib";

/**
 * Transactions take turns by locking rows of the table `mutexes`. Only a role that may change the schema can lock its rows;
 * advisory locks are open to every role that can connect.
 */
export const MUTEX = { builds: 1, numbers: 2, retention: 3 } as const;

/** Each queue has one of these; queues that share one take turns, too. */
export const QUEUE_MUTEXES = { first: 1_000, count: 1_024 } as const;

/** How long a statement waits for a lock, in milliseconds, unless the user or the server has set `lock_timeout`. */
export const LOCK_WAIT_MS = 15_000;

export function queueMutex(queue: string): number {
  return QUEUE_MUTEXES.first + (crc32(queue) % QUEUE_MUTEXES.count);
}

/** Answers with one row when the transaction has the mutex. The next statement sees what the holders before it committed. */
export function lockMutex(s: string, id: number): string {
  return `select true from ${s}.mutexes where id = ${id} for update`;
}

/** The same without waiting: no row while another transaction has it. */
export function tryLockMutex(s: string, id: number): string {
  return `${lockMutex(s, id)} skip locked`;
}
