import type { LeaseRef } from "../../../core/jobs/lease.ts";
import { isHeld } from "../../sql/locks.ts";
import { DIALECT } from "../dialect.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/** Locks as claims see them: they keep others away from queues. */
export class ClaimLocks {
  readonly #any: Statement;
  readonly #held: Statement;
  readonly #bind: Statement;

  constructor(db: Connection) {
    this.#any = db.prepare("select 1 from holdfast_locks limit 1");
    this.#held = db.prepare(`select name from holdfast_locks as lock where ${isHeld(DIALECT)}`);
    this.#bind = db.prepare(
      `insert into holdfast_locks (name, holder, token, acquired_at, job, fence)
       values (:name, :holder, :token, :now, :job, :fence)
       on conflict (name) do update set
         holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = null,
         expires_at = null, job = excluded.job, fence = excluded.fence, process = null`,
    );
  }

  any(): boolean {
    return this.#any.row() !== undefined;
  }

  /** The names of locks that are held: queues that nobody may claim from. */
  held(now: number): string[] {
    if (!this.any()) return [];
    return this.#held.all<{ name: string }>({ now }).map(({ name }) => name);
  }

  /** Takes the lock for an exclusive claim, which has made sure in this transaction that it is free. */
  bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): void {
    this.#bind.runNamed({ name: claim.queue, holder, token, now: tx.now, job: claim.job, fence: claim.fence });
    tx.wrote();
  }
}
