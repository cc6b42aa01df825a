import { randomUUID } from "node:crypto";
import { checkName, limitArguments } from "../core/text/options.ts";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { checkStorable } from "../core/text/text.ts";
import type { Engine } from "./engine.ts";

/** A named, leased mutex. While a caller holds the lock of a queue's name, no process claims from that queue. */
export interface Lock {
  /** Acquires the lock for `ttl`, by default "5m", and returns a token. Null: another holder has the lock. */
  acquire(holder: string, ttl?: Duration): Promise<string | null>;
  /** Makes the lock expire `ttl` from now. False: the lock is not, or no longer, held with this token. */
  extend(token: string, ttl: Duration): Promise<boolean>;
  release(token: string): Promise<boolean>;
  /** Returns the lock, also an expired one. Null: there is none. */
  get(): Promise<{ holder: string; acquiredAt: number; expiresAt: number } | null>;
  isStale(): Promise<boolean>;
}

const DEFAULT_TTL: Duration = "5m";

export function lockOf(engine: Engine, given: string, refuseClosed: () => void): Lock {
  const name = checkName(given, "The lock's name");
  const { store } = engine;
  const lock: Lock = {
    async acquire(holder, ttl = DEFAULT_TTL) {
      const token = randomUUID();
      return (await store.locks.acquire(name, checkName(holder, "The holder"), token, checkTtl(ttl))) ? token : null;
    },
    async extend(token, ttl) {
      return store.locks.renew(name, checkStorable(token, "The token"), checkTtl(ttl));
    },
    async release(token) {
      return store.locks.renew(name, checkStorable(token, "The token"), null);
    },
    async get() {
      const [lock] = await store.locks.list(name);
      return lock === undefined ? null : { holder: lock.holder, acquiredAt: lock.acquiredAt, expiresAt: lock.expiresAt };
    },
    async isStale() {
      return (await store.locks.list(name))[0]?.stale ?? false;
    },
  };
  return limitArguments(lock, "lock", { acquire: 2, extend: 2, release: 1, get: 0, isStale: 0 }, refuseClosed);
}

function checkTtl(ttl: Duration): number {
  const millis = toMillis(ttl, "ttl");
  if (millis >= 1) return millis;
  throw new HoldfastError("DURATION_INVALID", "The ttl of a lock must be longer than 0 ms.", 'Give a ttl, e.g. "5m".');
}
