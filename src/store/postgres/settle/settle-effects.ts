import { dependentsOf, isEarly, upstreamEnded, type Wait } from "../../../core/jobs/admission.ts";
import type { FinishedState } from "../../../core/jobs/job.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { COUNTED, publicId, type Tallied } from "../../job-row.ts";
import { listOf, lists, type Rows } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";
import { runAsync } from "../../sql/script.ts";
import type { JobParts } from "../store-parts.ts";

/** A job that has ended. */
export interface FinishedJob {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

type WaitingRow = [key: JobKey, lane: number, priority: number, runAt: number, createdAt: number, limits: string | null];

type SettleEffectsParts = Pick<JobParts, "catalog" | "tally" | "waits" | "limits" | "retention" | "events" | "batches">;

/**
 * What the end of a job means for everything around its row: counts, how long it is kept, and the jobs that come after
 * it. Nothing waits for ever: a job that ends otherwise than succeeded cancels those that were to come after it, and
 * those after them, in the same transaction.
 */
export class SettleEffects {
  readonly #parts: SettleEffectsParts;
  readonly #sql: Record<"waiting" | "unblock" | "cancel" | "idsOf", string>;

  constructor(s: string, parts: SettleEffectsParts) {
    this.#parts = parts;
    this.#sql = {
      waiting: `
        select key, lane, priority, run_at, created_at, limits from ${s}.jobs
        where key = any($1::bigint[]) and state = 'waiting' order by key`,
      unblock: `
        update ${s}.jobs as job set state = 'pending', gate = asked.gate
        from unnest($1::bigint[], $2::text[]) as asked (key, gate) where job.key = asked.key and job.state = 'waiting'`,
      cancel: `
        update ${s}.jobs as job set state = 'cancelled', error = asked.error, finished_at = $1
        from unnest($2::bigint[], $3::text[]) as asked (key, error) where job.key = asked.key and job.state = 'waiting'`,
      idsOf: `select key, created_at, id from ${s}.jobs where key = any($1::bigint[])`,
    };
  }

  /** The settings are those of this transaction. `ended` is what the caller has written. */
  async follow(tx: Tx, now: number, ended: readonly FinishedJob[]): Promise<void> {
    await this.#parts.tally.add(tx, now, ended);
    // What is cancelled on the way has ended, too, and is looked at in the next round.
    for (let round = ended; round.length > 0;) {
      await this.#parts.retention.add(tx, round, now);
      round = await this.#tellBehind(tx, now, round);
      await this.#parts.tally.add(tx, now, round);
    }
  }

  /** Whether a job waits for one of these. */
  areAwaited(tx: Tx, jobs: readonly JobKey[]): Promise<boolean> {
    return this.#parts.waits.areAny(tx, jobs);
  }

  /** Those that wait for these may go on. */
  async succeeded(tx: Tx, jobs: readonly JobKey[]): Promise<void> {
    const ended = jobs.map((job) => ({ job, state: "succeeded" }) as const);
    await this.#tellBehind(tx, await tx.now(), ended);
  }

  /** In a handful of statements, however many come after them: those of them that are cancelled by it. */
  async #tellBehind(tx: Tx, now: number, ended: readonly Pick<FinishedJob, "job" | "state">[]): Promise<FinishedJob[]> {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    const waits = await this.#parts.waits.behind(tx, [...states.keys()]);
    if (waits.length === 0) return [];
    const { cancelled, unblocked } = dependentsOf(waits, states);
    await this.#parts.waits.over(tx, [...states.keys()], [...cancelled.keys()]);
    const ends = cancelled.size === 0 ? [] : await this.#cancelBehind(tx, now, cancelled, states);
    await this.#unblock(tx, now, await this.#parts.waits.free(tx, unblocked));
    tx.wrote();
    return ends;
  }

  async #unblock(tx: Tx, now: number, jobs: readonly JobKey[]): Promise<void> {
    const rows = await this.#waitingOf(tx, jobs);
    const gates = new Map<JobKey, string | null>();
    const limited = [];
    for (const [key, lane, priority, runAt, createdAt, limits] of rows) {
      if (isEarly(runAt, createdAt, now)) gates.set(key, "time");
      else if (limits === null) gates.set(key, null);
      else limited.push({ key, lane, priority, limits });
      tx.ready(this.#parts.catalog.lane(lane).queue);
    }
    if (limited.length > 0) {
      const admitted = await this.#parts.limits.admit(tx, limited);
      for (const [i, { key }] of limited.entries()) gates.set(key, admitted[i] ?? null);
    }
    if (gates.size > 0) await tx.rows(this.#sql.unblock, listOf([...gates.keys()]), listOf([...gates.values()]));
  }

  async #cancelBehind(
    tx: Tx,
    now: number,
    upstreamOf: ReadonlyMap<JobKey, JobKey>,
    states: ReadonlyMap<JobKey, FinishedState>,
  ): Promise<FinishedJob[]> {
    const rows = await this.#waitingOf(tx, [...upstreamOf.keys()]);
    const upstreams = await tx.rows<[JobKey, number, string | null]>(this.#sql.idsOf, listOf([...new Set(upstreamOf.values())]));
    const said = new Map(
      upstreams.map(([key, createdAt, id]) => {
        return [key, JSON.stringify(upstreamEnded(publicId(id, createdAt, key), states.get(key) as FinishedState))];
      }),
    );
    const keys = rows.map(([key]) => key);
    const errors = keys.map((key) => said.get(upstreamOf.get(key) as JobKey) as string);
    await tx.rows(this.#sql.cancel, now, listOf(keys), listOf(errors));
    const cancelled = rows.map(([job, lane]): FinishedJob => ({ job, lane, state: "cancelled" }));
    const happened = cancelled.map(({ job, lane }) => ({ type: "job.cancelled", job, lane }) as const);
    await this.#parts.events.tell(tx, happened);
    const waited = cancelled.map(({ job, lane }) => ({ job, lane, was: "waiting" }) as const);
    await runAsync(this.#parts.batches.cancelled(tx, now, waited));
    return cancelled;
  }

  async #waitingOf(tx: Tx, jobs: readonly JobKey[]): Promise<WaitingRow[]> {
    if (jobs.length === 0) return [];
    const rows = await tx.rows<WaitingRow>(this.#sql.waiting, listOf(jobs));
    const lanes = rows.map((row) => row[1]);
    await this.#parts.catalog.knowLanes(tx.rows, lanes);
    return rows;
  }
}

/** A job that comes after others. */
export class Waits {
  readonly #sql: Record<"add" | "areAny" | "behind" | "lock" | "removeBehind" | "removeOf" | "free", string>;

  constructor(s: string) {
    this.#sql = {
      add: `insert into ${s}.waits (job, upstream) select * from unnest($1::bigint[], $2::bigint[]) on conflict do nothing`,
      areAny: `select exists (select 1 from ${s}.waits where upstream = any($1::bigint[]))`,
      behind: `select job, upstream from ${s}.waits where upstream = any($1::bigint[]) order by job`,
      // What two upstreams free at once is freed by the second: it waits here for the first, and then sees what it did.
      lock: `select 1 from ${s}.jobs where key = any($1::bigint[]) order by key for update`,
      removeBehind: `delete from ${s}.waits where upstream = any($1::bigint[])`,
      removeOf: `delete from ${s}.waits where job = any($1::bigint[])`,
      free: `
        select key from unnest($1::bigint[]) as one (key)
        where not exists (select 1 from ${s}.waits where job = one.key) order by key`,
    };
  }

  async add(tx: Tx, waits: readonly Wait[]): Promise<void> {
    if (waits.length === 0) return;
    await tx.rows(this.#sql.add, ...lists(waits, "job", "upstream"));
  }

  /** Whether a job waits for one of these. */
  async areAny(tx: Tx, upstreams: readonly JobKey[]): Promise<boolean> {
    const [row] = await tx.rows<[boolean]>(this.#sql.areAny, listOf(upstreams));
    return (row as [boolean])[0];
  }

  /** Those that wait for one of these, in the order in which they were made; no other transaction can change them now. */
  async behind(tx: Tx, ended: readonly JobKey[]): Promise<Wait[]> {
    const waits = await tx.rows<[JobKey, JobKey]>(this.#sql.behind, listOf(ended));
    if (waits.length === 0) return [];
    await tx.rows(this.#sql.lock, listOf([...new Set(waits.map(([job]) => job))]));
    return waits.map(([job, upstream]) => ({ job, upstream }));
  }

  /** These have ended, and those wait no longer for whatever it is. */
  async over(tx: Tx, upstreams: readonly JobKey[], jobs: readonly JobKey[]): Promise<void> {
    await tx.rows(this.#sql.removeBehind, listOf(upstreams));
    if (jobs.length > 0) await tx.rows(this.#sql.removeOf, listOf(jobs));
  }

  /** Those of them that wait for nothing any more. */
  async free(tx: Tx, jobs: readonly JobKey[]): Promise<JobKey[]> {
    if (jobs.length === 0) return [];
    return (await tx.rows<[JobKey]>(this.#sql.free, listOf(jobs))).map(([job]) => job);
  }

  async forget(tx: Tx, job: JobKey): Promise<void> {
    await tx.rows(this.#sql.removeOf, listOf([job]));
  }
}

/**
 * Counts are split into shares, one row each: so many stores can settle at once without waiting for each other. A lane and
 * state have three times as many rows at most, since users' transactions and second connections have shares of their own.
 */
const SHARES = 64;

/** A share for a transaction that may stay open for long: a user's, or one with `commit` callbacks. */
export function longShare(random: () => number): number {
  return SHARES + Math.floor(random() * SHARES);
}

/** The share of a store's second connection. */
export function secondShare(first: number): number {
  return 2 * SHARES + first;
}

/** Counts of finished jobs, kept with each change of one, so that counting never walks history. */
export class Tally {
  readonly #sql: Record<"share" | "add" | "subtract" | "all", string>;

  constructor(s: string) {
    this.#sql = {
      share: `select nextval('${s}.share')`,
      add: `
        insert into ${s}.tally as old (share, lane, state, n, ended, fresh, since)
        select $1, lane, state, n, n, n, $2 from unnest($3::integer[], $4::text[], $5::bigint[]) as new (lane, state, n)
        order by lane, state
        on conflict (share, lane, state) do update set ${COUNTED}`,
      subtract: `
        insert into ${s}.tally as old (share, lane, state, n)
        select $1, lane, state, -n from unnest($2::integer[], $3::text[], $4::bigint[]) as new (lane, state, n)
        order by lane, state
        on conflict (share, lane, state) do update set n = old.n + excluded.n`,
      all: `select lane, state, n, ended, since, fresh, before from ${s}.tally`,
    };
  }

  /**
   * The share of a connection: each has its own, unless there are many. With the same share, two transactions that count
   * several lanes, each in another order, would wait for each other.
   */
  async chooseShare(rows: Rows, random: () => number): Promise<number> {
    try {
      const [row] = await rows<[number]>(this.#sql.share);
      return (row as [number])[0] % SHARES;
    } catch {
      // A role that may only read counts nothing.
      return Math.floor(random() * SHARES);
    }
  }

  /** What a statement that ends jobs does besides: `ended` is what it returns of them, with their lane, and `clock` the time. */
  static within(s: string, share: string, state: FinishedState): string {
    return `
      insert into ${s}.tally as old (share, lane, state, n, ended, fresh, since)
      select ${share}, ended.lane, '${state}', count(*), count(*), count(*), max(clock.now) from ended, clock group by ended.lane
      on conflict (share, lane, state) do update set ${COUNTED}`;
  }

  async add(tx: Tx, now: number, ended: readonly { lane: number; state: FinishedState }[]): Promise<void> {
    const sums = sumsOf(ended);
    if (sums.length === 0) return;
    await tx.rows(this.#sql.add, tx.tallyShare, now, ...lists(sums, "lane", "state", "n"));
  }

  async subtract(tx: Tx, gone: readonly { lane: number; state: FinishedState }[]): Promise<void> {
    const sums = sumsOf(gone);
    if (sums.length === 0) return;
    await tx.rows(this.#sql.subtract, tx.tallyShare, ...lists(sums, "lane", "state", "n"));
  }

  async all(rows: Rows): Promise<Tallied[]> {
    const all = await rows<[number, FinishedState, number, number, number, number, number]>(this.#sql.all);
    return all.map(([lane, state, n, ended, since, fresh, before]) => ({ lane, state, n, ended, since, fresh, before }));
  }
}

interface Sum {
  lane: number;
  state: FinishedState;
  n: number;
}

function sumsOf(jobs: readonly { lane: number; state: FinishedState }[]): Sum[] {
  const sums = new Map<string, Sum>();
  for (const { lane, state } of jobs) {
    const sum = sums.get(`${lane} ${state}`);
    if (sum === undefined) sums.set(`${lane} ${state}`, { lane, state, n: 1 });
    else sum.n += 1;
  }
  return [...sums.values()];
}
