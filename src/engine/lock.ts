import { randomUUID } from "node:crypto";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { checkName } from "../core/text/options.ts";
import { checkStorable } from "../core/text/text.ts";
import type { Engine } from "./engine.ts";

/** A named, leased mutex. Holding the lock of a queue's name keeps everybody from claiming there. */
export interface Lock {
  /** A token, or null while it is held. `ttl`: default "5m". */
  acquire(holder: string, ttl?: Duration): Promise<string | null>;
  /** From now, by the holder of the living token only. */
  extend(token: string, ttl: Duration): Promise<boolean>;
  release(token: string): Promise<boolean>;
  /** Shows an expired lock too. */
  get(): Promise<{ holder: string; acquiredAt: number; expiresAt: number } | null>;
  isStale(): Promise<boolean>;
}

const DEFAULT_TTL: Duration = "5m";

export function lockOf(engine: Engine, given: string, refuseClosed: () => void): Lock {
  const name = checkName(given, "The lock's name");
  const { store } = engine;
  return {
    async acquire(holder, ttl = DEFAULT_TTL) {
      refuseClosed();
      const token = randomUUID();
      return (await store.locks.acquire(name, checkName(holder, "The holder"), token, life(ttl))) ? token : null;
    },
    async extend(token, ttl) {
      refuseClosed();
      return store.locks.extend(name, checkStorable(token, "The token"), life(ttl));
    },
    async release(token) {
      refuseClosed();
      return store.locks.release(name, checkStorable(token, "The token"));
    },
    async get() {
      refuseClosed();
      const [lock] = await store.locks.list(name);
      return lock === undefined ? null : { holder: lock.holder, acquiredAt: lock.acquiredAt, expiresAt: lock.expiresAt };
    },
    async isStale() {
      refuseClosed();
      return (await store.locks.list(name))[0]?.stale ?? false;
    },
  };
}

function life(ttl: Duration): number {
  const millis = toMillis(ttl, "ttl");
  if (millis >= 1) return millis;
  throw new HoldfastError("DURATION_INVALID", "A lock for no time is no lock.", 'Give a ttl, e.g. "5m".');
}
