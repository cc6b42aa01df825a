import { dependentsOf, isEarly, upstreamEnded, type Wait } from "../../../core/jobs/admission.ts";
import type { FinishedState } from "../../../core/jobs/job.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { COUNTED, publicId, type Tallied } from "../../job-row.ts";
import { listOf, lists, type Rows } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";
import { runAsync } from "../../sql/script.ts";
import { named } from "../scripts.ts";
import type { JobParts } from "../store-parts.ts";

export interface FinishedJob {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

type WaitingRow = [key: JobKey, lane: number, priority: number, runAt: number, createdAt: number, limits: string | null];

type SettleEffectsParts = Pick<JobParts, "catalog" | "tally" | "waits" | "limits" | "retention" | "events" | "batches">;

/**
 * What follows from the end of a job: counts, retention, and the jobs that come after it. A job that does not succeed cancels
 * those after it, and those after them, in the same transaction.
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
        update ${s}.jobs as job set state = 'pending', gate = asked.gate,
          -- A job that waited to replace another has the slot of that one from now on.
          slot = case when starts_with(job.slot, E'\\n') then substr(job.slot, 2) else job.slot end
        from unnest($1::bigint[], $2::text[]) as asked (key, gate) where job.key = asked.key and job.state = 'waiting'`,
      cancel: `
        update ${s}.jobs as job set state = 'cancelled', error = asked.error, finished_at = $1
        from unnest($2::bigint[], $3::text[]) as asked (key, error) where job.key = asked.key and job.state = 'waiting'`,
      idsOf: `select key, created_at, id from ${s}.jobs where key = any($1::bigint[])`,
    };
  }

  async follow(tx: Tx, now: number, ended: readonly FinishedJob[]): Promise<void> {
    await this.#parts.tally.add(tx, now, ended);
    for (let round = ended; round.length > 0;) {
      await this.#parts.retention.add(tx, round, now);
      round = await this.#updateDependents(tx, now, round);
      await this.#parts.tally.add(tx, now, round);
    }
  }

  areAwaited(tx: Tx, jobs: readonly JobKey[]): Promise<boolean> {
    return this.#parts.waits.areAny(tx, jobs);
  }

  async succeeded(tx: Tx, jobs: readonly JobKey[]): Promise<void> {
    const ended = jobs.map((job) => ({ job, state: "succeeded" }) as const);
    await this.#updateDependents(tx, await tx.now(), ended);
  }

  async #updateDependents(tx: Tx, now: number, ended: readonly Pick<FinishedJob, "job" | "state">[]): Promise<FinishedJob[]> {
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
    const errorOf = new Map(
      upstreams.map(([key, createdAt, id]) => {
        return [key, JSON.stringify(upstreamEnded(publicId(id, createdAt, key), states.get(key) as FinishedState))];
      }),
    );
    const keys = rows.map(([key]) => key);
    const errors = keys.map((key) => errorOf.get(upstreamOf.get(key) as JobKey) as string);
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

export class Waits {
  readonly #sql: Record<"add" | "areAny" | "behind" | "lock" | "removeBehind" | "removeOf" | "free", string>;

  constructor(s: string) {
    this.#sql = {
      add: `insert into ${s}.waits (job, upstream) select * from unnest($1::bigint[], $2::bigint[]) on conflict do nothing`,
      areAny: `select exists (select 1 from ${s}.waits where upstream = any($1::bigint[]))`,
      behind: `
        select job, upstream, coalesce((select starts_with(slot, E'\\n') from ${s}.jobs where key = job), false)
        from ${s}.waits where upstream = any($1::bigint[]) order by job`,
      // A job that two upstreams free at once is freed by the second: it waits here for the first, and then sees its commit.
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

  async areAny(tx: Tx, upstreams: readonly JobKey[]): Promise<boolean> {
    const [row] = await tx.rows<[boolean]>(this.#sql.areAny, listOf(upstreams));
    return (row as [boolean])[0];
  }

  async behind(tx: Tx, ended: readonly JobKey[]): Promise<Wait[]> {
    const waits = await tx.rows<[JobKey, JobKey, boolean]>(this.#sql.behind, listOf(ended));
    if (waits.length === 0) return [];
    await tx.rows(this.#sql.lock, listOf([...new Set(waits.map(([job]) => job))]));
    return waits.map(([job, upstream, replaces]) => ({ job, upstream, replaces }));
  }

  async over(tx: Tx, upstreams: readonly JobKey[], jobs: readonly JobKey[]): Promise<void> {
    await tx.rows(this.#sql.removeBehind, listOf(upstreams));
    if (jobs.length > 0) await tx.rows(this.#sql.removeOf, listOf(jobs));
  }

  async free(tx: Tx, jobs: readonly JobKey[]): Promise<JobKey[]> {
    if (jobs.length === 0) return [];
    return (await tx.rows<[JobKey]>(this.#sql.free, listOf(jobs))).map(([job]) => job);
  }

  async forget(tx: Tx, job: JobKey): Promise<void> {
    await tx.rows(this.#sql.removeOf, listOf([job]));
  }
}

/**
 * Counts are split into shares, one row each, so that many stores can settle without waiting for each other. Users'
 * transactions and second connections have shares of their own.
 */
const SHARES = 64;

export function longShare(random: () => number): number {
  return SHARES + Math.floor(random() * SHARES);
}

export function secondShare(first: number): number {
  return 2 * SHARES + first;
}

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

  /** With the same share, two transactions that count several lanes in different orders would deadlock. */
  async chooseShare(rows: Rows, random: () => number): Promise<number> {
    try {
      const [row] = await rows<[number]>(this.#sql.share);
      return (row as [number])[0] % SHARES;
    } catch {
      return Math.floor(random() * SHARES);
    }
  }

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
    return named<Tallied>(await rows(this.#sql.all));
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
