import { randomUUID } from "node:crypto";
import { FetchedRows, RowMissing, CounterCache } from "../../../core/limits/lane-usage.ts";
import { type LimitChanges, type Gate, type LimitedJob, LimitGate } from "../../../core/limits/limit-gate.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { NewJob } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import { listOf } from "../connection/driver.ts";
import type { Settings } from "../settings.ts";
import type { QueueLocks } from "../transactions/mutexes.ts";
import type { Tx } from "../transactions/transaction.ts";
import { CounterRows, type Pair, pairsIn } from "./counter-rows.ts";

export type { LimitedJob };

/** Counters of a limit whose rate lets something pass again, looked at in one transaction; the rest follows with the next claim. */
const DUE = 200;
/** Beyond this many, what was claimed here and settled elsewhere is forgotten with the rest. */
const MOST = 50_000;

type Limited = Pick<LimitedJob, "lane" | "limits">;

/** A job that was claimed here, as its end needs it. Of a work item it is not known what it is limited by. */
interface ClaimedHere {
  queue: string;
  limited: Limited | null;
}

/** What is to be decided, and about whom. */
interface Question<T> {
  /** Counters that are looked at, each as often as it is used; what else is needed is fetched when it turns out to be. */
  pairs: readonly Pair[];
  /** Whether places become free, so that the next ones pass. */
  frees: boolean;
  /** Jobs whose rows the caller writes. */
  own?: readonly JobKey[];
  /** May run more than once, and changes nothing but the limitGate. */
  decide: (limitGate: LimitGate) => T;
  /** What the caller writes then, sent ahead of the changes, and waited for. */
  write?: (answer: T) => Promise<unknown>;
}

interface Decided<T> {
  answer: T;
  /** Jobs that stand ready now. */
  opened: ReadonlySet<JobKey>;
}

/**
 * The limit gate on this database. Its rows are read ahead, for a whole batch and under the lock of its queue; where one
 * turns out to be missing, it is fetched and everything is decided again; then the changes are written in one go.
 */
export class Limits {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #locks: QueueLocks;
  readonly #cache: LimitCache;
  readonly #rows: CounterRows;
  readonly #sql: Record<"lanes" | "due", string>;
  /** Each job with limits, or work item, that was claimed through this store. */
  readonly #claimed = new Map<JobKey, ClaimedHere>();
  #last: Promise<unknown> = Promise.resolve();

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; locks: QueueLocks; limitCache: LimitCache }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#locks = parts.locks;
    this.#cache = parts.limitCache;
    this.#rows = new CounterRows(s, (rule) => this.#cache.remembered(this.#queueOf(rule)));
    const due = (when: string) => `
      select asked.rule, counter.key from clock cross join unnest($1::integer[]) as asked (rule) cross join lateral (
        select key from ${s}.counters where counters.rule = asked.rule and due_at is not null and due_at ${when}
        order by due_at limit ${DUE}) as counter`;
    this.#sql = {
      // Their own, and those of the jobs that their ends may free.
      lanes: `
        select lane from ${s}.jobs where key = any($1::bigint[]) and limits is not null
        union
        select job.lane from unnest($2::bigint[]) as ended (key) join ${s}.waits on waits.upstream = ended.key
        cross join lateral (select lane, limits from ${s}.jobs where key = waits.job offset 0) as job where job.limits is not null`,
      // By counters_due. No rate is used up for longer than it lasts: an instant further away than that was written by a clock
      // that was set back since.
      due: `
        with clock as materialized (select ${s}.clock($2) as now)
        ${due("<= clock.now")} union all ${due("> clock.now + $3")}`,
    };
  }

  /** Before any row of their jobs is locked: no other transaction decides about the limits of these queues until the commit. */
  lock(tx: Tx, queues: Iterable<string>): Promise<void> {
    return this.#locks.take(tx, queues);
  }

  /** Those that an earlier try turned out to need, and these; null when there are none. */
  lockWanted(tx: Tx, also: readonly string[]): Promise<void> | null {
    return this.#locks.takeWanted(tx, also);
  }

  /** Whether no lock is taken that one can do without, since it was held for too long while something else was waited for. */
  get yields(): boolean {
    return this.#locks.yields;
  }

  stalled(): void {
    this.#locks.stalled();
  }

  /** The queues of those of them that will have limits, or are work items: locked before anything is looked up for them. */
  queuesOf(jobs: readonly NewJob[]): string[] {
    const limited = jobs.filter(
      ({ queue, declares, work }) => this.#settings.limits(queue) || (declares?.limits.length ?? 0) > 0 || work !== undefined,
    );
    return [...new Set(limited.map(({ queue }) => queue))];
  }

  /** Before the rows of these jobs are locked, or anything is decided by them; `also`: whichever else will be needed. */
  async lockOf(tx: Tx, jobs: readonly JobKey[], also: readonly string[] = []): Promise<void> {
    const queues = new Set([...this.claimedIn(jobs), ...also]);
    if (this.#settings.limited && jobs.length > 0) {
      const unknown = jobs.filter((job) => !this.#claimed.has(job));
      const lanes = (await tx.rows<[number]>(this.#sql.lanes, listOf(unknown), listOf(jobs))).map(([lane]) => lane);
      await this.#catalog.knowLanes(tx.rows, lanes);
      for (const lane of lanes) queues.add(this.#catalog.lane(lane).queue);
    }
    await this.lock(tx, queues);
  }

  /** Jobs become pending: the gate each stands before, which the caller writes into its row. */
  async admit(tx: Tx, jobs: readonly LimitedJob[]): Promise<Gate[]> {
    if (jobs.length === 0) return [];
    const { answer, opened } = await this.decide(tx, {
      pairs: pairsIn(limitsOf(jobs)),
      frees: false,
      own: jobs.map(({ key }) => key),
      decide: (limitGate) => jobs.map((job) => limitGate.admit(job)),
    });
    return answer.map((gate, i) => gateOf(gate, jobs[i] as LimitedJob, opened));
  }

  /**
   * Jobs run no more; those that never began give back what they took of the rate. Of those that come back, the gate that
   * each stands before, which the caller writes into its row.
   */
  async end(tx: Tx, jobs: readonly (LimitedJob & { began: boolean; back?: boolean })[]): Promise<Gate[]> {
    if (jobs.length === 0) return [];
    const keys = jobs.map(({ key }) => key);
    this.#over(tx, keys);
    const { answer, opened } = await this.decide(tx, {
      pairs: pairsIn(limitsOf(jobs)),
      frees: true,
      own: jobs.map(({ key }) => key),
      decide: (limitGate) =>
        jobs.map((job) => {
          limitGate.finish(job.lane, job.limits, job.began);
          return job.back ? limitGate.admit(job) : null;
        }),
    });
    return answer.map((gate, i) => gateOf(gate, jobs[i] as LimitedJob, opened));
  }

  /** Jobs have ended that were claimed here, and are known to have limits. */
  async free(tx: Tx, jobs: Iterable<JobKey>): Promise<void> {
    const ended = Array.from(jobs, (job) => (this.#claimed.get(job) as ClaimedHere).limited as Limited);
    if (ended.length === 0) return;
    this.#over(tx, jobs);
    await this.decide(tx, {
      pairs: pairsIn(limitsOf(ended)),
      frees: true,
      decide: (limitGate) => {
        for (const { lane, limits } of ended) limitGate.finish(lane, limits, true);
      },
    });
  }

  /** Pending jobs are pending no more, and were never started. `gate` is where each stood. */
  async withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): Promise<void> {
    await this.decide(tx, {
      pairs: pairsIn(limitsOf(jobs)),
      frees: true,
      own: jobs.map(({ key }) => key),
      decide: (limitGate) => {
        for (const job of jobs) limitGate.withdraw(job, job.gate);
      },
    });
  }

  /** Counters of these queues that want to be looked at, because of their rate or because their limit has changed. */
  due(tx: Tx, queues: readonly string[]): Promise<Pair[]> {
    // Instants are whole milliseconds, and what a rate lasts need not be.
    const longest = Math.ceil(this.#settings.view.longestRefillMs);
    return tx.rows<Pair>(this.#sql.due, listOf(this.#rulesOf(queues)), tx.at, longest);
  }

  /** Lets pass what may by now. */
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

  /** A job with limits, or a work item, was claimed here: who settles it need not look up its queue. */
  claimed(job: JobKey, queue: string, limited: ClaimedHere["limited"] = null): void {
    if (this.#claimed.size >= MOST) this.#claimed.clear();
    this.#claimed.set(job, { queue, limited });
  }

  /** They have ended. */
  unclaimed(jobs: readonly JobKey[]): void {
    for (const job of jobs) this.#claimed.delete(job);
  }

  /** The queues of those of them that have limits or are work items, as far as that is known here. */
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
    this.#cache.forget();
  }

  isClaimed(job: JobKey): boolean {
    return this.#claimed.size > 0 && this.#claimed.has(job);
  }

  /** Whether it was claimed here, and is known to have limits, and which. */
  isLimited(job: JobKey): boolean {
    return (this.#claimed.get(job)?.limited ?? null) !== null;
  }

  /** One after the other, or two of one transaction would both start from what was before them. */
  decide<T>(tx: Tx, question: Question<T>): Promise<Decided<T>> {
    const decided = this.#last.then(() => this.#decide(tx, question));
    this.#last = decided.catch(() => {});
    return decided;
  }

  async #decide<T>(tx: Tx, { pairs, frees, own = [], decide, write }: Question<T>): Promise<Decided<T>> {
    const limitRows = new FetchedRows((id) => this.#settings.view.rule(id));
    const queues = [...new Set(pairs.map(([rule]) => this.#queueOf(rule)))];
    // What is remembered counts once it is known who decided last.
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
      if (opened.size > 0) for (const queue of queues) tx.ready(queue);
      return { answer, opened };
    }
  }

  /** They are forgotten once it is written that they run no more. */
  #over(tx: Tx, jobs: Iterable<JobKey>): void {
    const over = [...jobs];
    tx.onCommit(() => this.unclaimed(over));
  }

  /**
   * Sends the changes and their version, and caches what they lead to. The answers are not awaited: if one of them
   * fails, so does whatever comes behind it, to the end of the transaction.
   */
  #store(
    tx: Tx,
    { limitGate, changes, limitRows }: { limitGate: LimitGate; changes: LimitChanges; limitRows: FetchedRows },
    own: readonly JobKey[],
  ): void {
    const counters = Map.groupBy(limitGate.counters, ({ rule }) => this.#queueOf(rule));
    for (const [queue, some] of counters) this.#cache.remembered(queue).update(some, changes, limitRows);
    const writes = this.#rows.write(tx, changes, new Set(own));
    if (writes.length === 0) return;
    for (const write of [...writes, this.#cache.made(tx, [...counters.keys()])]) write.catch(() => {});
    tx.wrote();
  }

  #queueOf(rule: number): string {
    return this.#settings.view.rules.get(rule)?.queue ?? "";
  }

  #rulesOf(queues: readonly string[]): number[] {
    return [...this.#settings.view.rules.values()].filter(({ queue }) => queues.includes(queue)).map(({ id }) => id);
  }
}

/** The gate in the end: room may have come with what else was decided. */
function gateOf(gate: Gate, { key }: LimitedJob, opened: ReadonlySet<JobKey>): Gate {
  return opened.has(key) ? null : gate;
}

function limitsOf(jobs: readonly { limits: string }[]): string[] {
  return jobs.map(({ limits }) => limits);
}

/** What is known of the counters of a queue, since the decision of that name. */
interface Known {
  since: string | null;
  remembered: CounterCache;
}

/**
 * Whether another store has decided about the limits of a queue since this one last did. If not, its counters are as
 * they were left then, and nothing has to be read again. Each decision has a name of its own, so one that was undone is
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

  /** Behind the lock of these queues: what others have changed is forgotten. */
  async read(tx: Tx, queues: readonly string[]): Promise<void> {
    const last = new Map(await tx.rows<[string, string]>(this.#sql.last, listOf(queues)));
    for (const queue of queues) {
      const known = this.#queues.get(queue);
      if (known === undefined) continue;
      const isOurs = known.since !== null && known.since === last.get(queue);
      if (!isOurs) this.#forget(queue);
      known.remembered.isShared = !isOurs;
    }
  }

  /** Under the lock of its queue. */
  remembered(queue: string): CounterCache {
    let known = this.#queues.get(queue);
    if (known === undefined) this.#queues.set(queue, (known = { since: null, remembered: new CounterCache() }));
    return known.remembered;
  }

  /** One was made about these queues, and all that it changes is stored. */
  made(tx: Tx, queues: readonly string[]): Promise<unknown> {
    const since = `${this.#handle} ${++this.#made}`;
    for (const queue of queues) {
      const known = this.#queues.get(queue);
      if (known !== undefined) known.since = since;
      tx.onUndo(() => this.#forget(queue));
    }
    return tx.rows(this.#sql.made, listOf(queues), since);
  }

  /** Counters of this queue are changed otherwise, under its lock. */
  changed(tx: Tx, queue: string): Promise<unknown> {
    this.#forget(queue);
    return this.made(tx, [queue]);
  }

  /** Nothing of what is known is sure. */
  forget(): void {
    this.#queues.clear();
  }

  #forget(queue: string): void {
    const known = this.#queues.get(queue);
    if (known === undefined) return;
    known.since = null;
    known.remembered.clear();
  }
}
