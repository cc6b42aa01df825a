import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { LimitRule } from "../../../core/limits/limit.ts";
import type { LimitRows, ParkedJob, LaneUsage, StoredLaneUsage, JobPosition } from "../../../core/limits/lane-usage.ts";
import { type LimitChanges, LimitGate } from "../../../core/limits/limit-gate.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { isHeld } from "../../sql/locks.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";
import type { Settings } from "./catalog.ts";
import type { JobParts } from "./enqueue.ts";

const DUE_COUNTERS = 200;
const PARKED_AHEAD = 16;
const MOST_CACHED = 20_000;

export class Limits {
  readonly #parts: JobParts;
  readonly #rows: Rows;
  readonly #limitGate: LimitGate;
  readonly #sql;
  /** The cached counters hold until another process writes, a limit changes, or a transaction of this store is rolled back. */
  #tx: Tx | null = null;
  #seen = -1;
  #settingsSeen = -1;

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#rows = new Rows(db, parts.settings);
    this.#limitGate = new LimitGate(this.#rows, 0);
    this.#sql = {
      due: db.prepare(
        `select rule, key from holdfast_counters where due_at is not null and due_at <= ? order by due_at limit ${DUE_COUNTERS}`,
      ),
      wrong: db.prepare(`select rule, key from holdfast_counters where due_at is not null and due_at > ? limit ${DUE_COUNTERS}`),
      version: db.prepare("pragma data_version"),
    };
  }

  /** The gate, after it was made sure, once in each transaction, that its cached counters still hold. */
  in(tx: Tx): LimitGate {
    if (this.#tx === tx) return this.#limitGate;
    this.#tx = tx;
    const [version] = this.#sql.version.row() as [number];
    if (version !== this.#seen || tx.settings !== this.#settingsSeen || this.#limitGate.size > MOST_CACHED) this.forget();
    this.#seen = version;
    this.#settingsSeen = tx.settings;
    this.#parts.settings.at(tx.settings);
    return this.#limitGate.setNow(tx.now);
  }

  serveDue(tx: Tx): void {
    if (!this.#parts.settings.view.hasLimits) return;
    this.#look(tx, this.#sql.due, tx.now);
    // No rate is used up for longer than its period: the process that wrote such an instant had a clock that was set back since.
    this.#look(tx, this.#sql.wrong, tx.now + this.#parts.settings.view.longestRefillMs);
  }

  /** Called last in each operation: admits the next jobs and writes the counters. Returns how many jobs became ready. */
  write(tx: Tx): number {
    const changes = this.#tx === tx ? this.#limitGate.collectChanges() : null;
    if (changes === null) return 0;
    if (this.#rows.write(changes)) tx.wrote();
    for (const { lane } of [...changes.opened, ...changes.timed]) tx.ready(this.#parts.catalog.lane(lane).queue);
    return changes.opened.length;
  }

  forget(): void {
    this.#limitGate.clear();
    this.#seen = -1;
  }

  #look(tx: Tx, statement: Statement, at: number): void {
    for (const [rule, key] of statement.rows(at)) this.in(tx).recheck(rule as number, key as string);
    this.write(tx);
  }
}

class Rows implements LimitRows {
  readonly #settings: Settings;
  readonly #sql;

  constructor(db: Connection, settings: Settings) {
    this.#settings = settings;
    this.#sql = {
      load: db.prepare(
        `select id, lane, running, passed, beyond, parked, lowest, last, bucket, due_at as "dueAt" from holdfast_counters
         where rule = :rule and key = :key`,
      ),
      add: db.prepare(
        `insert into holdfast_counters (rule, key, lane, running, passed, beyond, parked, lowest, last, bucket, due_at)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning id`,
      ),
      save: db.prepare(
        `update holdfast_counters set running = ?, passed = ?, beyond = ?, parked = ?, lowest = ?, last = ?, bucket = ?
         where id = ?`,
      ),
      remove: db.prepare("delete from holdfast_counters where id = ?"),
      setDue: db.prepare("update holdfast_counters set due_at = ? where id = ?"),
      park: db.prepare("insert into holdfast_parked (counter, priority, job, more) values (?, ?, ?, ?)"),
      unpark: db.prepare("delete from holdfast_parked where counter = ? and priority = ? and job = ?"),
      first: db.prepare(
        `select job, priority, more from holdfast_parked where counter = ? order by priority desc, job limit ${PARKED_AHEAD}`,
      ),
      // It steps only over the few of the same priority that have left since the last write.
      next: db.prepare(
        `select job, priority, more from holdfast_parked where counter = ? and priority <= ? and (priority < ? or job > ?)
         order by priority desc, job limit ${PARKED_AHEAD}`,
      ),
      isParked: db.prepare("select 1 from holdfast_parked where counter = ? and priority = ? and job = ?"),
      open: db.prepare("update holdfast_jobs set gate = null where key in (select value from json_each(?)) and gate = 'limit'"),
      shut: db.prepare("update holdfast_jobs set gate = 'limit' where key = ? and gate is null"),
      limitsOf: db.prepare("select limits from holdfast_jobs where key = ?"),
    };
  }

  rule(id: number): LimitRule {
    return this.#settings.view.rule(id);
  }

  usages(rule: number, key: string): StoredLaneUsage[] {
    return this.#sql.load.all<StoredLaneUsage>({ rule, key });
  }

  parked(usage: number, after: JobPosition | null): ParkedJob[] {
    const rows =
      after === null ? this.#sql.first.rows(usage) : this.#sql.next.rows(usage, after.priority, after.priority, after.key);
    return rows.map((row) => {
      const [key, priority, more] = row as [JobKey, number, 0 | 1];
      return { key, priority, more: more === 1 };
    });
  }

  isParked(usage: number, { priority, key }: JobPosition): boolean {
    return this.#sql.isParked.row(usage, priority, key) !== undefined;
  }

  limitsOf(job: JobKey): string {
    return this.#sql.limitsOf.row(job)?.[0] as string;
  }

  write({ unparked, removed, saved, due, parked, closed, opened }: LimitChanges): boolean {
    for (const { usage, job } of unparked) this.#sql.unpark.run(usage.id, job.priority, job.key);
    for (const { id } of removed) this.#sql.remove.run(id);
    for (const usage of saved) this.#write(usage);
    for (const { dueAt, id } of due) this.#sql.setDue.run(dueAt, id);
    for (const { usage, job } of parked) this.#sql.park.run(usage.id, job.priority, job.key, job.more ? 1 : 0);
    for (const key of closed) this.#sql.shut.run(key);
    if (opened.length > 0) this.#sql.open.run(JSON.stringify(opened.map(({ key }) => key)));
    return removed.length + saved.length + due.length > 0;
  }

  #write(usage: LaneUsage): void {
    const { counter, lane, running, passed, beyond, parked, lowest, last, bucket } = usage;
    const { rule, key } = counter;
    if (usage.id !== null) return void this.#sql.save.run(running, passed, beyond, parked, lowest, last, bucket, usage.id);
    const row = this.#sql.add.row(rule, key, lane, running, passed, beyond, parked, lowest, last, bucket, usage.dueAt);
    [usage.id] = row as [number];
  }
}

export class ClaimLocks {
  readonly #sql;

  constructor(db: Connection) {
    this.#sql = {
      any: db.prepare("select 1 from holdfast_locks limit 1"),
      held: db.prepare(`select name from holdfast_locks as lock where ${isHeld(DIALECT)}`),
      bind: db.prepare(
        `insert into holdfast_locks (name, holder, token, acquired_at, job, fence)
         values (:name, :holder, :token, :now, :job, :fence)
         on conflict (name) do update set
           holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = null,
           expires_at = null, job = excluded.job, fence = excluded.fence, process = null`,
      ),
    };
  }

  held(now: number): string[] {
    if (this.#sql.any.row() === undefined) return [];
    return this.#sql.held.all<{ name: string }>({ now }).map(({ name }) => name);
  }

  /** Takes the lock for an exclusive claim, which has checked in this transaction that it is free. */
  bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): void {
    this.#sql.bind.run({ name: claim.queue, holder, token, now: tx.now, job: claim.job, fence: claim.fence });
    tx.wrote();
  }
}
