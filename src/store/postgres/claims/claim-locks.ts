import type { LeaseRef } from "../../../core/jobs/lease.ts";
import { isHeld, isOver } from "../../sql/locks.ts";
import { dialectOf } from "../dialect.ts";
import type { Tx } from "../transactions/transaction.ts";

/** Whether a row `lock` is held at `clock.now`. */
export const LOCKED = (s: string): string => isHeld(dialectOf(s), "clock.now");

/** Locks as claims see them: they keep others away from queues. */
export class ClaimLocks {
  readonly #bind: string;

  constructor(s: string) {
    // From now on more follows from the job's end than its own row: others may claim from its queue again.
    this.#bind = `
      with clock as materialized (select ${s}.clock($1) as now),
      taken as (
        insert into ${s}.locks as lock (name, holder, token, acquired_at, job, fence)
        select $2, $3, $4, now, $5::bigint, $6::bigint from clock
        on conflict (name) do update set
          holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = null,
          expires_at = null, job = excluded.job, fence = excluded.fence, process = null
        where exists (select 1 from clock where ${isOver(dialectOf(s), "clock.now")})
        returning 1),
      loud as (update ${s}.jobs set quiet = false from taken where key = $5)
      select 1 from taken`;
  }

  /** Takes the lock for an exclusive claim; false, and nothing is changed, if somebody else has it. */
  async bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): Promise<boolean> {
    const taken = await tx.rows(this.#bind, tx.at, claim.queue, holder, token, claim.job, claim.fence);
    if (taken.length > 0) tx.wrote();
    return taken.length > 0;
  }
}
