import type { ProcessId } from "../../core/ids.ts";
import type { LeaseRef } from "../../core/lease.ts";
import { type BrokenLock, toLocks } from "../lock-row.ts";
import type { LockStore, LockView } from "../locks.ts";
import type { Access } from "./access.ts";
import type { Acts } from "./acts.ts";
import { listOf, type Rows } from "./driver.ts";
import type { Healed } from "./healed.ts";
import type { Processes } from "./processes.ts";
import type { Tx } from "./transaction.ts";

/**
 * Whether a row `lock` is held at `clock.now`: its time is not over, or the exclusive claim that it belongs to still runs.
 * Said so that no plan walks all running jobs to find that one.
 */
export const LOCKED = (s: string): string => `(
  (lock.job is null and lock.expires_at > clock.now)
  or (lock.job is not null and exists (
    select 1 from ${s}.jobs as held
    where held.key = lock.job and held.fence = lock.fence and coalesce(held.state, '') = 'running')))`;

/**
 * Whether it is over, for those who change it. Whoever waited for the row finds it as it is now, but the jobs as they were
 * when the statement began: a claim that was bound to it meanwhile does not run there yet, and must not pass for ended.
 */
const OVER = (s: string): string => `(
  not ${LOCKED(s)}
  and (lock.job is null or exists (
    select 1 from ${s}.locks as seen where seen.name = lock.name and seen.job = lock.job and seen.fence = lock.fence)))`;

type Row = [name: string, holder: string, acquiredAt: number, expiresAt: number, ended: boolean, job: number | null];

/**
 * Named, leased mutexes. A lock is free when it has no row, when its time is over, or when the exclusive claim that it
 * belongs to is: that kind has no expiry and needs no release, it is read off the job's own row.
 */
export class Locks implements LockStore {
  readonly #access: Access;
  readonly #acts: Acts;
  readonly #processes: Processes;
  readonly #healed: Healed;
  readonly #sql: Record<
    | "acquire"
    | "bind"
    | "extend"
    | "release"
    | "break"
    | "clean"
    | "cut"
    | "unclean"
    | "all"
    | "ofProcesses"
    | "freeOf"
    | "freeBound",
    string
  >;

  constructor(s: string, parts: { acts: Acts; processes: Processes; healed: Healed }, access: Access) {
    this.#access = access;
    this.#acts = parts.acts;
    this.#processes = parts.processes;
    this.#healed = parts.healed;
    const clock = `clock as materialized (select ${s}.clock($1) as now)`;
    const taken = "holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = excluded.ttl";
    const bound = "expires_at = excluded.expires_at, job = excluded.job, fence = excluded.fence, process = excluded.process";
    // One statement: of two that try at once, one inserts or replaces; the other waits for its commit, and changes nothing.
    const take = (columns: string, values: string) => `
      with ${clock}
      insert into ${s}.locks as lock (name, holder, token, acquired_at, ${columns})
      select $2, $3, $4, now, ${values} from clock
      on conflict (name) do update set ${taken}, ${bound} where exists (select 1 from clock where ${OVER(s)})
      returning 1`;
    const mine = "lock.name = $2 and lock.token = $3 and lock.job is null and lock.expires_at > clock.now";
    this.#sql = {
      acquire: take("ttl, expires_at, process", "$5::bigint, now + $5::bigint, $6::bigint"),
      // From now on more follows from the job's end than its own row: others may claim from its queue again.
      bind: `
        with taken as (${take("job, fence", "$5::bigint, $6::bigint")}),
        loud as (update ${s}.jobs set quiet = false from taken where key = $5)
        select 1 from taken`,
      extend: `
        with ${clock}
        update ${s}.locks as lock set ttl = $4::bigint, expires_at = clock.now + $4::bigint, process = $5::bigint from clock where ${mine} returning 1`,
      release: `with ${clock} delete from ${s}.locks as lock using clock where ${mine} returning 1`,
      break: `
        with ${clock}
        delete from ${s}.locks as lock using clock where lock.name = $2 and (not $3 or ${OVER(s)})
        returning lock.holder, lock.acquired_at, lock.expires_at`,
      clean: `with ${clock} delete from ${s}.locks as lock using clock where ${OVER(s)} returning name`,
      // Further away than its own time: the clock was set back since, and the lock must not last longer for it.
      cut: `
        with ${clock}
        update ${s}.locks as lock set expires_at = clock.now + ttl from clock where expires_at > clock.now + ttl returning 1`,
      unclean: `
        with ${clock}
        select 1 from ${s}.locks as lock, clock where ${OVER(s)} or lock.expires_at > clock.now + lock.ttl limit 1`,
      all: `
        with ${clock}
        select lock.name, lock.holder, lock.acquired_at, coalesce(lock.expires_at, job.expires_at, 0), not ${LOCKED(s)}, lock.job
        from clock, ${s}.locks as lock left join ${s}.jobs as job on job.key = lock.job and job.fence = lock.fence
        where $2::text is null or lock.name = $2 order by lock.name collate "C"`,
      ofProcesses: `
        with ${clock}
        select lock.name from clock, ${s}.locks as lock
          left join ${s}.jobs as job on job.key = lock.job and job.fence = lock.fence and coalesce(job.state, '') = 'running'
        where (lock.job is null and lock.process = any($2::bigint[]) and lock.expires_at > clock.now)
          or job.holder = any($2::bigint[]) order by lock.name collate "C"`,
      freeOf: `
        with ${clock}
        delete from ${s}.locks as lock using clock
        where lock.process = $2 and lock.job is null and lock.expires_at > clock.now returning name`,
      freeBound: `
        delete from ${s}.locks as lock using unnest($1::bigint[], $2::bigint[]) as ended (job, fence)
        where lock.job = ended.job and lock.fence = ended.fence returning name`,
    };
  }

  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean> {
    return this.#write(name, async (tx) =>
      this.#wrote(tx, await tx.rows(this.#sql.acquire, tx.at, name, holder, token, ttl, this.#locker)),
    );
  }

  /** The queue's lock for a claim of this transaction; false, and nothing is changed, when somebody else has it. */
  async bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): Promise<boolean> {
    return this.#wrote(tx, await tx.rows(this.#sql.bind, tx.at, claim.queue, holder, token, claim.job, claim.fence));
  }

  /** It is that process's from then on. */
  extend(name: string, token: string, ttl: number): Promise<boolean> {
    return this.#write(name, async (tx) =>
      this.#wrote(tx, await tx.rows(this.#sql.extend, tx.at, name, token, ttl, this.#locker)),
    );
  }

  release(name: string, token: string): Promise<boolean> {
    return this.#write(name, async (tx) => {
      const released = this.#wrote(tx, await tx.rows(this.#sql.release, tx.at, name, token));
      if (released) tx.ready(name);
      return released;
    });
  }

  async get(name: string): Promise<LockView | null> {
    const [lock] = await this.#views(name);
    return lock ?? null;
  }

  /** `stale`: only if it is free by now, and nobody has come for it. */
  break(name: string, { stale = false } = {}): Promise<boolean> {
    return this.#write(name, async (tx) => {
      const [row] = await tx.rows<[string, number, number | null]>(this.#sql.break, tx.at, name, stale);
      if (row === undefined) return false;
      tx.ready(name);
      const [holder, acquiredAt, expiresAt] = row;
      const before = { holder, acquiredAt, expiresAt } satisfies BrokenLock;
      await this.#acts.add(tx, { action: "lock.broken", name, before: { ...before, stale }, after: null });
      return true;
    });
  }

  all(): Promise<LockView[]> {
    return this.#views(null);
  }

  async clean(): Promise<number> {
    if ((await this.#access.read(this.#sql.unclean, this.#access.at())).length === 0) return 0;
    return this.#access.write("reclaim", async (tx) => {
      const locks = this.#freed(tx, await tx.rows<[string]>(this.#sql.clean, tx.at));
      this.#wrote(tx, await tx.rows(this.#sql.cut, tx.at));
      if (locks > 0) await this.#healed.record(tx, "locks expired", { entries: 0, quarantined: 0, failed: 0, locks });
      return locks;
    });
  }

  /** What processes have locked, by name or by an exclusive claim. */
  async ofProcesses(rows: Rows, at: number | null, processes: readonly ProcessId[]): Promise<string[]> {
    return (await rows<[string]>(this.#sql.ofProcesses, at, listOf(processes))).map(([name]) => name);
  }

  /** The locks that a dead process has taken by name are free before their time. */
  async freeOf(tx: Tx, process: ProcessId): Promise<number> {
    return this.#freed(tx, await tx.rows<[string]>(this.#sql.freeOf, tx.at, process));
  }

  /** The locks of exclusive claims that have just ended. */
  async freeBound(tx: Tx, ended: readonly LeaseRef[]): Promise<number> {
    const lists = [listOf(ended.map(({ job }) => job)), listOf(ended.map(({ fence }) => fence))];
    return this.#freed(tx, await tx.rows<[string]>(this.#sql.freeBound, ...lists));
  }

  async #views(name: string | null): Promise<LockView[]> {
    const all = await this.#access.read<Row>(this.#sql.all, this.#access.at(), name);
    return toLocks(
      all.map(([name, holder, acquiredAt, expiresAt, ended, job]) => ({ name, holder, acquiredAt, expiresAt, ended, job })),
    );
  }

  #write<T>(name: string, run: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#access.write("lock", run, { row: `lock ${name}` });
  }

  /** Whose locks they are that this handle takes; somebody who is not entered has none that could be found dead. */
  get #locker(): ProcessId | null {
    return this.#processes.self || null;
  }

  #freed(tx: Tx, locks: readonly [string][]): number {
    for (const [name] of locks) tx.ready(name);
    this.#wrote(tx, locks);
    return locks.length;
  }

  #wrote(tx: Tx, rows: readonly unknown[]): boolean {
    if (rows.length > 0) tx.wrote();
    return rows.length > 0;
  }
}
