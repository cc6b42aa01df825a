import { type Flag, isYes } from "./flag.ts";
import type { LockView } from "./locks.ts";

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
