import { randomUUID } from "node:crypto";
import { CounterCache, FetchedRows, RowMissing } from "../../../core/limits/lane-usage.ts";
import { type Gate, type LimitChanges, type LimitedJob, LimitGate } from "../../../core/limits/limit-gate.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { NewJob } from "../../store.ts";
import type { Catalog, Settings } from "../catalog.ts";
import { listOf } from "../connection/driver.ts";
import type { QueueLocks } from "../transactions/mutexes.ts";
import type { Tx } from "../transactions/transaction.ts";
import { CounterRows, type Pair, pairsIn } from "./counter-rows.ts";

export type { LimitedJob };

/** Counters whose rate allows starts again, in one transaction; others follow with the next claim. */
const MAX_DUE = 200;
/** Beyond this many entries the map is cleared: it keeps jobs that other processes settled. */
const MAX_CLAIMED = 50_000;

type Limited = Pick<LimitedJob, "lane" | "limits">;

interface ClaimedHere {
  queue: string;
  limited: Limited | null;
}

interface Question<T> {
  pairs: readonly Pair[];
  frees: boolean;
  own?: readonly JobKey[];
  /** May run more than once, and changes nothing but the gate. */
  decide: (limitGate: LimitGate) => T;
  write?: (answer: T) => Promise<unknown>;
}

interface Decided<T> {
  answer: T;
  opened: ReadonlySet<JobKey>;
}

/**
 * The limit gate on PostgreSQL. Its rows are read for a whole batch under the lock of the queue; if one is missing, it is
 * fetched and everything is decided again; then all changes are written.
 */
export class Limits {
  readonly locks: QueueLocks;
  readonly #parts: { catalog: Catalog; settings: Settings; limitCache: LimitCache };
  readonly #rows: CounterRows;
  readonly #sql: Record<"lanes" | "due", string>;
  readonly #claimed = new Map<JobKey, ClaimedHere>();
  #last: Promise<unknown> = Promise.resolve();

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; locks: QueueLocks; limitCache: LimitCache }) {
    this.locks = parts.locks;
    this.#parts = parts;
    this.#rows = new CounterRows(s, (rule) => this.#parts.limitCache.countersOf(this.#queueOf(rule)));
    const due = (when: string) => `
      select asked.rule, counter.key from clock cross join unnest($1::integer[]) as asked (rule) cross join lateral (
        select key from ${s}.counters where counters.rule = asked.rule and due_at is not null and due_at ${when}
        order by due_at limit ${MAX_DUE}) as counter`;
    this.#sql = {
      lanes: `
        select lane from ${s}.jobs where key = any($1::bigint[]) and limits is not null
        union
        select job.lane from unnest($2::bigint[]) as ended (key) join ${s}.waits on waits.upstream = ended.key
        cross join lateral (select lane, limits from ${s}.jobs where key = waits.job offset 0) as job where job.limits is not null`,
      // By counters_due. An instant further away than the longest rate was written before the clock was set back.
      due: `
        with clock as materialized (select ${s}.clock($2) as now)
        ${due("<= clock.now")} union all ${due("> clock.now + $3")}`,
    };
  }

  lock(tx: Tx, queues: Iterable<string>): Promise<void> {
    return this.locks.take(tx, queues);
  }

  queuesOf(jobs: readonly NewJob[]): string[] {
    const limited = jobs.filter(
      ({ queue, declares, work }) =>
        this.#parts.settings.limits(queue) || (declares?.limits.length ?? 0) > 0 || work !== undefined,
    );
    return [...new Set(limited.map(({ queue }) => queue))];
  }

  async lockOf(tx: Tx, jobs: readonly JobKey[], also: readonly string[] = []): Promise<void> {
    const queues = new Set([...this.claimedIn(jobs), ...also]);
    if (this.#parts.settings.view.hasLimits && jobs.length > 0) {
      const unknown = jobs.filter((job) => !this.#claimed.has(job));
      const lanes = (await tx.rows<[number]>(this.#sql.lanes, listOf(unknown), listOf(jobs))).map(([lane]) => lane);
      await this.#parts.catalog.knowLanes(tx.rows, lanes);
      for (const lane of lanes) queues.add(this.#parts.catalog.lane(lane).queue);
    }
    await this.lock(tx, queues);
  }

  /** Jobs become pending; answers the gate of each, which the caller writes into its row. */
  admit(tx: Tx, jobs: readonly LimitedJob[]): Promise<Gate[]> {
    return this.#decideEach(tx, jobs, false, (limitGate, job) => limitGate.admit(job));
  }

  /** Jobs run no more; those that never began return what they took of the rate. Answers the gates of those pending again. */
  end(tx: Tx, jobs: readonly (LimitedJob & { began: boolean; back?: boolean })[]): Promise<Gate[]> {
    const keys = jobs.map(({ key }) => key);
    this.#over(tx, keys);
    return this.#decideEach(tx, jobs, true, (limitGate, job) => {
      limitGate.finish(job.lane, job.limits, job.began);
      return job.back ? limitGate.admit(job) : null;
    });
  }

  async withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): Promise<void> {
    await this.#decideEach(tx, jobs, true, (limitGate, job) => {
      limitGate.withdraw(job, job.gate);
      return null;
    });
  }

  async #decideEach<Job extends LimitedJob>(
    tx: Tx,
    jobs: readonly Job[],
    frees: boolean,
    decide: (limitGate: LimitGate, job: Job) => Gate,
  ): Promise<Gate[]> {
    if (jobs.length === 0) return [];
    const own = jobs.map(({ key }) => key);
    const { answer, opened } = await this.decide(tx, {
      pairs: pairsIn(limitsOf(jobs)),
      frees,
      own,
      decide: (limitGate) => jobs.map((job) => decide(limitGate, job)),
    });
    // A later decision of the batch may have made room.
    return answer.map((gate, i) => (opened.has(own[i] as JobKey) ? null : gate));
  }

  /** Jobs that were claimed here have succeeded. */
  async free(tx: Tx, jobs: Iterable<JobKey>): Promise<void> {
    const of = (key: JobKey) => (this.#claimed.get(key) as ClaimedHere).limited as Limited;
    await this.end(
      tx,
      Array.from(jobs, (key) => ({ ...of(key), key, priority: 0, began: true })),
    );
  }

  due(tx: Tx, queues: readonly string[]): Promise<Pair[]> {
    // Instants are whole milliseconds, periods of rates need not be.
    const longest = Math.ceil(this.#parts.settings.view.longestRefillMs);
    return tx.rows<Pair>(this.#sql.due, listOf(this.#rulesOf(queues)), tx.at, longest);
  }

  async serve(tx: Tx, due: readonly Pair[]): Promise<void> {
    if (due.length === 0) return;
    await this.decide(tx, {
      pairs: due,
      frees: true,
      decide: (limitGate) => {
        for (const [rule, key] of due) limitGate.recheck(rule, key);
      },
    });
  }

  claimed(job: JobKey, queue: string, limited: ClaimedHere["limited"] = null): void {
    if (this.#claimed.size >= MAX_CLAIMED) this.#claimed.clear();
    this.#claimed.set(job, { queue, limited });
  }

  unclaimed(jobs: readonly JobKey[]): void {
    for (const job of jobs) this.#claimed.delete(job);
  }

  claimedIn(jobs: readonly JobKey[]): string[] {
    const queues = new Set<string>();
    for (const job of jobs) {
      const claimed = this.#claimed.get(job);
      if (claimed !== undefined) queues.add(claimed.queue);
    }
    return [...queues];
  }

  forget(): void {
    this.#claimed.clear();
    this.#parts.limitCache.forget();
  }

  isClaimed(job: JobKey): boolean {
    return this.#claimed.size > 0 && this.#claimed.has(job);
  }

  isLimited(job: JobKey): boolean {
    return (this.#claimed.get(job)?.limited ?? null) !== null;
  }

  /** One decision after the other: two of one transaction would both start from the same counts. */
  decide<T>(tx: Tx, question: Question<T>): Promise<Decided<T>> {
    const decided = this.#last.then(() => this.#decide(tx, question));
    this.#last = decided.catch(() => {});
    return decided;
  }

  async #decide<T>(tx: Tx, { pairs, frees, own = [], decide, write }: Question<T>): Promise<Decided<T>> {
    const limitRows = new FetchedRows((id) => this.#parts.settings.view.rule(id));
    const queues = [...new Set(pairs.map(([rule]) => this.#queueOf(rule)))];
    const [, now] = await Promise.all([this.lock(tx, queues), tx.now()]);
    await this.#rows.fetch(tx, limitRows, pairs, frees);
    for (;;) {
      const limitGate = new LimitGate(limitRows, now);
      let answer: T;
      let changes: LimitChanges | null;
      try {
        answer = decide(limitGate);
        changes = limitGate.collectChanges();
      } catch (error) {
        if (!(error instanceof RowMissing)) throw error;
        await this.#rows.fetchMissing(tx, limitRows, error.missing);
        continue;
      }
      const written = write?.(answer);
      if (changes !== null) this.#store(tx, { limitGate, changes, limitRows }, own);
      await written;
      const opened = new Set(changes?.opened.map(({ key }) => key));
      if (opened.size + (changes?.timed.length ?? 0) > 0) for (const queue of queues) tx.ready(queue);
      return { answer, opened };
    }
  }

  #over(tx: Tx, jobs: Iterable<JobKey>): void {
    const over = [...jobs];
    tx.onCommit(() => this.unclaimed(over));
  }

  /** The answers are not awaited: if a write fails, so does every later statement of the transaction. */
  #store(
    tx: Tx,
    { limitGate, changes, limitRows }: { limitGate: LimitGate; changes: LimitChanges; limitRows: FetchedRows },
    own: readonly JobKey[],
  ): void {
    const counters = Map.groupBy(limitGate.counters, ({ rule }) => this.#queueOf(rule));
    for (const [queue, some] of counters) this.#parts.limitCache.countersOf(queue).update(some, changes, limitRows);
    const writes = this.#rows.write(tx, changes, new Set(own));
    if (writes.length === 0) return;
    for (const write of [...writes, this.#parts.limitCache.made(tx, [...counters.keys()])]) write.catch(() => {});
    tx.wrote();
  }

  #queueOf(rule: number): string {
    return this.#parts.settings.view.rules.get(rule)?.queue ?? "";
  }

  #rulesOf(queues: readonly string[]): number[] {
    return [...this.#parts.settings.view.rules.values()].filter(({ queue }) => queues.includes(queue)).map(({ id }) => id);
  }
}

function limitsOf(jobs: readonly { limits: string }[]): string[] {
  return jobs.map(({ limits }) => limits);
}

interface Known {
  since: string | null;
  counters: CounterCache;
}

/**
 * Whether another store has decided about the limits of a queue since this one last did. If not, its counters are as this store
 * left them. Without the cache a limited drain is half as fast. Each decision has a unique name, so one that was undone is
 * never taken for another.
 */
export class LimitCache {
  readonly #sql: Record<"last" | "made", string>;
  readonly #handle = randomUUID();
  readonly #queues = new Map<string, Known>();
  #made = 0;

  constructor(s: string) {
    this.#sql = {
      last: `select queue, last from ${s}.decisions where queue = any($1::text[])`,
      made: `
        insert into ${s}.decisions (queue, last) select queue, $2 from unnest($1::text[]) as queue
        on conflict (queue) do update set last = excluded.last`,
    };
  }

  async read(tx: Tx, queues: readonly string[]): Promise<void> {
    const last = new Map(await tx.rows<[string, string]>(this.#sql.last, listOf(queues)));
    for (const queue of queues) {
      const known = this.#queues.get(queue);
      if (known === undefined) continue;
      if (known.since === null || known.since !== last.get(queue)) this.#forget(queue);
    }
  }

  countersOf(queue: string): CounterCache {
    let known = this.#queues.get(queue);
    if (known === undefined) this.#queues.set(queue, (known = { since: null, counters: new CounterCache() }));
    return known.counters;
  }

  made(tx: Tx, queues: readonly string[]): Promise<unknown> {
    const since = `${this.#handle} ${++this.#made}`;
    for (const queue of queues) {
      const known = this.#queues.get(queue);
      if (known !== undefined) known.since = since;
      tx.onUndo(() => this.#forget(queue));
    }
    return tx.rows(this.#sql.made, listOf(queues), since);
  }

  /** Counters of this queue are changed without the gate, under its lock. */
  changed(tx: Tx, queue: string): Promise<unknown> {
    this.#forget(queue);
    return this.made(tx, [queue]);
  }

  forget(): void {
    this.#queues.clear();
  }

  #forget(queue: string): void {
    const known = this.#queues.get(queue);
    if (known === undefined) return;
    known.since = null;
    known.counters.clear();
  }
}
