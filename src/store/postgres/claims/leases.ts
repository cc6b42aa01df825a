import type { Fence, JobKey } from "../../../core/text/ids.ts";
import type { HeldLease, LeaseRef } from "../../../core/jobs/lease.ts";
import type { LeaseState } from "../../store.ts";
import { lists } from "../connection/driver.ts";
import { REFUSED } from "../connection/session-settings.ts";
import { LeaseStates } from "../../sql/notes.ts";
import { type Access as ScriptAccess, runAsync } from "../../sql/script.ts";
import { dialectOf } from "../scripts.ts";
import type { Tx } from "../transactions/transaction.ts";

/** `coalesce` hides the state from the planner, which would walk the index of running jobs: ten times as slow as by key. */
export const HELD = "job.key = asked.key and job.fence = asked.fence and coalesce(job.state, '') = 'running'";

/** Locks the rows that are still held, in the order of keys, so that no other transaction ends them before the commit. */
export const held = (s: string, asked: string): string => `
  select asked.* from ${asked} join ${s}.jobs as job on ${HELD}
  order by job.key for no key update of job`;

const MAX_TRIES = 6;
const RETRY_PAUSE_MS = 10;

type Renewal = LeaseRef & { lease: number };

export class Leases {
  readonly #states: LeaseStates;
  readonly #access: ScriptAccess;
  readonly #renew: string;
  readonly #cut: string;

  constructor(s: string, access: ScriptAccess) {
    this.#states = new LeaseStates(dialectOf(s));
    this.#access = access;
    // An expired lease may be renewed. Locked rows are skipped: a user's transaction may hold one while the others expire.
    this.#renew = `
      with clock as materialized (select ${s}.clock($1) as now),
      held as materialized (
        ${held(s, "unnest($2::bigint[], $3::bigint[], $4::bigint[]) as asked (key, fence, lease)")} skip locked),
      renewed as (
        update ${s}.jobs as job set expires_at = clock.now + held.lease, lease = held.lease
        from held, clock where job.key = held.key returning job.key, job.fence, job.expires_at),
      ${boundSql(s, "renewed")}
      select key, fence from renewed`;
    this.#cut = `
      with clock as materialized (select ${s}.clock($1) as now),
      held as materialized (
        ${held(s, "unnest($2::bigint[], $3::bigint[], $4::bigint[]) as asked (key, fence, expires_at)")} skip locked),
      cut as (
        update ${s}.jobs as job set expires_at = clock.now + job.lease
        from held, clock where job.key = held.key and job.expires_at = held.expires_at returning job.fence, job.expires_at),
      ${boundSql(s, "cut")}
      select 1 from cut`;
  }

  /** Shortens leases that end further away than possible, because the clock was set back, to one lease from now. */
  async cut(tx: Tx, leases: readonly HeldLease[]): Promise<number> {
    const cut = await tx.rows(this.#cut, tx.at, ...lists(leases, "job", "fence", "expiresAt"));
    if (cut.length > 0) tx.wrote();
    return cut.length;
  }

  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]> {
    return this.#access.read((db) => this.#states.of(db, leases));
  }

  /** Renews leases. Each try is a transaction. A lease that is still locked after the last try counts as held. */
  async renew(write: <T>(run: (tx: Tx) => Promise<T>) => Promise<T>, leases: readonly Renewal[]): Promise<LeaseState[]> {
    const fates = new Map<Renewal, LeaseState>();
    for (let left = leases, tries = 1; left.length > 0; tries++) {
      const { renewed, rest } = await write((tx) => this.#try(tx, left));
      for (const lease of renewed) fates.set(lease, "held");
      for (const { lease, fate } of rest) fates.set(lease, fate);
      left = tries === MAX_TRIES ? [] : rest.flatMap(({ lease, fate }) => (fate === "held" ? [lease] : []));
      if (left.length > 0) await new Promise((resolve) => setTimeout(resolve, RETRY_PAUSE_MS * 2 ** (tries - 1)));
    }
    return leases.map((lease) => fates.get(lease) as LeaseState);
  }

  async #try(tx: Tx, leases: readonly Renewal[]): Promise<{ renewed: Renewal[]; rest: { lease: Renewal; fate: LeaseState }[] }> {
    const rows = await tx.rows<[JobKey, Fence]>(this.#renew, tx.at, ...lists(leases, "job", "fence", "lease"));
    if (rows.length > 0) tx.wrote();
    const fences = new Map(rows);
    const isRenewed = ({ job, fence }: Renewal) => fences.get(job) === fence;
    const left = leases.filter((lease) => !isRenewed(lease));
    const fates = await runAsync(this.#states.of(tx, left));
    return { renewed: leases.filter(isRenewed), rest: left.map((lease, i) => ({ lease, fate: fates[i] as LeaseState })) };
  }
}

// Running jobs are recorded by claim: a row of `claims` per statement. All that start or end jobs or move leases update it.

// `job`: the started rows; `given`: the fence; $2: the process. `expected`: rows chosen by ctid. A statement that waited for a
// row lock gets the row's newest version, which it cannot change, so it is rejected and runs again.
export function startedSql(s: string, expected?: string): string {
  const isAny = "count(*) > 0";
  return `
    insert into ${s}.claims (fence, holder, expires_at, at_work, jobs)
    select (select fence from given), $2::bigint, min(expires_at), count(*), array_agg(key) from job
    having ${expected === undefined ? isAny : `case when count(*) = ${expected} then ${isAny} else ${s}.refuse('${REFUSED.moved}') end`}`;
}

/** Counts ended jobs off their claims; `ended` has the fence of each job. The row of a claim goes with its last job. */
export function endedSql(s: string, ended: string): string {
  return `
    over as (select fence, count(*) as n from ${ended} group by fence),
    left_over as materialized (
      select claim.fence, claim.at_work - over.n as at_work from ${s}.claims as claim join over on over.fence = claim.fence
      order by claim.fence for update of claim),
    fewer as (
      update ${s}.claims as claim set at_work = left_over.at_work
      from left_over where claim.fence = left_over.fence and left_over.at_work > 0),
    none as (delete from ${s}.claims as claim using left_over where claim.fence = left_over.fence and left_over.at_work <= 0)`;
}

function boundSql(s: string, changed: string): string {
  return `
    bounds as (select fence, count(*) as n, min(expires_at) as expires_at from ${changed} group by fence),
    bound as (
      update ${s}.claims as claim
      set expires_at = case when bounds.n >= claim.at_work then bounds.expires_at else least(claim.expires_at, bounds.expires_at) end
      from bounds where claim.fence = bounds.fence)`;
}
