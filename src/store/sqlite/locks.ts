import type { ProcessId } from "../../core/ids.ts";
import type { LeaseRef } from "../../core/lease.ts";
import { type BrokenLock, type LockRow, toLocks } from "../lock-row.ts";
import type { LockStore, LockView } from "../locks.ts";
import type { Access } from "./access.ts";
import type { Acts } from "./acts.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Healed } from "./healed.ts";
import type { Processes } from "./processes.ts";

/**
 * Named, leased mutexes. A lock is free when it has no row, when its time is over, or when the exclusive claim that it
 * belongs to is: that kind has no expiry and needs no release, it is read off the job's own row.
 */
const ENDED = `(
  (lock.job is null and lock.expires_at <= :now)
  or (lock.job is not null and not exists (
    select 1 from holdfast_jobs where key = lock.job and fence = lock.fence and state = 'running')))`;

export class Locks implements LockStore {
  readonly #access: Access;
  readonly #acts: Acts;
  readonly #processes: Processes;
  readonly #healed: Healed;
  readonly #any: Statement;
  readonly #held: Statement;
  readonly #acquire: Statement;
  readonly #bind: Statement;
  readonly #extend: Statement;
  readonly #release: Statement;
  readonly #break: Statement;
  readonly #clean: Statement;
  readonly #cut: Statement;
  readonly #unclean: Statement;
  readonly #all: Statement;
  readonly #ofProcess: Statement;
  readonly #boundTo: Statement;
  readonly #bound: Statement;
  readonly #remove: Statement;

  constructor(db: Connection, parts: { acts: Acts; processes: Processes; healed: Healed }, access: Access) {
    this.#access = access;
    this.#acts = parts.acts;
    this.#processes = parts.processes;
    this.#healed = parts.healed;
    this.#any = db.prepare("select 1 from holdfast_locks limit 1");
    this.#held = db.prepare(`select name from holdfast_locks as lock where not ${ENDED}`);
    // One statement: of two that try at once, one inserts or replaces and the other changes nothing.
    this.#acquire = db.prepare(
      `insert into holdfast_locks as lock (name, holder, token, acquired_at, ttl, expires_at, process)
       values (:name, :holder, :token, :now, :ttl, :now + :ttl, :process)
       on conflict (name) do update set
         holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = excluded.ttl,
         expires_at = excluded.expires_at, job = null, fence = null, process = excluded.process
       where ${ENDED}`,
    );
    this.#bind = db.prepare(
      `insert into holdfast_locks (name, holder, token, acquired_at, job, fence)
       values (:name, :holder, :token, :now, :job, :fence)
       on conflict (name) do update set
         holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = null,
         expires_at = null, job = excluded.job, fence = excluded.fence, process = null`,
    );
    this.#extend = db.prepare(
      `update holdfast_locks as lock set ttl = :ttl, expires_at = :now + :ttl, process = :process
       where name = :name and token = :token and job is null and not ${ENDED}`,
    );
    this.#release = db.prepare(
      `delete from holdfast_locks as lock where name = :name and token = :token and job is null and not ${ENDED}`,
    );
    this.#break = db.prepare(
      `delete from holdfast_locks as lock where name = :name and (:stale = 0 or ${ENDED})
       returning holder, acquired_at as acquiredAt, expires_at as expiresAt`,
    );
    this.#clean = db.prepare(`delete from holdfast_locks as lock where ${ENDED} returning name`);
    // Further away than its own time: the clock was set back since, and the lock must not last longer for it.
    this.#cut = db.prepare("update holdfast_locks set expires_at = :now + ttl where expires_at > :now + ttl");
    this.#unclean = db.prepare(
      `select 1 from holdfast_locks as lock where ${ENDED} or lock.expires_at > :now + lock.ttl limit 1`,
    );
    this.#all = db.prepare(
      `select lock.name, lock.holder, lock.acquired_at as acquiredAt,
              coalesce(lock.expires_at, job.expires_at, 0) as expiresAt, ${ENDED} as ended, lock.job
       from holdfast_locks as lock left join holdfast_jobs as job on job.key = lock.job and job.fence = lock.fence
       where :name is null or lock.name = :name order by lock.name`,
    );
    // There are few of them.
    this.#ofProcess = db.prepare(
      "select name from holdfast_locks where process = :process and job is null and expires_at > :now order by name",
    );
    this.#boundTo = db.prepare(
      `select lock.name from holdfast_locks as lock join holdfast_jobs as job on job.key = lock.job and job.fence = lock.fence
       where job.state = 'running' and job.holder = :process order by lock.name`,
    );
    this.#remove = db.prepare("delete from holdfast_locks where name = ?");
    this.#bound = db.prepare("select name, job, fence from holdfast_locks where job is not null");
  }

  any(): boolean {
    return this.#any.row() !== undefined;
  }

  /** The names of locks that are held: queues that nobody may claim from. */
  held(now: number): string[] {
    if (!this.any()) return [];
    return this.#held.all<{ name: string }>({ now }).map(({ name }) => name);
  }

  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean> {
    return this.#access.write("lock", (tx) => {
      return this.#wrote(tx, this.#acquire.runNamed({ name, holder, token, ttl, process: this.#locker, now: tx.now }));
    });
  }

  /** The claim has made sure that the lock is free, in this very transaction. */
  bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): void {
    this.#bind.runNamed({ name: claim.queue, holder, token, now: tx.now, job: claim.job, fence: claim.fence });
    tx.wrote();
  }

  /** It is that process's from then on. */
  extend(name: string, token: string, ttl: number): Promise<boolean> {
    return this.#access.write("lock", (tx) => {
      return this.#wrote(tx, this.#extend.runNamed({ name, token, ttl, process: this.#locker, now: tx.now }));
    });
  }

  release(name: string, token: string): Promise<boolean> {
    return this.#access.write("lock", (tx) => {
      const released = this.#wrote(tx, this.#release.runNamed({ name, token, now: tx.now }));
      if (released) tx.ready(name);
      return released;
    });
  }

  get(name: string): Promise<LockView | null> {
    return this.#access.read(() => this.#views(name)[0] ?? null);
  }

  /** `stale`: only if it is free by now, and nobody has come for it. */
  break(name: string, { stale = false } = {}): Promise<boolean> {
    return this.#access.write("lock", (tx) => {
      const [before] = this.#break.all<BrokenLock>({ name, stale: stale ? 1 : 0, now: tx.now });
      if (before === undefined) return false;
      tx.ready(name);
      this.#acts.add(tx, { action: "lock.broken", name, before: { ...before, stale }, after: null });
      return true;
    });
  }

  all(): Promise<LockView[]> {
    return this.#access.read(() => this.#views(null));
  }

  async clean(): Promise<number> {
    if (await this.#access.read(() => this.#unclean.get({ now: this.#access.now() }) === undefined)) return 0;
    return this.#access.write("reclaim", (tx) => {
      const cleaned = this.#clean.all<{ name: string }>({ now: tx.now });
      for (const { name } of cleaned) tx.ready(name);
      const locks = cleaned.length;
      if (locks + this.#cut.runNamed({ now: tx.now }) > 0) tx.wrote();
      if (locks > 0) this.#healed.record(tx, "locks expired", { entries: 0, quarantined: 0, failed: 0, locks });
      return locks;
    });
  }

  /** What a process has locked, by name or by an exclusive claim. */
  ofProcess(process: ProcessId, now: number): string[] {
    const names = [
      ...this.#ofProcess.all<{ name: string }>({ process, now }),
      ...this.#boundTo.all<{ name: string }>({ process }),
    ];
    return names.map(({ name }) => name);
  }

  /** The locks that a dead process has taken by name are free before their time. */
  freeOf(tx: Tx, process: ProcessId): number {
    return this.#free(tx, this.#ofProcess.all<{ name: string }>({ process, now: tx.now }));
  }

  /** The locks of exclusive claims that have just ended. */
  freeBound(tx: Tx, ended: readonly LeaseRef[]): number {
    if (!this.any()) return 0;
    const fences = new Map(ended.map(({ job, fence }) => [job, fence]));
    return this.#free(
      tx,
      this.#bound.all<LeaseRef & { name: string }>().filter(({ job, fence }) => fences.get(job) === fence),
    );
  }

  #views(name: string | null): LockView[] {
    return toLocks(this.#all.all<LockRow>({ name, now: this.#access.now() }));
  }

  /** Whose locks they are that this handle takes; somebody who is not entered has none that could be found dead. */
  get #locker(): ProcessId | null {
    return this.#processes.self || null;
  }

  #free(tx: Tx, locks: readonly { name: string }[]): number {
    for (const { name } of locks) {
      this.#remove.run(name);
      tx.ready(name);
    }
    if (locks.length > 0) tx.wrote();
    return locks.length;
  }

  #wrote(tx: Tx, changes: number): boolean {
    if (changes > 0) tx.wrote();
    return changes > 0;
  }
}
