import type { LeaseRef } from "../../core/lease.ts";
import type { Fate } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Settle } from "./settle.ts";

/** Renewing and inspecting what one believes to hold. */
export class Leases {
  readonly #settle: Settle;
  readonly #renew: Statement;

  constructor(db: Connection, settle: Settle) {
    this.#settle = settle;
    // Only a lease that is still the job's; an expired one that nobody took yet may be renewed.
    this.#renew = db.prepare(
      "update holdfast_jobs set expires_at = ?, lease = ? where key = ? and fence = ? and state = 'running'",
    );
  }

  renew(tx: Tx, leases: readonly (LeaseRef & { lease: number })[]): Fate[] {
    return leases.map((held) => {
      const { job, fence, lease } = held;
      if (this.#renew.run(tx.now + lease, lease, job, fence) === 0) return this.#settle.fate(held);
      tx.wrote();
      return "held";
    });
  }

  inspect(leases: readonly LeaseRef[]): Fate[] {
    return leases.map((lease) => this.#settle.fate(lease));
  }
}
