import assert from "node:assert/strict";
import {
  type MissingRow,
  type LimitRows,
  FetchedRows,
  RowMissing,
  type ParkedJob,
  CounterCache,
  type LaneUsage,
  type LaneUsageState,
  type StoredLaneUsage,
  type JobPosition,
} from "../../src/core/limits/lane-usage.ts";
import type { JobKey } from "../../src/core/text/ids.ts";
import { byClaimOrder } from "../../src/core/jobs/job.ts";
import { type LimitRule, countFree } from "../../src/core/limits/limit.ts";
import { type LimitChanges, parseLimits, type LimitedJob, LimitGate } from "../../src/core/limits/limit-gate.ts";

/** Read so few at a time, so that reading on is tried, too. */
const CHUNK = 3;

export interface TableJob extends LimitedJob {
  state: "pending" | "running" | "over";
  gate: "limit" | null;
}

/** What an operation answers, and what it leaves to be written. */
export interface Decided<T> {
  answer: T;
  changes: LimitChanges | null;
}

/** A store of limited jobs in memory, as plain as can be. */
export class Table implements LimitRows {
  readonly jobs = new Map<JobKey, TableJob>();
  readonly rules: LimitRule[];
  readonly #usages = new Map<number, { rule: number; key: string; stored: StoredLaneUsage }>();
  readonly #parked = new Map<number, ParkedJob[]>();
  #ids = 0;

  constructor(rules: LimitRule[]) {
    this.rules = rules;
  }

  rule(id: number): LimitRule {
    return this.rules[id] as LimitRule;
  }

  usages(rule: number, key: string): StoredLaneUsage[] {
    return [...this.#usages.values()].filter((one) => one.rule === rule && one.key === key).map(({ stored }) => stored);
  }

  parked(usage: number, after: JobPosition | null): ParkedJob[] {
    const jobs = this.#parked.get(usage) ?? [];
    return (after === null ? jobs : jobs.filter((job) => byClaimOrder(job, after) > 0)).slice(0, CHUNK);
  }

  isParked(usage: number, job: JobPosition): boolean {
    return (this.#parked.get(usage) ?? []).some(({ key }) => key === job.key);
  }

  limitsOf(job: JobKey): string {
    return (this.jobs.get(job) as TableJob).limits;
  }

  /** Counters that want to be looked at. */
  due(now: number): { rule: number; key: string }[] {
    return [...this.#usages.values()].filter(({ stored }) => stored.dueAt !== null && stored.dueAt <= now);
  }

  /** Decision with all limit rows loaded. */
  decide<T>(now: number, operation: (limitGate: LimitGate) => T): Decided<T> {
    const limitGate = new LimitGate(this, now);
    return { answer: operation(limitGate), changes: limitGate.collectChanges() };
  }

  /**
   * Decision that starts with no limit rows, or with those cached by the last decision, and fetches one row after the other.
   * The cache keeps the rows as the decision left them.
   */
  decideFetching<T>(
    now: number,
    operation: (limitGate: LimitGate) => T,
    remembered = new CounterCache(),
  ): Decided<T> & { fetched: number } {
    const limitRows = new FetchedRows((id) => this.rule(id));
    for (let fetched = 0; ;) {
      const limitGate = new LimitGate(limitRows, now);
      try {
        const answer = operation(limitGate);
        const changes = limitGate.collectChanges();
        if (changes !== null) remembered.update(limitGate.counters, changes, limitRows);
        return { answer, changes, fetched };
      } catch (error) {
        if (!(error instanceof RowMissing)) throw error;
        if (this.#fetch(limitRows, error.missing, remembered)) fetched++;
      }
    }
  }

  /** False when it was remembered. */
  #fetch(limitRows: FetchedRows, missing: MissingRow, remembered: CounterCache): boolean {
    const known = missing.what === "usages" ? remembered.counter(missing.rule, missing.key) : undefined;
    if (missing.what !== "usages" || known === undefined) this.#look(limitRows, missing);
    else limitRows.addKnownUsages(missing.rule, missing.key, known);
    return known === undefined;
  }

  #look(limitRows: FetchedRows, missing: MissingRow): void {
    switch (missing.what) {
      case "usages":
        return limitRows.addUsages(missing.rule, missing.key, this.usages(missing.rule, missing.key));
      case "parked": {
        const jobs = this.parked(missing.usage, missing.after);
        return limitRows.addParked(missing.usage, jobs, jobs.length < CHUNK);
      }
      case "isParked":
        return limitRows.addIsParked(missing.usage, missing.job, this.isParked(missing.usage, missing.job));
      case "limitsOf":
        return limitRows.addLimits(missing.job, this.limitsOf(missing.job));
    }
  }

  write(changes: LimitChanges | null): void {
    if (changes === null) return;
    for (const { usage, job } of changes.unparked) this.#unpark(usage.id as number, job);
    for (const { id } of changes.removed) assert.ok(this.#usages.delete(id as number), "what is removed was there");
    for (const usage of changes.saved) this.#save(usage);
    for (const { id, dueAt } of changes.due) {
      const known = this.#usages.get(id as number) as { rule: number; key: string; stored: StoredLaneUsage };
      this.#usages.set(id as number, { ...known, stored: { ...known.stored, dueAt } });
    }
    for (const { usage, job } of changes.parked) this.#park(usage.id as number, job);
    for (const key of changes.closed) this.#setGate(key, "limit");
    for (const { key } of changes.opened) this.#setGate(key, null);
  }

  /** Gives new usages of another limit gate the ids that they have here. */
  name(changes: LimitChanges | null): void {
    for (const usage of changes?.saved ?? []) {
      const { rule, key } = usage.counter;
      usage.id = this.usages(rule, key).find(({ lane }) => lane === usage.lane)?.id ?? null;
      assert.ok(usage.id !== null);
    }
  }

  /** The counters are what the jobs add up to, and no limit is exceeded. */
  check(): void {
    const sums = new Map<string, Pick<LaneUsageState, "running" | "passed" | "beyond" | "parked">>();
    for (const job of this.jobs.values()) {
      if (job.state === "over") continue;
      for (const [rule, key] of parseLimits(job.limits)) {
        const name = `${rule}:${key}:${job.lane}`;
        const sum = sums.get(name) ?? { running: 0, passed: 0, beyond: 0, parked: 0 };
        sums.set(name, sum);
        const usage = this.usages(rule, key).find(({ lane }) => lane === job.lane) as StoredLaneUsage;
        if (job.state === "running") sum.running++;
        else if (job.gate === "limit" && this.isParked(usage.id, job)) {
          sum.parked++;
          break;
        } else {
          sum.passed++;
          if (job.gate === "limit") sum.beyond++;
        }
      }
    }
    for (const { rule, key, stored } of this.#usages.values()) {
      const { running, passed, beyond, parked } = stored;
      const name = `${rule}:${key}:${stored.lane}`;
      assert.deepEqual(
        { running, passed, beyond, parked },
        sums.get(name) ?? { running: 0, passed: 0, beyond: 0, parked: 0 },
        name,
      );
      assert.equal((this.#parked.get(stored.id) ?? []).length, parked, `${name} has its jobs parked`);
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
        return ready === 0 && countFree(this.rule(rule), { running, bucket }, now) > 0;
      });
    });
  }

  #save(usage: LaneUsage): void {
    const dueAt = usage.id === null ? usage.dueAt : (this.#usages.get(usage.id)?.stored.dueAt ?? null);
    usage.id ??= ++this.#ids;
    const { id, lane, running, passed, beyond, parked, lowest, last, bucket } = usage;
    const { rule, key } = usage.counter;
    const stored = { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt };
    this.#usages.set(id, { rule, key, stored });
  }

  #park(usage: number, job: ParkedJob): void {
    const jobs = this.#parked.get(usage) ?? [];
    assert.ok(!jobs.some(({ key }) => key === job.key), `${job.key} is parked once`);
    const { key, priority, more } = job;
    this.#parked.set(usage, [...jobs, { key, priority, more }].sort(byClaimOrder));
  }

  #unpark(usage: number, job: JobPosition): void {
    const jobs = this.#parked.get(usage) ?? [];
    const left = jobs.filter(({ key, priority }) => key !== job.key || priority !== job.priority);
    assert.equal(left.length, jobs.length - 1, `${job.key} was parked there`);
    this.#parked.set(usage, left);
  }

  #setGate(key: JobKey, gate: TableJob["gate"]): void {
    (this.jobs.get(key) as TableJob).gate = gate;
  }
}

/** Changes without what only their limit gate sees, in an order of their own. */
export function plain(changes: LimitChanges | null): Record<string, string[]> {
  if (changes === null) return {};
  return {
    unparked: changes.unparked.map(({ usage, job: { key, priority } }) => `${name(usage)} ${key} ${priority}`).sort(),
    removed: changes.removed.map(name).sort(),
    saved: changes.saved.map(whole).sort(),
    due: changes.due.map(whole).sort(),
    parked: changes.parked.map(({ usage, job }) => `${name(usage)} ${job.key} ${job.priority} ${job.more}`).sort(),
    shut: changes.closed.map(String).sort(),
    opened: changes.opened.map(({ key, lane }) => `${key} ${lane}`).sort(),
  };
}

function name({ counter: { rule, key }, lane }: LaneUsage): string {
  return `${rule}:${key}:${lane}`;
}

function whole(usage: LaneUsage): string {
  const { running, passed, beyond, parked, lowest, last, bucket, dueAt } = usage;
  return `${name(usage)} ${JSON.stringify({ running, passed, beyond, parked, lowest, last, bucket, dueAt })}`;
}
