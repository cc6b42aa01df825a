import type { Gate, LimitedJob, LimitGate, LimitPair } from "../../core/limits/limit-gate.ts";
import type { ParkedRow, UsageRow } from "../../core/limits/lane-usage.ts";
import type { JobKey } from "../../core/text/ids.ts";
import { LimitRows, type LimitReads, limitsOf, MAX_DUE_COUNTERS, USAGE } from "../sql/limits.ts";
import { runAsync, type Script, type Tx as ScriptTx } from "../sql/script.ts";
import type { NewJob } from "../store.ts";
import type { Catalog, Settings } from "./catalog.ts";
import { listOf } from "./connection/driver.ts";
import { dialectOf } from "./scripts.ts";
import type { QueueLocks } from "./transactions/mutexes.ts";
import type { Tx } from "./transactions/transaction.ts";

/** Beyond this many entries the map is cleared, because it keeps jobs that other processes settled. */
const MAX_CLAIMED = 50_000;
const MAX_LOADED_LIMITS = 20_000;
export const IDS_AT_ONCE = 10_000;

type Limited = Pick<LimitedJob, "lane" | "limits">;

interface ClaimedHere {
  queue: string;
  limited: Limited | null;
}

interface Decided<T> {
  answer: T;
  opened: ReadonlySet<JobKey>;
}

/** The limit gate on PostgreSQL. A transaction that decides about the limits of a queue holds the queue's lock. */
export class Limits {
  readonly locks: QueueLocks;
  readonly #parts: { catalog: Catalog; settings: Settings };
  readonly #rows: LimitRows;
  readonly #sql: Record<"lanes" | "due", string>;
  readonly #claimed = new Map<JobKey, ClaimedHere>();
  #last: Promise<unknown> = Promise.resolve();

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; locks: QueueLocks }) {
    this.locks = parts.locks;
    this.#parts = parts;
    this.#rows = new LimitRows(dialectOf(s), limitReads(s), (id) => parts.settings.view.rule(id));
    this.locks.onStale = (isStale) =>
      this.#rows.gate.forgetRules((rule) => {
        const queue = this.#queueOf(rule);
        // Without settings in memory, the queue of a rule is unknown.
        return queue === undefined || isStale(queue);
      });
    const due = (when: string) => `
      select asked.rule, counter.key from clock cross join unnest($1::integer[]) as asked (rule) cross join lateral (
        select key from ${s}.counters where counters.rule = asked.rule and due_at is not null and due_at ${when}
        order by due_at limit ${MAX_DUE_COUNTERS}) as counter`;
    this.#sql = {
      lanes: `
        select lane from ${s}.jobs where key = any($1::bigint[]) and limits is not null
        union
        select job.lane from unnest($2::bigint[]) as ended (key) join ${s}.waits on waits.upstream = ended.key
        cross join lateral (select lane, limits from ${s}.jobs where key = waits.job offset 0) as job where job.limits is not null`,
      // Uses counters_due. An instant further away than the longest rate was written before the clock was set back.
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

  admit(tx: Tx, jobs: readonly LimitedJob[]): Promise<Gate[]> {
    return this.#decideEach(tx, jobs, (gate, job) => gate.admit(job));
  }

  /** Ends jobs. Those that never began return what they took of the rate. Returns the gates of those that are pending again. */
  end(tx: Tx, jobs: readonly (LimitedJob & { began: boolean; back?: boolean })[]): Promise<Gate[]> {
    tx.onCommit(() => this.unclaimed(jobs.map(({ key }) => key)));
    return this.#decideEach(tx, jobs, (gate, job) => {
      gate.finish(job.lane, job.limits, job.began);
      return job.back ? gate.admit(job) : null;
    });
  }

  async withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): Promise<void> {
    if (jobs.length > 0) await this.#decide(tx, this.#queuesOf(jobs), this.#rows.withdraw(tx, jobs), ownOf(jobs));
  }

  async #decideEach<Job extends LimitedJob>(
    tx: Tx,
    jobs: readonly Job[],
    decide: (gate: LimitGate, job: Job) => Gate,
  ): Promise<Gate[]> {
    if (jobs.length === 0) return [];
    const each = (gate: LimitGate) => jobs.map((job) => decide(gate, job));
    const { answer, opened } = await this.decide(tx, jobs, each, ownOf(jobs));
    return answer.map((gate, i) => (opened.has((jobs[i] as Job).key) ? null : gate));
  }

  async free(tx: Tx, jobs: Iterable<JobKey>): Promise<void> {
    const of = (key: JobKey) => (this.#claimed.get(key) as ClaimedHere).limited as Limited;
    await this.end(
      tx,
      Array.from(jobs, (key) => ({ ...of(key), key, priority: 0, began: true })),
    );
  }

  due(tx: Tx, queues: readonly string[]): Promise<LimitPair[]> {
    // Instants are whole milliseconds, periods of rates need not be.
    const longest = Math.ceil(this.#parts.settings.view.longestRefillMs);
    const rules = [...this.#parts.settings.view.rules.values()].filter(({ queue }) => queues.includes(queue));
    return tx.rows<LimitPair>(this.#sql.due, listOf(rules.map(({ id }) => id)), tx.at, longest);
  }

  async serve(tx: Tx, due: readonly LimitPair[]): Promise<void> {
    const queues = due.flatMap(([rule]) => this.#queueOf(rule) ?? []);
    if (due.length > 0) await this.#decide(tx, queues, this.#rows.recheck(tx, due));
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
    this.locks.forget();
    this.#rows.gate.forget();
  }

  isClaimed(job: JobKey): boolean {
    return this.#claimed.size > 0 && this.#claimed.has(job);
  }

  isLimited(job: JobKey): boolean {
    return (this.#claimed.get(job)?.limited ?? null) !== null;
  }

  /** Decides about these jobs. The caller writes the rows of its `own` jobs. */
  decide<T>(tx: Tx, jobs: readonly Limited[], decide: (gate: LimitGate) => T, own?: ReadonlySet<JobKey>): Promise<Decided<T>> {
    return this.#decide(tx, this.#queuesOf(jobs), this.#loaded(tx, jobs, decide), own);
  }

  *#loaded<T>(tx: Tx, jobs: readonly Limited[], decide: (gate: LimitGate) => T): Script<T> {
    yield* this.#rows.load(tx, limitsOf(jobs));
    return decide(this.#rows.gate);
  }

  /** Makes one decision after the other: the steps of two decisions of one transaction must not mix. */
  #decide<T>(tx: Tx, queues: readonly string[], script: Script<T>, own?: ReadonlySet<JobKey>): Promise<Decided<T>> {
    const decided = this.#last.then(async (): Promise<Decided<T>> => {
      const [, now] = await Promise.all([this.lock(tx, queues), tx.now()]);
      const { gate } = this.#rows;
      if (gate.size > MAX_LOADED_LIMITS) gate.forget();
      gate.now = now;
      const answer = await runAsync(script);
      const changes = await runAsync(this.#rows.write(tx, own));
      if (changes !== null) this.locks.decided(tx, queues);
      // Another process may have declared the lane of a job that passes now.
      const lanes = [...(changes?.lanes ?? [])];
      await this.#parts.catalog.knowLanes(tx.rows, lanes);
      for (const lane of lanes) tx.ready(this.#parts.catalog.lane(lane).queue);
      return { answer, opened: new Set(changes?.opened) };
    });
    this.#last = decided.catch(() => this.#rows.gate.forget());
    return decided;
  }

  #queuesOf(jobs: readonly Limited[]): string[] {
    return [...new Set(jobs.map(({ lane }) => this.#parts.catalog.lane(lane).queue))];
  }

  #queueOf(rule: number): string | undefined {
    return this.#parts.settings.view.rules.get(rule)?.queue;
  }
}

function ownOf(jobs: readonly LimitedJob[]): Set<JobKey> {
  return new Set(jobs.map(({ key }) => key));
}

function limitReads(s: string): LimitReads {
  const counters = `
    select usage.* from unnest(cast(:rules as bigint[]), cast(:keys as text[])) as asked (asked_rule, asked_key) cross join lateral (
      select ${USAGE} from ${s}.counters where rule = asked_rule and key = asked_key offset 0) as usage`;
  // Reads in the order of the index, beyond the counter's own jobs: for `counter =` a plan that expects few rows would sort a
  // million parked jobs. The limit is part of the text, because for an unknown number a plan expects the worst.
  const parked = (most: number) => `
    select head.* from unnest(cast(:ids as bigint[])) as asked_rule (id) cross join lateral (
      select counter, priority, job, limits from ${s}.parked where counter >= asked_rule.id
      order by counter, priority desc, job limit ${most}) as head
    where head.counter = asked_rule.id order by head.counter, head.priority desc, head.job`;
  const nextIds = `select nextval('${s}.counter_ids') as "next"`;
  let [next, end] = [0, 0];
  return {
    counters: (tx, pairs) =>
      tx.all<UsageRow>(counters, { rules: pairs.map(([rule]) => rule), keys: pairs.map(([, key]) => key) }),
    parked: (tx, usages, most) => tx.all<ParkedRow>(parked(most), { ids: usages.map(({ id }) => id) }),
    *name(tx: ScriptTx, usages) {
      for (const usage of usages) {
        if (next === end) {
          next = ((yield* tx.get<{ next: number }>(nextIds)) as { next: number }).next;
          end = next + IDS_AT_ONCE;
        }
        usage.id = next++;
      }
    },
  };
}
