import { NOTHING_RECLAIMED } from "../../core/jobs/retry.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import { type BrokenLock, type CleanedLocks, type LockRow, type LockView, toLocks } from "../queues.ts";
import type { Access, Dialect, Processes, Reads, Script, Tx } from "./script.ts";
import type { Audit } from "./audit.ts";
import type { RecoveryLog } from "./reports.ts";
import type { LockStore } from "../store.ts";

/** Condition: the lock's time or its exclusive claim is not over. `coalesce` keeps PostgreSQL from walking all running jobs. */
export function isHeld({ table }: Dialect, now = ":now"): string {
  return `(
    (lock.job is null and lock.expires_at > ${now})
    or (lock.job is not null and exists (
      select 1 from ${table("jobs")} as held
      where held.key = lock.job and held.fence = lock.fence and coalesce(held.state, '') = 'running')))`;
}

// Condition for statements that change the lock. One that waited for the row on PostgreSQL sees the jobs as of its begin: a
// claim that was bound meanwhile is not running there yet, and must not be mistaken for one that has ended.
export function isOver(dialect: Dialect, now = ":now"): string {
  return `(
    not ${isHeld(dialect, now)}
    and (lock.job is null or exists (
      select 1 from ${dialect.table("locks")} as seen
      where seen.name = lock.name and seen.job = lock.job and seen.fence = lock.fence)))`;
}

/** Named, leased mutexes. Those of exclusive claims have no expiry and no release: the job's row tells whether they count. */
export class Locks implements LockStore {
  readonly #access: Access;
  readonly #parts: { audit: Audit; processes: Processes; recoveryLog: RecoveryLog };
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: { audit: Audit; processes: Processes; recoveryLog: RecoveryLog }, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#sql = statements(dialect);
  }

  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean> {
    return this.#write(name, (tx) => tx.run(this.#sql.acquire, { name, holder, token, ttl, process: this.#self }));
  }

  renew(name: string, token: string, ttl: number | null): Promise<boolean> {
    if (ttl === null) return this.#write(name, (tx) => this.#release(tx, name, token));
    return this.#write(name, (tx) => tx.run(this.#sql.extend, { name, token, ttl, process: this.#self }));
  }

  *#release(tx: Tx, name: string, token: string): Script<boolean> {
    const released = yield* tx.run(this.#sql.release, { name, token });
    if (released) tx.ready(name);
    return released;
  }

  async list(name?: string): Promise<LockView[]> {
    return toLocks(await this.#access.read((db) => db.all<LockRow>(this.#sql.list, { name: name ?? null })));
  }

  clean(broken?: { name: string; stale?: boolean }): Promise<CleanedLocks> {
    return broken === undefined ? this.#cleanIfNeeded() : this.#write(broken.name, (tx) => this.#break(tx, broken));
  }

  /** Reads before it writes, because it is called often, and mostly there is nothing to do. */
  async #cleanIfNeeded(): Promise<CleanedLocks> {
    const unclean = await this.#access.read((db) => db.get(this.#sql.unclean));
    return unclean === undefined ? { removed: [], shortened: [] } : this.#access.write("reclaim", (tx) => this.#clean(tx));
  }

  *#break(tx: Tx, { name, stale = false }: { name: string; stale?: boolean }): Script<CleanedLocks> {
    const [before] = yield* tx.returning<BrokenLock>(this.#sql.break, { name, stale });
    if (before === undefined) return { removed: [], shortened: [] };
    tx.ready(name);
    yield* this.#parts.audit.record(tx, { action: "lock.broken", name, before: { ...before, stale }, after: null });
    return { removed: [name], shortened: [] };
  }

  *#clean(tx: Tx): Script<CleanedLocks> {
    const removed = freed(tx, yield* tx.returning<Named>(this.#sql.clean));
    const shortened = namesOf(yield* tx.returning<Named>(this.#sql.shorten));
    if (removed.length > 0) {
      yield* this.#parts.recoveryLog.record(tx, "locks expired", { ...NOTHING_RECLAIMED, locks: removed.length });
    }
    return { removed, shortened };
  }

  /** Returns the locks that `clean` would remove once these leases are reclaimed. */
  *stale(db: Reads, reclaimed: readonly LeaseRef[]): Script<string[]> {
    return namesOf(yield* db.all<Named>(this.#sql.stale, leasesOf(reclaimed)));
  }

  /** Returns the locks that `clean` would shorten once those of these dead processes are freed. */
  *overlong(db: Reads, dead: readonly ProcessId[]): Script<string[]> {
    return namesOf(yield* db.all<Named>(this.#sql.overlong, { dead }));
  }

  *ofProcesses(db: Reads, processes: readonly ProcessId[]): Script<string[]> {
    return namesOf(yield* db.all<Named>(this.#sql.ofProcesses, { processes }));
  }

  *freeOf(tx: Tx, process: ProcessId): Script<string[]> {
    return freed(tx, yield* tx.returning<Named>(this.#sql.freeOf, { process }));
  }

  *freeBound(tx: Tx, ended: readonly LeaseRef[]): Script<string[]> {
    return freed(tx, yield* tx.returning<Named>(this.#sql.freeBound, leasesOf(ended)));
  }

  #write<T>(name: string, script: (tx: Tx) => Script<T>): Promise<T> {
    return this.#access.write("lock", script, { row: `lock ${name}` });
  }

  get #self(): ProcessId | null {
    return this.#parts.processes.self || null;
  }
}

interface Named {
  name: string;
}

function leasesOf(leases: readonly LeaseRef[]): { jobs: number[]; fences: number[] } {
  return { jobs: leases.map(({ job }) => job), fences: leases.map(({ fence }) => fence) };
}

function freed(tx: Tx, locks: readonly Named[]): string[] {
  for (const { name } of locks) tx.ready(name);
  return namesOf(locks);
}

function namesOf(locks: readonly Named[]): string[] {
  return locks.map(({ name }) => name);
}

function statements(dialect: Dialect) {
  const { table } = dialect;
  const locks = table("locks");
  const over = isOver(dialect);
  const leases = `
    select job.value, fence.value
    from ${dialect.items("bigint", ":jobs")} as job join ${dialect.items("bigint", ":fences")} as fence
      on fence.place = job.place`;
  const mine = "name = :name and token = :token and job is null and expires_at > :now";
  return {
    // One statement, so that of two processes that try at once, one writes the row and the other changes nothing.
    acquire: `
      insert into ${locks} as lock (name, holder, token, acquired_at, ttl, expires_at, process)
      values (:name, :holder, :token, :now, :ttl, :now + :ttl, :process)
      on conflict (name) do update set
        holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = excluded.ttl,
        expires_at = excluded.expires_at, job = null, fence = null, process = excluded.process
      where ${over}`,
    extend: `update ${locks} set ttl = :ttl, expires_at = :now + :ttl, process = :process where ${mine}`,
    release: `delete from ${locks} where ${mine}`,
    break: `
      delete from ${locks} as lock where name = :name and (not :stale or ${over})
      returning holder, acquired_at as "acquiredAt", expires_at as "expiresAt"`,
    clean: `delete from ${locks} as lock where ${over} returning name`,
    shorten: `update ${locks} set expires_at = :now + ttl where expires_at > :now + ttl returning name`,
    overlong: `
      select name from ${locks}
      where expires_at > :now + ttl and (process is null or not ${dialect.in("process", "bigint", ":dead")})
      order by ${dialect.byBytes("name")}`,
    unclean: `select 1 from ${locks} as lock where ${over} or lock.expires_at > :now + lock.ttl limit 1`,
    list: `
      select lock.name, lock.holder, lock.acquired_at as "acquiredAt",
        coalesce(lock.expires_at, job.expires_at, 0) as "expiresAt", not ${isHeld(dialect)} as ended, lock.job
      from ${locks} as lock left join ${table("jobs")} as job on job.key = lock.job and job.fence = lock.fence
      where cast(:name as text) is null or lock.name = :name order by ${dialect.byBytes("lock.name")}`,
    ofProcesses: `
      select lock.name from ${locks} as lock
        left join ${table("jobs")} as job
          on job.key = lock.job and job.fence = lock.fence and coalesce(job.state, '') = 'running'
      where (lock.job is null and ${dialect.in("lock.process", "bigint", ":processes")} and lock.expires_at > :now)
        or ${dialect.in("job.holder", "bigint", ":processes")} order by ${dialect.byBytes("lock.name")}`,
    freeOf: `delete from ${locks} where process = :process and job is null and expires_at > :now returning name`,
    freeBound: `delete from ${locks} where (job, fence) in (${leases}) returning name`,
    stale: `
      select name from ${locks} as lock where not ${isHeld(dialect)} or (lock.job, lock.fence) in (${leases})
      order by ${dialect.byBytes("name")}`,
  };
}
