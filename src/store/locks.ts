import { type Flag, isYes } from "./job-row.ts";

/** Named, leased mutexes. */
export interface LockStore {
  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean>;
  extend(name: string, token: string, ttl: number): Promise<boolean>;
  release(name: string, token: string): Promise<boolean>;
  /** All locks, or the one with this name; expired ones too. */
  list(name?: string): Promise<LockView[]>;
  /** Removes a lock whoever holds it: an operator's act. `stale`: only if its time, or its exclusive claim, is over. */
  break(name: string, options?: { stale: boolean }): Promise<boolean>;
  /** Removes locks that are expired, or whose exclusive claim is over. */
  clean(): Promise<number>;
}

export interface LockView {
  name: string;
  holder: string;
  acquiredAt: number;
  expiresAt: number;
  stale: boolean;
}

/** A lock as it is read; `job` is the one of the exclusive claim that it belongs to. */
export interface LockRow extends Omit<LockView, "stale"> {
  ended: Flag;
  job: number | null;
}

/** Expired locks are shown too; the lock of an exclusive claim that is over is simply gone. */
export function toLocks(rows: readonly LockRow[]): LockView[] {
  return rows
    .filter(({ ended, job }) => job === null || !isYes(ended))
    .map(({ name, holder, acquiredAt, expiresAt, ended }) => ({ name, holder, acquiredAt, expiresAt, stale: isYes(ended) }));
}

/** What was taken from its holder; `expiresAt` is null where it belonged to an exclusive claim. */
export interface BrokenLock {
  holder: string;
  acquiredAt: number;
  expiresAt: number | null;
}
