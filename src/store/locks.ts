import type { LeaseRef } from "../core/lease.ts";

/** Named, leased mutexes. */
export interface LockStore {
  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean>;
  extend(name: string, token: string, ttl: number): Promise<boolean>;
  release(name: string, token: string): Promise<boolean>;
  get(name: string): Promise<LockView | null>;
  /** Removes a lock whoever holds it: an operator's act. `stale`: only if its time, or its exclusive claim, is over. */
  break(name: string, options?: { stale: boolean }): Promise<boolean>;
  all(): Promise<LockView[]>;
  /** Removes locks that are expired, or whose exclusive claim is over. */
  clean(): Promise<number>;
  /** The names of the locks that `clean` would remove once these leases are reclaimed. Nothing is written. */
  stale(reclaimed: readonly LeaseRef[]): Promise<string[]>;
}

export interface LockView {
  name: string;
  holder: string;
  acquiredAt: number;
  expiresAt: number;
  stale: boolean;
}
