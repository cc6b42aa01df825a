import assert from "node:assert/strict";
import type { JobKey } from "../../src/core/text/ids.ts";
import { byClaimOrder } from "../../src/core/jobs/job.ts";
import { type LimitRule, countFree } from "../../src/core/limits/limit.ts";
import {
  type Gate,
  type LimitChanges,
  type LimitedJob,
  LimitGate,
  type LimitPair,
  parseLimits,
} from "../../src/core/limits/limit-gate.ts";
import type { ParkedRow, UsageRow } from "../../src/core/limits/lane-usage.ts";

/** Read so few at a time, so that reading on is tried, too. */
const CHUNK = 3;

export interface TableJob extends LimitedJob {
  state: "pending" | "running" | "over";
  gate: Gate;
}

type Sums = Pick<UsageRow, "running" | "passed" | "beyond" | "parked">;

/** A store of limited jobs in memory, as plain as can be. `keeps`: the gate keeps its rows from one operation to the next. */
export class Table {
  readonly jobs = new Map<JobKey, TableJob>();
  readonly rules: LimitRule[];
  /** How often counters, and parked jobs of a counter, were read. */
  reads = { counters: 0, parked: 0 };
  readonly #usages = new Map<number, UsageRow>();
  readonly #parked = new Map<number, ParkedRow[]>();
  readonly #ids = new Map<string, number>();
  readonly #keeps: boolean;
  #gate: LimitGate;

  constructor(rules: LimitRule[], { keeps = true } = {}) {
    this.rules = rules;
    this.#keeps = keeps;
    this.#gate = this.#newGate();
  }

  /** One operation, as a store runs it: answers what was written. */
  operate<T>(now: number, jobs: readonly LimitedJob[], operation: (gate: LimitGate) => T): { answer: T; changes: Written } {
    return this.#operate(
      now,
      jobs.flatMap(({ limits }) => parseLimits(limits)),
      operation,
    );
  }

  recheckDue(now: number): void {
    const due = [...this.#usages.values()].filter(({ due_at }) => due_at !== null && due_at <= now);
    const pairs = due.map(({ rule, key }): LimitPair => [rule, key]);
    this.setGates(this.#operate(now, pairs, (gate) => pairs.forEach((pair) => gate.recheck(...pair))).changes);
  }

  withdraw(gate: LimitGate, job: LimitedJob, from: Gate): void {
    const places = from === "limit" ? gate.placesOf(job) : [];
    gate.withdraw(
      job,
      from,
      places.find(({ id }) => this.#isParked(id, job)),
    );
  }

  usages(rule: number, key: string): UsageRow[] {
    return [...this.#usages.values()].filter((one) => one.rule === rule && one.key === key);
  }

  isDue(now: number): boolean {
    return [...this.#usages.values()].some(({ due_at }) => due_at !== null && due_at <= now);
  }

  /** The counters are what the jobs add up to, and no limit is exceeded. */
  check(): void {
    const sums = new Map<string, Sums>();
    for (const job of this.jobs.values()) {
      if (job.state === "over") continue;
      for (const [rule, key] of parseLimits(job.limits)) {
        const name = `${rule}:${key}:${job.lane}`;
        const sum = sums.get(name) ?? { running: 0, passed: 0, beyond: 0, parked: 0 };
        sums.set(name, sum);
        const usage = this.usages(rule, key).find(({ lane }) => lane === job.lane) as UsageRow;
        if (job.state === "running") sum.running++;
        else if (job.gate === "limit" && this.#isParked(usage.id, job)) {
          sum.parked++;
          break;
        } else {
          sum.passed++;
          if (job.gate === "limit") sum.beyond++;
        }
      }
    }
    for (const { id, rule, key, lane, running, passed, beyond, parked } of this.#usages.values()) {
      const name = `${rule}:${key}:${lane}`;
      const none = { running: 0, passed: 0, beyond: 0, parked: 0 };
      assert.deepEqual({ running, passed, beyond, parked }, sums.get(name) ?? none, name);
      assert.equal((this.#parked.get(id) ?? []).length, parked, `${name} has its jobs parked`);
      sums.delete(name);
    }
    assert.deepEqual([...sums.keys()], [], "whatever is counted has a usage");
  }

  /** Parked jobs that could start by the counters alone, and that have no ready job before them. */
  stuck(now: number): TableJob[] {
    return [...this.jobs.values()].filter((job) => {
      if (job.state !== "pending" || job.gate === null) return false;
      return parseLimits(job.limits).every(([rule, key]) => {
        const usages = this.usages(rule, key);
        const running = usages.reduce((sum, usage) => sum + usage.running, 0);
        const bucket = usages.reduce((latest, usage) => Math.max(latest, usage.bucket), 0);
        const ready = usages.reduce((sum, usage) => sum + (usage.lane === job.lane ? usage.passed : 0), 0);
        return ready === 0 && countFree(this.rules[rule] as LimitRule, { running, bucket }, now) > 0;
      });
    });
  }

  #newGate(): LimitGate {
    return new LimitGate((id) => this.rules[id] as LimitRule);
  }

  #operate<T>(now: number, pairs: LimitPair[], operation: (gate: LimitGate) => T): { answer: T; changes: Written } {
    if (!this.#keeps) this.#gate = this.#newGate();
    const gate = this.#gate;
    gate.now = now;
    const written: Written = { ...NONE, unparked: [], parked: [] };
    this.#load(pairs);
    const answer = operation(gate);
    for (;;) {
      const wanted = gate.refill();
      for (const usage of gate.takeUnnamed()) usage.id = this.#idOf(usage);
      if (wanted.size === 0) break;
      this.#move(gate.takeMoves(), written);
      for (const usage of wanted.keys()) {
        const rows = (this.#parked.get(usage.id) ?? []).slice(0, CHUNK);
        this.reads.parked++;
        gate.loadParked(usage, rows);
        this.#load(rows.flatMap(({ limits }) => (limits === null ? [] : parseLimits(limits))));
      }
    }
    const changes = gate.takeChanges();
    if (changes === null) return { answer, changes: written };
    this.#move(changes, written);
    for (const { id } of changes.removed) assert.ok(this.#usages.delete(id), "what is removed was there");
    for (const usage of changes.added) assert.ok(!this.#usages.has(usage.id), "what is added was not there");
    for (const usage of [...changes.added, ...changes.saved]) this.#usages.set(usage.id, rowOf(usage));
    return { answer, changes: { ...changes, unparked: written.unparked, parked: written.parked } };
  }

  /** Called after the operation's own jobs were written. */
  setGates({ closed, opened }: Pick<LimitChanges, "closed" | "opened">): void {
    for (const key of closed) (this.jobs.get(key) as TableJob).gate = "limit";
    for (const key of opened) (this.jobs.get(key) as TableJob).gate = null;
  }

  #load(pairs: LimitPair[]): void {
    const missing = this.#gate.unloaded(pairs);
    this.reads.counters += missing.length;
    this.#gate.load(
      missing,
      missing.flatMap(([rule, key]) => this.usages(rule, key)),
    );
  }

  #move(moves: Pick<LimitChanges, "unparked" | "parked">, written: Written): void {
    for (const row of moves.unparked) {
      const jobs = this.#parked.get(row.counter) ?? [];
      const left = jobs.filter(({ job, priority }) => job !== row.job || priority !== row.priority);
      assert.equal(left.length, jobs.length - 1, `${row.job} was parked there`);
      this.#parked.set(row.counter, left);
    }
    for (const row of moves.parked) {
      const jobs = this.#parked.get(row.counter) ?? [];
      assert.ok(!jobs.some(({ job }) => job === row.job), `${row.job} is parked once`);
      this.#parked.set(row.counter, [...jobs, row].sort(byTurn));
    }
    written.unparked.push(...moves.unparked);
    written.parked.push(...moves.parked);
  }

  #isParked(counter: number, { key }: LimitedJob): boolean {
    return (this.#parked.get(counter) ?? []).some(({ job }) => job === key);
  }

  #idOf({ rule, key, lane }: UsageRow): number {
    const name = `${rule}:${key}:${lane}`;
    const id = this.#ids.get(name) ?? this.#ids.size + 1;
    this.#ids.set(name, id);
    return id;
  }
}

type Written = Omit<LimitChanges, "lanes">;

const NONE: Written = { unparked: [], parked: [], added: [], saved: [], removed: [], closed: [], opened: [] };

function byTurn(a: ParkedRow, b: ParkedRow): number {
  return byClaimOrder({ priority: a.priority, key: a.job }, { priority: b.priority, key: b.job });
}

function rowOf({ id, rule, key, lane, running, passed, beyond, parked, lowest, last, bucket, due_at }: UsageRow): UsageRow {
  return { id, rule, key, lane, running, passed, beyond, parked, lowest, last, bucket, due_at };
}
