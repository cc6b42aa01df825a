import { byTurn } from "../../core/job.ts";
import { capped, end, type LimitRule, mayJoin, opensAt, room, start, type Usage, WINDOW, windowOf } from "../../core/limit.ts";
import type { JobKey } from "../../core/ids.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Settings } from "./settings.ts";

/** Counters whose rate lets something pass again, looked at in one transaction; the rest follows with the next claim. */
const DUE = 200;
/** Parked jobs that are read ahead, for a counter that lets them pass one by one. */
const AHEAD = 16;
/** Beyond this many, what is known of counters is forgotten. */
const MOST = 20_000;

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
  /** Of those that have passed, so many are parked before a later limit; the others stand ready. */
  beyond: number;
  parked: number;
  /** Of those that have passed, none has a lower priority than this, and none a higher key than the next. */
  lowest: number;
  last: number;
  bucket: number;
  dueAt: number | null;
  changed: boolean;
  /** The first of its parked jobs, as far as they were read. */
  next: Parked[];
}

type Parked = [job: JobKey, priority: number, more: 0 | 1];

/** The use of one limit under one key, over all lanes. */
interface Counter extends Usage {
  rule: number;
  key: string;
  rows: Row[];
}

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
  readonly #wrong: Statement;
  readonly #park: Statement;
  readonly #unpark: Statement;
  readonly #head: Statement;
  readonly #open: Statement;
  readonly #shut: Statement;
  readonly #limitsOf: Statement;
  readonly #version: Statement;
  /** What is known of counters holds until somebody else has written, a limit has changed, or a transaction of ours was undone. */
  #tx: Tx | null = null;
  #seen = -1;
  #settingsSeen = -1;
  readonly #counters = new Map<string, Counter>();
  /** By what stands in a job's row. */
  readonly #byText = new Map<string, Counter[]>();
  readonly #touched = new Set<Counter>();
  readonly #freed = new Set<Counter>();

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#load = db.prepare(
      "select id, lane, running, passed, beyond, parked, lowest, last, bucket, due_at from holdfast_counters where rule = ? and key = ?",
    );
    this.#add = db.prepare(
      `insert into holdfast_counters (rule, key, lane, running, passed, beyond, parked, lowest, last, bucket)
       values (?, ?, ?, 0, 0, 0, 0, 0, 0, 0) returning id`,
    );
    this.#save = db.prepare(
      "update holdfast_counters set running = ?, passed = ?, beyond = ?, parked = ?, lowest = ?, last = ?, bucket = ? where id = ?",
    );
    this.#remove = db.prepare("delete from holdfast_counters where id = ?");
    this.#setDue = db.prepare("update holdfast_counters set due_at = ? where id = ?");
    this.#due = db.prepare(
      `select rule, key from holdfast_counters where due_at is not null and due_at <= ? order by due_at limit ${DUE}`,
    );
    this.#wrong = db.prepare(`select rule, key from holdfast_counters where due_at is not null and due_at > ? limit ${DUE}`);
    this.#park = db.prepare("insert into holdfast_parked (counter, priority, job, more) values (?, ?, ?, ?)");
    this.#unpark = db.prepare("delete from holdfast_parked where counter = ? and priority = ? and job = ?");
    this.#head = db.prepare(
      "select job, priority, more from holdfast_parked where counter = ? order by priority desc, job limit ?",
    );
    this.#open = db.prepare(
      "update holdfast_jobs set gate = null where key in (select value from json_each(?)) and gate = 'limit'",
    );
    this.#shut = db.prepare("update holdfast_jobs set gate = 'limit' where key = ? and gate is null");
    this.#version = db.prepare("pragma data_version");
    this.#limitsOf = db.prepare("select limits from holdfast_jobs where key = ?");
  }

  /** A job becomes pending: the gate it stands before, which the caller writes into its row. */
  admit(tx: Tx, job: LimitedJob): "limit" | null {
    return this.#pass(tx, job, this.#countersOf(tx, job.limits), 0) ? null : "limit";
  }

  /**
   * A pending job that stands ready wants to start. If it may not after all, it is parked. "last": it starts, and was the
   * last of its key that stood ready, while more of them are parked and could start, too.
   */
  take(tx: Tx, job: LimitedJob): "started" | "last" | "held" {
    const counters = this.#countersOf(tx, job.limits);
    const blocked = counters.findIndex((counter) => room(this.#rule(counter), counter, tx.now) < 1);
    if (blocked === -1) {
      let last = false;
      for (const counter of counters) if (this.#start(tx, counter, job.lane)) last = true;
      return last ? "last" : "started";
    }
    for (const [i, counter] of counters.entries()) {
      const row = this.#row(counter, job.lane);
      change(row, i < blocked ? { beyond: row.beyond + 1 } : { passed: row.passed - 1 });
    }
    this.#parkAt(this.#row(counters[blocked] as Counter, job.lane), job, counters.length > 1);
    this.#shut.run(job.key);
    return "held";
  }

  /** A job is running no more. One that never began gives back what it took of the rate. */
  end(tx: Tx, lane: number, limits: string, began: boolean): void {
    for (const counter of this.#countersOf(tx, limits)) {
      end(this.#rule(counter), counter, began);
      const row = this.#row(counter, lane);
      change(row, { running: row.running - 1 });
      if (!began) for (const one of counter.rows) if (one.bucket > counter.bucket) change(one, { bucket: counter.bucket });
    }
  }

  /** A pending job is pending no more, and was never started. `gate` is where it stood. */
  withdraw(tx: Tx, job: LimitedJob, gate: string | null): void {
    if (gate === "time") return;
    for (const counter of this.#countersOf(tx, job.limits)) {
      const row = this.#row(counter, job.lane);
      row.changed = true;
      if (gate === "limit" && this.#unpark.run(row.id, job.priority, job.key) > 0) {
        row.parked -= 1;
        row.next = [];
        return;
      }
      row.passed -= 1;
      if (gate === "limit") row.beyond -= 1;
    }
  }

  /** Lets pass what the rate allows by now; called before a claim. */
  serveDue(tx: Tx): void {
    if (!this.#settings.limited) return;
    for (const [rule, key] of this.#due.rows(tx.now)) this.#touch(tx, this.#counter(tx, rule as number, key as string));
    this.write(tx);
    // No rate is used up for longer than it lasts: whoever wrote such an instant has a clock that was set back since.
    const wrong = this.#wrong.rows(tx.now + this.#settings.longest);
    for (const [rule, key] of wrong) this.#touch(tx, this.#counter(tx, rule as number, key as string));
    this.write(tx);
  }

  /** The last act of each operation: lets the next ones pass where there is room, and writes down how it stands. How many jobs stand ready now that did not before. */
  write(tx: Tx): number {
    if (this.#tx !== tx || this.#touched.size === 0) return 0;
    const opened: JobKey[] = [];
    // Letting one pass here may bring it before another limit, which is touched in turn; the set grows as it is walked.
    for (const counter of this.#touched) this.#refill(tx, counter, opened);
    // One that was full of those that wait elsewhere, until a moment ago.
    for (const counter of this.#freed) this.#refill(tx, counter, opened);
    this.#freed.clear();
    for (const counter of this.#touched) this.#store(tx, counter);
    this.#touched.clear();
    if (opened.length > 0) this.#open.run(JSON.stringify(opened));
    return opened.length;
  }

  #pass(tx: Tx, job: LimitedJob, counters: readonly Counter[], from: number): boolean {
    for (let i = from; i < counters.length; i++) {
      const counter = counters[i] as Counter;
      const row = this.#row(counter, job.lane);
      if (!this.#mayPass(tx, counter, row, job)) {
        this.#parkAt(row, job, counters.length > 1);
        for (const before of counters.slice(from, i)) this.#beyond(before, job.lane, 1);
        return false;
      }
      addPassed(row, job.key, job.priority);
    }
    return true;
  }

  #mayPass(tx: Tx, counter: Counter, row: Row, job: LimitedJob): boolean {
    const window = windowOf(room(this.#rule(counter), counter, tx.now));
    if (row.beyond >= WINDOW) return false;
    if (row.parked === 0 && readyOf(row) < window) return true;
    // One whose turn is before that of what stands ready must not wait behind it: it ranks higher, or has come back.
    if (window === 0 || row.passed === 0 || !mayJoin(readyOf(row), window)) return false;
    if (!precedes(job, row)) return false;
    const best = this.#nextParked(row);
    return best === undefined || byTurn(job, { key: best[0], priority: best[1] }) < 0;
  }

  #parkAt(row: Row, job: LimitedJob, more: boolean): void {
    this.#park.run(row.id, job.priority, job.key, more ? 1 : 0);
    // What was read ahead stays right while it comes before the new one, or is all there is.
    const last = row.next.at(-1);
    if (last === undefined || last[1] < job.priority || (last[1] === job.priority && last[0] > job.key)) row.next = [];
    row.parked += 1;
    row.changed = true;
  }

  #nextParked(row: Row): Parked | undefined {
    if (row.parked > 0 && row.next.length === 0) row.next = this.#head.rows(row.id, AHEAD) as Parked[];
    return row.next[0];
  }

  /** True when nothing of it stands ready any more, although more could start. */
  #start(tx: Tx, counter: Counter, lane: number): boolean {
    const rule = this.#rule(counter);
    start(rule, counter, tx.now);
    const row = this.#row(counter, lane);
    row.running += 1;
    row.passed -= 1;
    row.bucket = counter.bucket;
    row.changed = true;
    return readyOf(row) === 0 && row.parked > 0 && row.beyond < WINDOW && room(rule, counter, tx.now) > 0;
  }

  #refill(tx: Tx, counter: Counter, opened: JobKey[]): void {
    const window = windowOf(room(this.#rule(counter), counter, tx.now));
    for (const row of counter.rows) {
      for (let joined = 0; row.parked > 0 && row.beyond < WINDOW;) {
        const [key, priority, more] = this.#nextParked(row) as Parked;
        if (readyOf(row) >= window) {
          // While there was no room, it may have been parked behind others that stand ready.
          if (joined++ >= window || !mayJoin(readyOf(row), window) || !precedes({ key, priority }, row)) break;
        }
        row.next.shift();
        this.#unpark.run(row.id, priority, key);
        row.parked -= 1;
        addPassed(row, key, priority);
        if (more === 1 && !this.#goOn(tx, counter, { key, lane: row.lane, priority })) continue;
        opened.push(key);
        tx.ready(this.#catalog.lane(row.lane).queue);
        tx.wrote();
      }
    }
  }

  /** It has passed this one; on to the next. */
  #goOn(tx: Tx, passed: Counter, job: Omit<LimitedJob, "limits">): boolean {
    const limits = this.#limitsOf.row(job.key)?.[0] as string;
    const counters = this.#countersOf(tx, limits);
    const at = counters.indexOf(passed);
    if (!this.#pass(tx, { ...job, limits }, counters, at + 1)) {
      this.#beyond(passed, job.lane, 1);
      return false;
    }
    for (const before of counters.slice(0, at)) this.#beyond(before, job.lane, -1);
    return true;
  }

  #beyond(counter: Counter, lane: number, by: 1 | -1): void {
    const row = this.#row(counter, lane);
    change(row, { beyond: row.beyond + by });
    if (by === -1 && row.beyond === WINDOW - 1) this.#freed.add(counter);
  }

  #store(tx: Tx, counter: Counter): void {
    for (const row of counter.rows.slice()) {
      const idle = row.running + row.passed + row.parked === 0;
      // A counter that says nothing is forgotten, or every key that was ever used would stay.
      if (idle && row.bucket <= tx.now) {
        this.#remove.run(row.id);
        counter.rows.splice(counter.rows.indexOf(row), 1);
        tx.wrote();
        continue;
      }
      const dueAt = idle ? Math.ceil(row.bucket) : row.parked > 0 ? this.#opensAt(tx, counter, row) : null;
      if (dueAt !== row.dueAt) {
        this.#setDue.run(dueAt, row.id);
        row.dueAt = dueAt;
        tx.wrote();
      }
      if (!row.changed) continue;
      row.changed = false;
      this.#save.run(row.running, row.passed, row.beyond, row.parked, row.lowest, row.last, row.bucket, row.id);
      tx.wrote();
    }
  }

  /** When the rate has room for one more to pass; or to join those that have passed already, where its turn is before theirs. */
  #opensAt(tx: Tx, counter: Counter, row: Row): number | null {
    const rule = this.#rule(counter);
    if (rule.rate === null) return null;
    const [key, priority] = this.#nextParked(row) as Parked;
    const ready = readyOf(row);
    const joins = row.passed > 0 && precedes({ key, priority }, row);
    return opensAt(rule, counter, tx.now, joins ? Math.min(ready, room(rule, counter, tx.now)) : ready);
  }

  /** The counters of a job, narrow to wide. They are looked at again at the end of the operation. */
  #countersOf(tx: Tx, limits: string): Counter[] {
    this.#refresh(tx);
    let counters = this.#byText.get(limits);
    if (counters === undefined) {
      counters = (JSON.parse(limits) as [number, string][]).map(([rule, key]) => this.#counter(tx, rule, key));
      this.#byText.set(limits, counters);
    }
    for (const counter of counters) this.#touch(tx, counter);
    return counters;
  }

  #touch(tx: Tx, counter: Counter): void {
    this.#touched.add(counter);
    if (counter.bucket <= tx.now) return;
    // Written down, or after a clock was set back it would be found too full again and again.
    counter.bucket = capped(this.#rule(counter), counter.bucket, tx.now);
    for (const row of counter.rows) if (row.bucket > counter.bucket) change(row, { bucket: counter.bucket });
  }

  #counter(tx: Tx, rule: number, key: string): Counter {
    this.#refresh(tx);
    const name = `${rule}:${key}`;
    let counter = this.#counters.get(name);
    if (counter === undefined) {
      counter = { rule, key, rows: this.#load.rows(rule, key).map(toRow), running: 0, bucket: 0 };
      for (const row of counter.rows) {
        counter.running += row.running;
        counter.bucket = Math.max(counter.bucket, row.bucket);
      }
      this.#counters.set(name, counter);
    }
    return counter;
  }

  /** Once in each transaction. */
  #refresh(tx: Tx): void {
    if (this.#tx === tx) return;
    this.#tx = tx;
    const [version] = this.#version.row() as [number];
    if (version !== this.#seen || tx.settings !== this.#settingsSeen || this.#counters.size > MOST) this.forget();
    this.#seen = version;
    this.#settingsSeen = tx.settings;
    this.#touched.clear();
    this.#settings.at(tx.settings);
  }

  /** After an undone transaction. */
  forget(): void {
    this.#counters.clear();
    this.#byText.clear();
    this.#touched.clear();
    this.#freed.clear();
    this.#seen = -1;
  }

  #row(counter: Counter, lane: number): Row {
    const known = counter.rows.find((row) => row.lane === lane);
    if (known !== undefined) return known;
    const [id] = this.#add.row(counter.rule, counter.key, lane) as [number];
    const none = { running: 0, passed: 0, beyond: 0, parked: 0, lowest: 0, last: 0, bucket: 0 };
    const row = { id, lane, ...none, dueAt: null, changed: true, next: [] };
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

/** Whether its turn is before that of the last of those that have passed. */
function precedes({ key, priority }: { key: JobKey; priority: number }, { lowest, last }: Row): boolean {
  return priority > lowest || (priority === lowest && key < last);
}

function readyOf({ passed, beyond }: Row): number {
  return passed - beyond;
}

function addPassed(row: Row, key: JobKey, priority: number): void {
  const first = row.passed === 0;
  row.lowest = first ? priority : Math.min(row.lowest, priority);
  row.last = first ? key : Math.max(row.last, key);
  row.passed += 1;
  row.changed = true;
}

function change(row: Row, to: Partial<Row>): void {
  Object.assign(row, to, { changed: true });
}

function toRow(row: unknown[]): Row {
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
  return { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt, changed: false, next: [] };
}
