import type { Start } from "../../../core/jobs/claiming.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { LimitRule } from "../../../core/limits/limit.ts";
import type { LimitRows, Parked, LaneUsage, Stored, Turn } from "../../../core/limits/lane-usage.ts";
import { type Changes, type Gate, type LimitedJob, LimitGate } from "../../../core/limits/limit-gate.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { isHeld } from "../../sql/locks.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";
import type { Catalog, Settings } from "./catalog.ts";

/** Counters whose rate lets something pass again, looked at in one transaction; the rest follows with the next claim. */
const DUE = 200;
/** Parked jobs that are read ahead, for a counter that lets them pass one by one. */
const AHEAD = 16;
/** Beyond this many, what is known of counters is forgotten. */
const MOST = 20_000;

/** The limit gate on this database: it decides who passes, and here it is looked up and written down. */
export class Limits {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #rows: Rows;
  readonly #limitGate: LimitGate;
  readonly #due: Statement;
  readonly #wrong: Statement;
  readonly #version: Statement;
  /** What is known of counters holds until another process has written, a limit has changed, or a transaction of ours was undone. */
  #tx: Tx | null = null;
  #seen = -1;
  #settingsSeen = -1;

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#rows = new Rows(db, parts.settings);
    this.#limitGate = new LimitGate(this.#rows, 0);
    this.#due = db.prepare(
      `select rule, key from holdfast_counters where due_at is not null and due_at <= ? order by due_at limit ${DUE}`,
    );
    this.#wrong = db.prepare(`select rule, key from holdfast_counters where due_at is not null and due_at > ? limit ${DUE}`);
    this.#version = db.prepare("pragma data_version");
  }

  /** A job becomes pending: the gate it stands before, which the caller writes into its row. */
  admit(tx: Tx, job: LimitedJob): Gate {
    return this.#in(tx).admit(job);
  }

  /** A pending job that stands ready wants to start; see the limitGate. */
  take(tx: Tx, job: LimitedJob): Start {
    return this.#in(tx).take(job);
  }

  /** A job is running no more. One that never began gives back what it took of the rate. */
  end(tx: Tx, lane: number, limits: string, began: boolean): void {
    this.#in(tx).end(lane, limits, began);
  }

  /** A pending job is pending no more, and was never started. `gate` is where it stood. */
  withdraw(tx: Tx, job: LimitedJob, gate: string | null): void {
    this.#in(tx).withdraw(job, gate);
  }

  /** Lets pass what the rate allows by now; called before a claim. */
  serveDue(tx: Tx): void {
    if (!this.#settings.limited) return;
    this.#look(tx, this.#due, tx.now);
    // No rate is used up for longer than it lasts: the process that wrote such an instant has a clock that was set back since.
    this.#look(tx, this.#wrong, tx.now + this.#settings.longest);
  }

  /** The last act of each operation: lets the next ones pass where there is room, and writes down how it stands. How many jobs stand ready now that did not before. */
  write(tx: Tx): number {
    const changes = this.#tx === tx ? this.#limitGate.changes() : null;
    if (changes === null) return 0;
    if (this.#rows.write(changes)) tx.wrote();
    for (const { lane } of changes.opened) tx.ready(this.#catalog.lane(lane).queue);
    return changes.opened.length;
  }

  /** After an undone transaction. */
  forget(): void {
    this.#limitGate.forget();
    this.#seen = -1;
  }

  #look(tx: Tx, statement: Statement, at: number): void {
    for (const [rule, key] of statement.rows(at)) this.#in(tx).look(rule as number, key as string);
    this.write(tx);
  }

  /** Once in each transaction it is made sure that what is known still holds. */
  #in(tx: Tx): LimitGate {
    if (this.#tx === tx) return this.#limitGate;
    this.#tx = tx;
    const [version] = this.#version.row() as [number];
    if (version !== this.#seen || tx.settings !== this.#settingsSeen || this.#limitGate.size > MOST) this.forget();
    this.#seen = version;
    this.#settingsSeen = tx.settings;
    this.#settings.at(tx.settings);
    return this.#limitGate.at(tx.now);
  }
}

/** The rows that counters and parked jobs have. */
class Rows implements LimitRows {
  readonly #settings: Settings;
  readonly #load: Statement;
  readonly #add: Statement;
  readonly #save: Statement;
  readonly #remove: Statement;
  readonly #setDue: Statement;
  readonly #park: Statement;
  readonly #unpark: Statement;
  readonly #first: Statement;
  readonly #next: Statement;
  readonly #isParked: Statement;
  readonly #open: Statement;
  readonly #shut: Statement;
  readonly #limitsOf: Statement;

  constructor(db: Connection, settings: Settings) {
    this.#settings = settings;
    this.#load = db.prepare(
      "select id, lane, running, passed, beyond, parked, lowest, last, bucket, due_at from holdfast_counters where rule = ? and key = ?",
    );
    this.#add = db.prepare(
      `insert into holdfast_counters (rule, key, lane, running, passed, beyond, parked, lowest, last, bucket, due_at)
       values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning id`,
    );
    this.#save = db.prepare(
      `update holdfast_counters set running = ?, passed = ?, beyond = ?, parked = ?, lowest = ?, last = ?, bucket = ?
       where id = ?`,
    );
    this.#remove = db.prepare("delete from holdfast_counters where id = ?");
    this.#setDue = db.prepare("update holdfast_counters set due_at = ? where id = ?");
    this.#park = db.prepare("insert into holdfast_parked (counter, priority, job, more) values (?, ?, ?, ?)");
    this.#unpark = db.prepare("delete from holdfast_parked where counter = ? and priority = ? and job = ?");
    this.#first = db.prepare(
      `select job, priority, more from holdfast_parked where counter = ? order by priority desc, job limit ${AHEAD}`,
    );
    // Those of the same priority that are stepped over are the few that have left since the last write.
    this.#next = db.prepare(
      `select job, priority, more from holdfast_parked where counter = ? and priority <= ? and (priority < ? or job > ?)
       order by priority desc, job limit ${AHEAD}`,
    );
    this.#isParked = db.prepare("select 1 from holdfast_parked where counter = ? and priority = ? and job = ?");
    this.#open = db.prepare(
      "update holdfast_jobs set gate = null where key in (select value from json_each(?)) and gate = 'limit'",
    );
    this.#shut = db.prepare("update holdfast_jobs set gate = 'limit' where key = ? and gate is null");
    this.#limitsOf = db.prepare("select limits from holdfast_jobs where key = ?");
  }

  rule(id: number): LimitRule {
    return this.#settings.rule(id);
  }

  usages(rule: number, key: string): Stored[] {
    return this.#load.rows(rule, key).map(toStored);
  }

  parked(usage: number, after: Turn | null): Parked[] {
    const rows = after === null ? this.#first.rows(usage) : this.#next.rows(usage, after.priority, after.priority, after.key);
    return rows.map((row) => {
      const [key, priority, more] = row as [JobKey, number, 0 | 1];
      return { key, priority, more: more === 1 };
    });
  }

  isParked(usage: number, { priority, key }: Turn): boolean {
    return this.#isParked.row(usage, priority, key) !== undefined;
  }

  limitsOf(job: JobKey): string {
    return this.#limitsOf.row(job)?.[0] as string;
  }

  /** False when there is nothing to write. */
  write({ unparked, removed, saved, due, parked, shut, opened }: Changes): boolean {
    for (const { usage, job } of unparked) this.#unpark.run(usage.id, job.priority, job.key);
    for (const { id } of removed) this.#remove.run(id);
    for (const usage of saved) this.#write(usage);
    for (const { dueAt, id } of due) this.#setDue.run(dueAt, id);
    for (const { usage, job } of parked) this.#park.run(usage.id, job.priority, job.key, job.more ? 1 : 0);
    for (const key of shut) this.#shut.run(key);
    if (opened.length > 0) this.#open.run(JSON.stringify(opened.map(({ key }) => key)));
    return removed.length + saved.length + due.length > 0;
  }

  #write(usage: LaneUsage): void {
    const { counter, lane, running, passed, beyond, parked, lowest, last, bucket } = usage;
    const { rule, key } = counter;
    if (usage.id !== null) return void this.#save.run(running, passed, beyond, parked, lowest, last, bucket, usage.id);
    const row = this.#add.row(rule, key, lane, running, passed, beyond, parked, lowest, last, bucket, usage.dueAt);
    [usage.id] = row as [number];
  }
}

function toStored(row: unknown[]): Stored {
  const [id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt] = row as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
    number,
    number,
    number | null,
  ];
  return { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt };
}

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

  /** The names of locks that are held: queues from which no other process may claim. */
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
