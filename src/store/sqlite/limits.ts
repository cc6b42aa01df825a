import { end, type LimitRule, mayJoin, opensAt, room, start, type Usage, windowOf } from "../../core/limit.ts";
import type { JobKey } from "../../core/ids.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Settings } from "./settings.ts";

/** Counters whose rate lets something pass again, looked at in one transaction; the rest follows with the next claim. */
const DUE = 200;
/** Wall time that goes back by more than this was set. */
const SET_BACK = 1_000;

/** A job as its limits see it: `limits` is what stands in its row. */
export interface LimitedJob {
  key: JobKey;
  lane: number;
  priority: number;
  limits: string;
}

/** What one lane has of a counter. */
interface Row {
  id: number;
  lane: number;
  running: number;
  passed: number;
  parked: number;
  lowest: number;
  bucket: number;
  dueAt: number | null;
  changed: boolean;
}

/** The use of one limit under one key, over all lanes. */
interface Counter extends Usage {
  rule: number;
  key: string;
  rows: Row[];
}

type Names = [rule: number, key: string][];

/**
 * Limits over all workers. A pending job has to pass each of its limits, in the order in which they stand in its row;
 * where it cannot, it is parked there, out of the index that claims walk. Only as many jobs of a lane have passed a
 * limit as could start now, at most a window full: so a million jobs of one key neither block nor slow the others.
 * What ends, and what the rate allows again, lets the next ones pass.
 */
export class Limits {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #load: Statement;
  readonly #add: Statement;
  readonly #save: Statement;
  readonly #remove: Statement;
  readonly #setDue: Statement;
  readonly #due: Statement;
  readonly #allDue: Statement;
  readonly #park: Statement;
  readonly #unpark: Statement;
  readonly #head: Statement;
  readonly #open: Statement;
  readonly #shut: Statement;
  readonly #limitsOf: Statement;
  /** What is known of counters holds within one transaction only: others count, too. */
  #tx: Tx | null = null;
  #counters = new Map<string, Counter>();
  #touched = new Set<Counter>();
  #lastNow = Number.POSITIVE_INFINITY;

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#load = db.prepare(
      "select id, lane, running, passed, parked, lowest, bucket, due_at from holdfast_counters where rule = ? and key = ?",
    );
    this.#add = db.prepare(
      `insert into holdfast_counters (rule, key, lane, running, passed, parked, lowest, bucket)
       values (?, ?, ?, 0, 0, 0, 0, 0) returning id`,
    );
    this.#save = db.prepare(
      "update holdfast_counters set running = ?, passed = ?, parked = ?, lowest = ?, bucket = ? where id = ?",
    );
    this.#remove = db.prepare("delete from holdfast_counters where id = ?");
    this.#setDue = db.prepare("update holdfast_counters set due_at = ? where id = ?");
    this.#due = db.prepare(
      `select rule, key from holdfast_counters where due_at is not null and due_at <= ? order by due_at limit ${DUE}`,
    );
    this.#allDue = db.prepare("select rule, key from holdfast_counters where due_at is not null");
    this.#park = db.prepare("insert into holdfast_parked (counter, priority, job, more) values (?, ?, ?, ?)");
    this.#unpark = db.prepare("delete from holdfast_parked where counter = ? and priority = ? and job = ?");
    this.#head = db.prepare(
      "select job, priority, more from holdfast_parked where counter = ? order by priority desc, job limit ?",
    );
    this.#open = db.prepare("update holdfast_jobs set gate = null where key = ? and gate = 'limit'");
    this.#shut = db.prepare("update holdfast_jobs set gate = 'limit' where key = ? and gate is null");
    this.#limitsOf = db.prepare("select limits from holdfast_jobs where key = ?");
  }

  /** A job becomes pending: the gate it stands before, which the caller writes into its row. */
  admit(tx: Tx, job: LimitedJob): "limit" | null {
    return this.#pass(tx, job, namesOf(job.limits), 0) ? null : "limit";
  }

  /** A pending job that stands ready wants to start. If it may not after all, it is parked. */
  take(tx: Tx, job: LimitedJob): boolean {
    const names = namesOf(job.limits);
    const counters = names.map(([rule, key]) => this.#counter(tx, rule, key));
    const blocked = counters.findIndex((counter) => room(this.#rule(counter), counter, tx.now) < 1);
    if (blocked === -1) {
      for (const counter of counters) this.#start(tx, counter, job.lane);
      return true;
    }
    for (const counter of counters.slice(blocked)) {
      const row = this.#row(counter, job.lane);
      change(row, { passed: row.passed - 1 });
    }
    this.#parkAt(this.#row(counters[blocked] as Counter, job.lane), job, blocked < names.length - 1);
    this.#shut.run(job.key);
    return false;
  }

  /** A job is running no more. One that never began gives back what it took of the rate. */
  end(tx: Tx, lane: number, limits: string, began: boolean): void {
    for (const [rule, key] of namesOf(limits)) {
      const counter = this.#counter(tx, rule, key);
      end(this.#rule(counter), counter, began);
      const row = this.#row(counter, lane);
      change(row, { running: row.running - 1 });
      if (!began) for (const one of counter.rows) if (one.bucket > counter.bucket) change(one, { bucket: counter.bucket });
    }
  }

  /** A pending job is pending no more, and was never started. `gate` is where it stood. */
  withdraw(tx: Tx, job: LimitedJob, gate: string | null): void {
    if (gate === "time") return;
    for (const [rule, key] of namesOf(job.limits)) {
      const row = this.#row(this.#counter(tx, rule, key), job.lane);
      row.changed = true;
      if (gate === "limit" && this.#unpark.run(row.id, job.priority, job.key) > 0) {
        row.parked -= 1;
        return;
      }
      row.passed -= 1;
    }
  }

  /** Lets pass what the rate allows by now; called before a claim. */
  serveDue(tx: Tx): void {
    if (!this.#settings.limited) return;
    // Instants in the future mean nothing after a clock was set back.
    const setBack = tx.now < this.#lastNow - SET_BACK;
    this.#lastNow = tx.now;
    for (const [rule, key] of setBack ? this.#allDue.rows() : this.#due.rows(tx.now)) {
      this.#counter(tx, rule as number, key as string);
    }
    this.write(tx);
  }

  /** The last act of each operation: lets the next ones pass where there is room, and writes down how it stands. How many jobs stand ready now that did not before. */
  write(tx: Tx): number {
    if (this.#tx !== tx || this.#touched.size === 0) return 0;
    let opened = 0;
    // Letting one pass here may bring it before another limit, which is touched in turn; the set grows as it is walked.
    for (const counter of this.#touched) opened += this.#refill(tx, counter);
    for (const counter of this.#touched) this.#store(tx, counter);
    this.#touched.clear();
    return opened;
  }

  #pass(tx: Tx, job: LimitedJob, names: Names, from: number): boolean {
    for (let i = from; i < names.length; i++) {
      const [rule, key] = names[i] as Names[number];
      const counter = this.#counter(tx, rule, key);
      const row = this.#row(counter, job.lane);
      if (!this.#mayPass(tx, counter, row, job.priority)) {
        this.#parkAt(row, job, i < names.length - 1);
        return false;
      }
      row.lowest = row.passed === 0 ? job.priority : Math.min(row.lowest, job.priority);
      row.passed += 1;
      row.changed = true;
    }
    return true;
  }

  #mayPass(tx: Tx, counter: Counter, row: Row, priority: number): boolean {
    const window = windowOf(room(this.#rule(counter), counter, tx.now));
    if (row.parked === 0 && row.passed < window) return true;
    // One that outranks what stands ready must not wait behind it.
    if (window === 0 || row.passed === 0 || priority <= row.lowest || !mayJoin(row.passed, window)) return false;
    const [, best] = (row.parked === 0 ? undefined : this.#head.row(row.id, 1)) ?? [];
    return best === undefined || priority > (best as number);
  }

  #parkAt(row: Row, job: LimitedJob, more: boolean): void {
    this.#park.run(row.id, job.priority, job.key, more ? 1 : 0);
    row.parked += 1;
    row.changed = true;
  }

  #start(tx: Tx, counter: Counter, lane: number): void {
    start(this.#rule(counter), counter, tx.now);
    const row = this.#row(counter, lane);
    row.running += 1;
    row.passed -= 1;
    row.bucket = counter.bucket;
    row.changed = true;
  }

  #refill(tx: Tx, counter: Counter): number {
    let opened = 0;
    const window = windowOf(room(this.#rule(counter), counter, tx.now));
    for (const row of counter.rows) {
      if (row.parked === 0 || row.passed >= window) continue;
      for (const [key, priority, more] of this.#head.rows(row.id, window - row.passed) as [JobKey, number, 0 | 1][]) {
        this.#unpark.run(row.id, priority, key);
        row.parked -= 1;
        row.lowest = row.passed === 0 ? priority : Math.min(row.lowest, priority);
        row.passed += 1;
        row.changed = true;
        if (more === 1 && !this.#goOn(tx, counter, { key, lane: row.lane, priority })) continue;
        this.#open.run(key);
        opened++;
        tx.ready(this.#catalog.lane(row.lane).queue);
        tx.wrote();
      }
    }
    return opened;
  }

  /** It has passed this one; on to the next. */
  #goOn(tx: Tx, passed: Counter, job: Omit<LimitedJob, "limits">): boolean {
    const limits = this.#limitsOf.row(job.key)?.[0] as string;
    const names = namesOf(limits);
    const at = names.findIndex(([rule, key]) => rule === passed.rule && key === passed.key);
    return this.#pass(tx, { ...job, limits }, names, at + 1);
  }

  #store(tx: Tx, counter: Counter): void {
    const opens = opensAt(this.#rule(counter), counter, tx.now);
    for (const row of counter.rows) {
      const idle = row.running + row.passed + row.parked === 0;
      // A counter that says nothing is forgotten, or every key that was ever used would stay.
      if (idle && row.bucket <= tx.now) {
        this.#remove.run(row.id);
        this.#counters.delete(nameOf(counter.rule, counter.key));
        tx.wrote();
        continue;
      }
      const dueAt = idle ? Math.ceil(row.bucket) : row.parked > 0 ? opens : null;
      if (dueAt !== row.dueAt) {
        this.#setDue.run(dueAt, row.id);
        row.dueAt = dueAt;
        tx.wrote();
      }
      if (!row.changed) continue;
      row.changed = false;
      this.#save.run(row.running, row.passed, row.parked, row.lowest, row.bucket, row.id);
      tx.wrote();
    }
  }

  #counter(tx: Tx, rule: number, key: string): Counter {
    if (this.#tx !== tx) {
      this.#tx = tx;
      this.#counters.clear();
      this.#touched.clear();
      this.#settings.at(tx.settings);
    }
    const name = nameOf(rule, key);
    let counter = this.#counters.get(name);
    if (counter === undefined) {
      counter = { rule, key, rows: this.#load.rows(rule, key).map(toRow), running: 0, bucket: 0 };
      for (const row of counter.rows) {
        counter.running += row.running;
        counter.bucket = Math.max(counter.bucket, row.bucket);
      }
      this.#counters.set(name, counter);
    }
    this.#touched.add(counter);
    return counter;
  }

  #row(counter: Counter, lane: number): Row {
    const known = counter.rows.find((row) => row.lane === lane);
    if (known !== undefined) return known;
    const [id] = this.#add.row(counter.rule, counter.key, lane) as [number];
    const row = { id, lane, running: 0, passed: 0, parked: 0, lowest: 0, bucket: 0, dueAt: null, changed: true };
    counter.rows.push(row);
    return row;
  }

  #rule(counter: Counter): LimitRule {
    return this.#settings.rule(counter.rule);
  }
}

/** What stands in the job's row: the limit's number and the job's key for it, for each of its limits. */
export function limitsText(rules: readonly number[], keys: readonly string[]): string | null {
  return rules.length === 0 ? null : JSON.stringify(rules.map((rule, i) => [rule, keys[i] ?? ""]));
}

function namesOf(limits: string): Names {
  return JSON.parse(limits) as Names;
}

function nameOf(rule: number, key: string): string {
  return `${rule}:${key}`;
}

function change(row: Row, to: Partial<Row>): void {
  Object.assign(row, to, { changed: true });
}

function toRow(row: unknown[]): Row {
  const [id, lane, running, passed, parked, lowest, bucket, dueAt] = row as [
    number,
    number,
    number,
    number,
    number,
    number,
    number,
    number | null,
  ];
  return { id, lane, running, passed, parked, lowest, bucket, dueAt, changed: false };
}
