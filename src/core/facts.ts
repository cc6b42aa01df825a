import type { JobKey } from "./ids.ts";
import { byTurn } from "./job.ts";
import type { LimitRule } from "./limit.ts";
import type { KnownShare } from "./remembered.ts";
import type { Heads, Parked, Stored, Turn } from "./share.ts";

/** What a store knows, as it was when changes were last stored. Each may throw `Missing`. */
export interface Facts {
  rule(id: number): LimitRule;
  shares(rule: number, key: string): readonly Stored[];
  /** The next jobs that are parked at a share, in turn, after that one: some of them, and none only when there are none. */
  parked(share: number, after: Turn | null): readonly Parked[];
  isParked(share: number, job: Turn): boolean;
  /** What stands in the row of a parked job. */
  limitsOf(job: JobKey): string;
}

/** What a store may have to fetch first. */
export type Fact =
  | { what: "shares"; rule: number; key: string }
  | { what: "parked"; share: number; after: Turn | null }
  | { what: "isParked"; share: number; job: Turn }
  | { what: "limitsOf"; job: JobKey };

/** Thrown by a store that has to fetch a fact first: it does, and has everything decided anew, by another turnstile. */
export class Missing extends Error {
  override readonly name = "Missing";
  readonly fact: Fact;
  constructor(fact: Fact) {
    super(`It is not known yet: ${JSON.stringify(fact)}.`);
    this.fact = fact;
  }
}

/** The facts that were fetched so far: whatever else is asked for is missing. They stay as they are, whoever asks. */
export class Fetched implements Facts {
  readonly #ruleOf: (id: number) => LimitRule;
  readonly #shares = new Map<string, readonly Stored[]>();
  readonly #parked = new Map<number, Heads>();
  readonly #isParked = new Map<string, boolean>();
  readonly #limits = new Map<JobKey, string>();

  constructor(ruleOf: (id: number) => LimitRule) {
    this.#ruleOf = ruleOf;
  }

  addShares(rule: number, key: string, shares: readonly Stored[]): void {
    this.#shares.set(`${rule}:${key}`, shares);
  }

  /** All that was known of a counter when changes were last stored. */
  recall(rule: number, key: string, known: readonly KnownShare[]): void {
    this.addShares(
      rule,
      key,
      known.map(({ share }) => share),
    );
    for (const { share, heads } of known) if (heads !== null) this.setParked(share.id, heads);
  }

  hasShares(rule: number, key: string): boolean {
    return this.#shares.has(`${rule}:${key}`);
  }

  /** Of the known shares at which jobs are parked, those of whose jobs none is known. */
  unread(): number[] {
    const shares = [...this.#shares.values()].flat();
    return shares.filter(({ id, parked }) => parked > 0 && !this.#parked.has(id)).map(({ id }) => id);
  }

  /** The next ones, after those that were added before; `whole`: there are no more. */
  addParked(share: number, jobs: readonly Parked[], whole: boolean): void {
    const known = this.#parked.get(share);
    this.#parked.set(share, { jobs: [...(known?.jobs ?? []), ...jobs], whole });
  }

  /** The first ones, whatever was known before. */
  setParked(share: number, heads: Heads): void {
    this.#parked.set(share, heads);
  }

  /** Null: none of them is known. */
  heads(share: number): Heads | null {
    return this.#parked.get(share) ?? null;
  }

  addIsParked(share: number, job: Turn, isParked: boolean): void {
    this.#isParked.set(`${share}:${job.key}`, isParked);
  }

  addLimits(job: JobKey, limits: string): void {
    this.#limits.set(job, limits);
  }

  rule(id: number): LimitRule {
    return this.#ruleOf(id);
  }

  shares(rule: number, key: string): readonly Stored[] {
    const shares = this.#shares.get(`${rule}:${key}`);
    if (shares === undefined) throw new Missing({ what: "shares", rule, key });
    return shares;
  }

  parked(share: number, after: Turn | null): readonly Parked[] {
    const { jobs, whole } = this.#parked.get(share) ?? { jobs: [], whole: false };
    const next = after === null ? jobs : jobs.filter((job) => byTurn(job, after) > 0);
    if (next.length === 0 && !whole) throw new Missing({ what: "parked", share, after: jobs.at(-1) ?? null });
    return next;
  }

  isParked(share: number, job: Turn): boolean {
    const { jobs, whole } = this.#parked.get(share) ?? { jobs: [], whole: false };
    const last = jobs.at(-1);
    if (whole || (last !== undefined && byTurn(job, last) <= 0)) return jobs.some(({ key }) => key === job.key);
    const isParked = this.#isParked.get(`${share}:${job.key}`);
    if (isParked === undefined) throw new Missing({ what: "isParked", share, job });
    return isParked;
  }

  limitsOf(job: JobKey): string {
    const limits = this.#limits.get(job);
    if (limits === undefined) throw new Missing({ what: "limitsOf", job });
    return limits;
  }
}
