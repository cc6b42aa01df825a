import assert from "node:assert/strict";
import {
  type Fact,
  type Facts,
  Fetched,
  Missing,
  type Parked,
  Remembered,
  type Share,
  type ShareState,
  type Stored,
  type Turn,
} from "../../src/core/limits/share.ts";
import type { JobKey } from "../../src/core/text/ids.ts";
import { byTurn } from "../../src/core/jobs/job.ts";
import { type LimitRule, room } from "../../src/core/limits/limit.ts";
import { type Changes, limitsIn, type LimitedJob, Turnstile } from "../../src/core/limits/turnstile.ts";

/** Read so few at a time, so that reading on is tried, too. */
const CHUNK = 3;

export interface TableJob extends LimitedJob {
  state: "pending" | "running" | "over";
  gate: "limit" | null;
}

/** What an operation answers, and what it leaves to be written. */
export interface Decided<T> {
  answer: T;
  changes: Changes | null;
}

/** A store of limited jobs in memory, as plain as can be. */
export class Table implements Facts {
  readonly jobs = new Map<JobKey, TableJob>();
  readonly rules: LimitRule[];
  readonly #shares = new Map<number, { rule: number; key: string; stored: Stored }>();
  readonly #parked = new Map<number, Parked[]>();
  #ids = 0;

  constructor(rules: LimitRule[]) {
    this.rules = rules;
  }

  rule(id: number): LimitRule {
    return this.rules[id] as LimitRule;
  }

  shares(rule: number, key: string): Stored[] {
    return [...this.#shares.values()].filter((one) => one.rule === rule && one.key === key).map(({ stored }) => stored);
  }

  parked(share: number, after: Turn | null): Parked[] {
    const jobs = this.#parked.get(share) ?? [];
    return (after === null ? jobs : jobs.filter((job) => byTurn(job, after) > 0)).slice(0, CHUNK);
  }

  isParked(share: number, job: Turn): boolean {
    return (this.#parked.get(share) ?? []).some(({ key }) => key === job.key);
  }

  limitsOf(job: JobKey): string {
    return (this.jobs.get(job) as TableJob).limits;
  }

  /** Counters that want to be looked at. */
  due(now: number): { rule: number; key: string }[] {
    return [...this.#shares.values()].filter(({ stored }) => stored.dueAt !== null && stored.dueAt <= now);
  }

  /** Decision with all limit rows loaded. */
  decide<T>(now: number, operation: (turnstile: Turnstile) => T): Decided<T> {
    const turnstile = new Turnstile(this, now);
    return { answer: operation(turnstile), changes: turnstile.changes() };
  }

  /**
   * Decision that starts with no limit rows, or with those cached by the last decision, and fetches one row after the other.
   * The cache keeps the rows as the decision left them.
   */
  decideFetching<T>(
    now: number,
    operation: (turnstile: Turnstile) => T,
    remembered = new Remembered(),
  ): Decided<T> & { fetched: number } {
    const facts = new Fetched((id) => this.rule(id));
    for (let fetched = 0; ;) {
      const turnstile = new Turnstile(facts, now);
      try {
        const answer = operation(turnstile);
        const changes = turnstile.changes();
        if (changes !== null) remembered.keep(turnstile.counters, changes, facts);
        return { answer, changes, fetched };
      } catch (error) {
        if (!(error instanceof Missing)) throw error;
        if (this.#fetch(facts, error.fact, remembered)) fetched++;
      }
    }
  }

  /** False when it was remembered. */
  #fetch(facts: Fetched, fact: Fact, remembered: Remembered): boolean {
    const known = fact.what === "shares" ? remembered.counter(fact.rule, fact.key) : undefined;
    if (fact.what !== "shares" || known === undefined) this.#look(facts, fact);
    else facts.recall(fact.rule, fact.key, known);
    return known === undefined;
  }

  #look(facts: Fetched, fact: Fact): void {
    switch (fact.what) {
      case "shares":
        return facts.addShares(fact.rule, fact.key, this.shares(fact.rule, fact.key));
      case "parked": {
        const jobs = this.parked(fact.share, fact.after);
        return facts.addParked(fact.share, jobs, jobs.length < CHUNK);
      }
      case "isParked":
        return facts.addIsParked(fact.share, fact.job, this.isParked(fact.share, fact.job));
      case "limitsOf":
        return facts.addLimits(fact.job, this.limitsOf(fact.job));
    }
  }

  write(changes: Changes | null): void {
    if (changes === null) return;
    for (const { share, job } of changes.unparked) this.#unpark(share.id as number, job);
    for (const { id } of changes.removed) assert.ok(this.#shares.delete(id as number), "what is removed was there");
    for (const share of changes.saved) this.#save(share);
    for (const { id, dueAt } of changes.due) {
      const known = this.#shares.get(id as number) as { rule: number; key: string; stored: Stored };
      this.#shares.set(id as number, { ...known, stored: { ...known.stored, dueAt } });
    }
    for (const { share, job } of changes.parked) this.#park(share.id as number, job);
    for (const key of changes.shut) this.#setGate(key, "limit");
    for (const { key } of changes.opened) this.#setGate(key, null);
  }

  /** Gives new shares of another turnstile the ids that they have here. */
  name(changes: Changes | null): void {
    for (const share of changes?.saved ?? []) {
      const { rule, key } = share.counter;
      share.id = this.shares(rule, key).find(({ lane }) => lane === share.lane)?.id ?? null;
      assert.ok(share.id !== null);
    }
  }

  /** The counters are what the jobs add up to, and no limit is exceeded. */
  check(): void {
    const sums = new Map<string, Pick<ShareState, "running" | "passed" | "beyond" | "parked">>();
    for (const job of this.jobs.values()) {
      if (job.state === "over") continue;
      for (const [rule, key] of limitsIn(job.limits)) {
        const name = `${rule}:${key}:${job.lane}`;
        const sum = sums.get(name) ?? { running: 0, passed: 0, beyond: 0, parked: 0 };
        sums.set(name, sum);
        const share = this.shares(rule, key).find(({ lane }) => lane === job.lane) as Stored;
        if (job.state === "running") sum.running++;
        else if (job.gate === "limit" && this.isParked(share.id, job)) {
          sum.parked++;
          break;
        } else {
          sum.passed++;
          if (job.gate === "limit") sum.beyond++;
        }
      }
    }
    for (const { rule, key, stored } of this.#shares.values()) {
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
    assert.deepEqual([...sums.keys()], [], "whatever is counted has a share");
  }

  /** Parked jobs that could start by the counters alone, and that have no ready job before them. */
  stuck(now: number): TableJob[] {
    return [...this.jobs.values()].filter((job) => {
      if (job.state !== "pending" || job.gate === null) return false;
      return limitsIn(job.limits).every(([rule, key]) => {
        const shares = this.shares(rule, key);
        const running = shares.reduce((sum, share) => sum + share.running, 0);
        const bucket = shares.reduce((latest, share) => Math.max(latest, share.bucket), 0);
        const ready = shares.reduce((sum, share) => sum + (share.lane === job.lane ? share.passed : 0), 0);
        return ready === 0 && room(this.rule(rule), { running, bucket }, now) > 0;
      });
    });
  }

  #save(share: Share): void {
    const dueAt = share.id === null ? share.dueAt : (this.#shares.get(share.id)?.stored.dueAt ?? null);
    share.id ??= ++this.#ids;
    const { id, lane, running, passed, beyond, parked, lowest, last, bucket } = share;
    const { rule, key } = share.counter;
    const stored = { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt };
    this.#shares.set(id, { rule, key, stored });
  }

  #park(share: number, job: Parked): void {
    const jobs = this.#parked.get(share) ?? [];
    assert.ok(!jobs.some(({ key }) => key === job.key), `${job.key} is parked once`);
    const { key, priority, more } = job;
    this.#parked.set(share, [...jobs, { key, priority, more }].sort(byTurn));
  }

  #unpark(share: number, job: Turn): void {
    const jobs = this.#parked.get(share) ?? [];
    const left = jobs.filter(({ key, priority }) => key !== job.key || priority !== job.priority);
    assert.equal(left.length, jobs.length - 1, `${job.key} was parked there`);
    this.#parked.set(share, left);
  }

  #setGate(key: JobKey, gate: TableJob["gate"]): void {
    (this.jobs.get(key) as TableJob).gate = gate;
  }
}

/** Changes without what only their turnstile sees, in an order of their own. */
export function plain(changes: Changes | null): Record<string, string[]> {
  if (changes === null) return {};
  return {
    unparked: changes.unparked.map(({ share, job: { key, priority } }) => `${name(share)} ${key} ${priority}`).sort(),
    removed: changes.removed.map(name).sort(),
    saved: changes.saved.map(whole).sort(),
    due: changes.due.map(whole).sort(),
    parked: changes.parked.map(({ share, job }) => `${name(share)} ${job.key} ${job.priority} ${job.more}`).sort(),
    shut: changes.shut.map(String).sort(),
    opened: changes.opened.map(({ key, lane }) => `${key} ${lane}`).sort(),
  };
}

function name({ counter: { rule, key }, lane }: Share): string {
  return `${rule}:${key}:${lane}`;
}

function whole(share: Share): string {
  const { running, passed, beyond, parked, lowest, last, bucket, dueAt } = share;
  return `${name(share)} ${JSON.stringify({ running, passed, beyond, parked, lowest, last, bucket, dueAt })}`;
}
