import type { LimitRule } from "../../src/core/limits/limit.ts";
import type { Declaration, NewJob } from "../../src/store/store.ts";
import type { ModelJob } from "./model-job.ts";
import { must } from "./violation.ts";

type Rule = Pick<LimitRule, "keyed" | "concurrency" | "rate">;

/** Fractions of a start that do not count. */
const HAIR = 1e-4;

/**
 * Limits as they are promised, counted by starts and ends. A rate is a bucket of starts: `high` is what it may hold at
 * most, `low` what it must hold at least. They differ only where a clock was set.
 */
export class ModelLimits {
  readonly #rules = new Map<string, Rule>();
  readonly #running = new Map<string, number>();
  readonly #buckets = new Map<string, Bucket>();

  /** How far clocks have gone forward in all: no rate has filled up by more. */
  #progress = 0;
  #at: number | null = null;
  #offset: number | null = null;

  get any(): boolean {
    return this.#rules.size > 0;
  }

  /** The newest word counts; an old one only where there is none. */
  declare({ queue, name, settings, limits, old = false }: Declaration): void {
    for (const rule of limits) {
      const id = ruleId(queue, rule.of === "job" ? name : "", rule.position);
      if (!(old && this.#rules.has(id))) this.#set(id, { ...rule });
    }
    if (old) return;
    const count = (of: "job" | "queue") => limits.filter((rule) => rule.of === of).length;
    this.#dropFrom(queue, name, count("job"));
    if (settings !== undefined) this.#dropFrom(queue, "", count("queue"));
  }

  /** What a new job is limited by: what its definition says, and what holds for its whole queue. */
  countersOf({ queue, name, declares, limitKeys = [] }: NewJob): string[] {
    const own = (declares?.limits ?? []).map((rule) => ruleId(queue, rule.of === "job" ? name : "", rule.position));
    const others = [...this.#rules].filter(
      ([id, { keyed, concurrency, rate }]) =>
        id.startsWith(ruleId(queue, "", "")) && !own.includes(id) && !keyed && (concurrency !== null || rate !== null),
    );
    return [...own, ...others.map(([id]) => id)].map((id, i) => `${id}\n${limitKeys[i] ?? ""}`);
  }

  start(job: ModelJob): void {
    for (const counter of job.counters) {
      const { concurrency, rate } = this.#ruleOf(counter);
      const running = (this.#running.get(counter) ?? 0) + 1;
      must(
        concurrency === null || running <= concurrency,
        () => `${job.id} is one too many: ${running} run of ${sayCounter(counter)}`,
      );
      this.#running.set(counter, running);
      if (rate === null) continue;
      const bucket = this.#bucket(counter);
      must(bucket.high >= 1 - HAIR, () => `${job.id} started sooner than the rate of ${sayCounter(counter)} allows`);
      bucket.high = Math.max(0, bucket.high - 1);
      bucket.low = Math.max(0, bucket.low - 1);
    }
  }

  /** One that was given back unbegun gives back its start, too. */
  end(job: ModelJob, began: boolean): void {
    for (const counter of job.counters) {
      this.#running.set(counter, (this.#running.get(counter) ?? 0) - 1);
      const { rate } = this.#ruleOf(counter);
      if (rate === null || began) continue;
      const bucket = this.#bucket(counter);
      bucket.high = Math.min(rate.starts, bucket.high + 1);
      if (bucket.isSteady) bucket.low = Math.min(rate.starts, bucket.low + 1);
    }
  }

  /** How many more may start for sure. */
  room(counter: string): number {
    const { concurrency, rate } = this.#ruleOf(counter);
    const slots = concurrency === null ? Infinity : Math.max(0, concurrency - (this.#running.get(counter) ?? 0));
    return rate === null ? slots : Math.min(slots, Math.floor(this.#bucket(counter).low - HAIR));
  }

  /** As many run as may at once. */
  isFull(counter: string): boolean {
    const { concurrency } = this.#ruleOf(counter);
    return concurrency !== null && (this.#running.get(counter) ?? 0) >= concurrency;
  }

  hasRate(counter: string): boolean {
    return this.#ruleOf(counter).rate !== null;
  }

  /** How long it takes until the rate allows one more; null if it is not the rate that holds it, or the time is unknown. */
  wait(counter: string): number | null {
    const { rate } = this.#ruleOf(counter);
    if (rate === null || this.isFull(counter)) return null;
    const bucket = this.#bucket(counter);
    return bucket.isSteady && bucket.high < 1 ? Math.ceil(rate.per / rate.starts) : null;
  }

  /**
   * A claim has found it used up: from now on its rate fills up, whatever a clock did before. Where as many run as may,
   * no claim looks at the rate.
   */
  observe(counter: string): void {
    if (this.#ruleOf(counter).rate !== null && !this.isFull(counter)) this.#bucket(counter).isSteady = true;
  }

  /** An actor acts, by this clock. */
  clock(at: number, trueTime: number): void {
    this.#progress += Math.max(0, at - (this.#at ?? at));
    this.#at = at;
    if (at - trueTime !== this.#offset) this.#disturb();
    this.#offset = at - trueTime;
  }

  /** A clock was set, or another one is gone by: what the rates hold is known only from above. */
  #disturb(): void {
    for (const bucket of this.#buckets.values()) Object.assign(bucket, { low: 0, isSteady: false });
  }

  #set(id: string, rule: Rule): void {
    const { keyed, concurrency, rate } = rule;
    const known = this.#rules.get(id);
    this.#rules.set(id, { keyed, concurrency, rate });
    if (known?.rate?.starts === rate?.starts && known?.rate?.per === rate?.per) return;
    for (const [counter, bucket] of this.#buckets) {
      if (counter.startsWith(`${id}\n`)) Object.assign(bucket, { high: rate?.starts ?? 0, low: 0, isSteady: false });
    }
  }

  #dropFrom(queue: string, job: string, from: number): void {
    for (const [id, rule] of this.#rules) {
      const prefix = ruleId(queue, job, "");
      if (id.startsWith(prefix) && Number(id.slice(prefix.length)) >= from)
        this.#set(id, { ...rule, concurrency: null, rate: null });
    }
  }

  #ruleOf(counter: string): Rule {
    return this.#rules.get(counter.slice(0, counter.indexOf("\n"))) as Rule;
  }

  #bucket(counter: string): Bucket {
    const { rate } = this.#ruleOf(counter) as { rate: NonNullable<Rule["rate"]> };
    let bucket = this.#buckets.get(counter);
    if (bucket === undefined)
      this.#buckets.set(counter, (bucket = { high: rate.starts, low: rate.starts, isSteady: true, at: this.#progress }));
    const gained = ((this.#progress - bucket.at) * rate.starts) / rate.per;
    bucket.high = Math.min(rate.starts, bucket.high + gained);
    if (bucket.isSteady) bucket.low = Math.min(rate.starts, bucket.low + gained);
    bucket.at = this.#progress;
    return bucket;
  }
}

interface Bucket {
  high: number;
  low: number;
  /** No clock was set since a claim last looked at it. */
  isSteady: boolean;
  at: number;
}

function ruleId(queue: string, job: string, position: number | ""): string {
  return `${queue}/${job}/${position}`;
}

function sayCounter(counter: string): string {
  return counter.replace("\n", " ");
}
