import type { HeldLease, LeaseRef } from "../../core/lease.ts";
import type { Fate } from "../store.ts";
import type { Tx as ScriptTx } from "../sql/access.ts";
import { runSync } from "../sql/script.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Settle } from "./settle.ts";

/** Renewing and inspecting what one believes to hold. */
export class Leases {
  readonly #settle: Settle;
  readonly #renew: Statement;
  readonly #cut: string;

  constructor(db: Connection, settle: Settle) {
    this.#settle = settle;
    // Only a lease that is still the job's; an expired one that nobody took yet may be renewed.
    this.#renew = db.prepare(
      "update holdfast_jobs set expires_at = ?, lease = ? where key = ? and fence = ? and state = 'running'",
    );
    this.#cut = `
      update holdfast_jobs set expires_at = :now + lease
      where key = :job and fence = :fence and expires_at = :expiresAt and state = 'running'`;
  }

  renew(tx: Tx, leases: readonly (LeaseRef & { lease: number })[]): Fate[] {
    return leases.map((held) => {
      const { job, fence, lease } = held;
      if (this.#renew.run(tx.now + lease, lease, job, fence) === 0) return this.#settle.fate(held);
      tx.wrote();
      return "held";
    });
  }

  /** Leases that end further away than they can, because the clock was set back, end a lease from now. */
  cut(tx: ScriptTx, leases: readonly HeldLease[]): void {
    for (const { job, fence, expiresAt } of leases) runSync(tx.run(this.#cut, { job, fence, expiresAt }));
  }

  inspect(leases: readonly LeaseRef[]): Fate[] {
    return leases.map((lease) => this.#settle.fate(lease));
  }
}
