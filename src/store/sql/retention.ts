import type { QueueSettings } from "../../core/jobs/claiming.ts";
import type { FinishedState } from "../../core/jobs/job.ts";
import { BACKFILL_ROWS, type ExpiredJob, findExcess, longerList } from "../../core/jobs/retention.ts";
import type { JobKey } from "../../core/text/ids.ts";
import { type Flag, isYes } from "../job-row.ts";
import { type Answer, type Dialect, type Reads, type Script, together, type Tx, wait } from "./script.ts";

export interface FinishedJob {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

/** Asks for the oldest listed jobs of a lane. `turn` tells the answers apart. */
export interface OldestJobs {
  turn: number;
  lane: number;
  state: FinishedState;
  before: number;
  most: number;
}

export type OldestJob = ExpiredJob & { turn: number };

export interface RetentionDatabase {
  isKept(lane: number, state: FinishedState): boolean;
  /** SQL on a row of `queues`: whether transactions that do not know of `keep` may be open. */
  readonly isEarly: string;
  prepare?(tx: Tx): Answer<unknown>;
  mayBegin?(tx: Tx, queue: string): Answer<boolean>;
  /** Returns the jobs by turn and lane, the oldest first. */
  oldest(db: Reads, asked: readonly OldestJobs[]): Script<OldestJob[]>;
  readonly skipLocked: string;
}

type QueueRow = { name: string; keep: string; backfill: number | null; isEarly: Flag; now: number };

interface LimitedRetention {
  name: string;
  keep: QueueSettings["keep"];
  backfill: number | null;
  isEarly: boolean;
}

interface Outstanding {
  due: boolean;
  /** Something will be due when other transactions have committed. */
  soon: boolean;
  unlisted: string[];
}

/** Finished jobs of queues with `keep`, in the order in which they ended, so that nothing walks history. */
export class Retention {
  readonly #database: RetentionDatabase;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, database: RetentionDatabase) {
    this.#database = database;
    this.#sql = statements(dialect, database);
  }

  *add(tx: Tx, ended: readonly FinishedJob[], finishedAt: number): Script<void> {
    const listed = ended.filter(({ lane, state }) => !this.#database.isKept(lane, state));
    const rows = listed.map(({ job, lane, state }) => ({ lane, state, finished_at: finishedAt, job }));
    yield* tx.each(this.#sql.add, rows);
  }

  *outstanding(db: Reads, leastAge: number): Script<Outstanding> {
    const { queues, now } = yield* this.#readQueues(db);
    const unlisted = queues.filter(isUnlisted);
    const due =
      unlisted.some(({ isEarly }) => !isEarly) || (yield* this.#due(db, queues, { now, leastAge, limit: 1 })).length > 0;
    return { due, soon: unlisted.length > 0, unlisted: unlisted.map(({ name }) => name) };
  }

  *take(tx: Tx, limit: number, leastAge: number): Script<{ taken: number; over: ExpiredJob[] }> {
    const { queues, now } = yield* this.#readQueues(tx);
    const due = yield* this.#due(tx, queues, { now, leastAge, limit });
    if (due.length === 0) return { taken: 0, over: [] };
    const held = yield* this.#keys(tx, this.#sql.hold, due);
    // If another transaction has locked the job, for example to let another job wait for it, the next step removes it.
    const busy = yield* this.#keys(tx, this.#sql.still, due);
    const taken = due.filter(({ job }) => held.has(job) || !busy.has(job));
    yield* tx.each(this.#sql.forget, taken.map(toRow));
    return { taken: taken.length, over: due.filter(({ job }) => held.has(job)) };
  }

  /** Lists jobs that ended before `keep` was declared, and returns if there are more. `seen`: unlisted before this call. */
  *backfill(tx: Tx, seen: readonly string[]): Script<boolean> {
    yield* wait(this.#database.prepare?.(tx));
    const { queues } = yield* this.#readQueues(tx);
    const rest = queues.filter(isUnlisted);
    const queue = rest.find(({ isEarly }) => !isEarly);
    if (queue === undefined) return rest.length > 0;
    const { name, keep, backfill } = queue;
    if (backfill === 0 && !seen.includes(name)) return true;
    if (backfill === 0 && !(yield* wait(this.#database.mayBegin?.(tx, name) ?? true))) return true;
    const from = Math.max(0, backfill);
    const { to } = (yield* tx.get<{ to: number | null }>(this.#sql.upTo, { from })) as { to: number | null };
    if (to !== null) {
      const ended = yield* tx.all<ExpiredJob>(this.#sql.ended, { from, to, name });
      const listed = ended.filter(({ state }) => keep[state] !== undefined);
      yield* tx.each(this.#sql.add, listed.map(toRow));
    }
    yield* tx.run(this.#sql.continue, { name, to });
    return true;
  }

  *#readQueues(db: Reads): Script<{ queues: LimitedRetention[]; now: number }> {
    const rows = yield* db.all<QueueRow>(this.#sql.queues);
    const queues = rows.map(({ name, keep, backfill, isEarly }) => {
      return { name, keep: JSON.parse(keep) as QueueSettings["keep"], backfill, isEarly: isYes(isEarly) };
    });
    return { queues, now: rows[0]?.now ?? 0 };
  }

  *#due(
    db: Reads,
    queues: readonly LimitedRetention[],
    { now, leastAge, limit }: { now: number; leastAge: number; limit: number },
  ): Script<ExpiredJob[]> {
    if (queues.length === 0) return [];
    const [finished, lanes] = yield* together(
      db.all<{ lane: number; state: FinishedState; n: number }>(this.#sql.tally),
      db.all<{ id: number; queue: string }>(this.#sql.lanes),
    );
    const unlisted = new Set(queues.filter(isUnlisted).map(({ name }) => name));
    const set = new Map(queues.map((queue) => [queue.name, queue]));
    const found = findExcess({ set, lanes, finished, unlisted }, now, leastAge);
    const asked = found.flatMap(({ lanes, state, count, countBefore, ageBefore }, i) =>
      lanes.flatMap((lane) => [
        ...(count === 0 ? [] : [{ turn: 2 * i, lane, state, before: countBefore, most: Math.min(count, limit) }]),
        ...(ageBefore === null ? [] : [{ turn: 2 * i + 1, lane, state, before: ageBefore, most: limit }]),
      ]),
    );
    if (asked.length === 0) return [];
    const byTurn = Map.groupBy(yield* this.#database.oldest(db, asked), ({ turn }) => turn);
    const over = (turn: number, most: number) => (byTurn.get(turn) ?? []).sort(byEnd).slice(0, most);
    return found.flatMap(({ count }, i) => longerList(over(2 * i, count), over(2 * i + 1, limit))).slice(0, limit);
  }

  *#keys(tx: Tx, sql: string, jobs: readonly ExpiredJob[]): Script<Set<JobKey>> {
    const rows = yield* tx.all<{ key: JobKey }>(sql, { jobs: JSON.stringify(jobs.map(toRow)) });
    return new Set(rows.map(({ key }) => key));
  }
}

function statements(dialect: Dialect, { isEarly, skipLocked }: RetentionDatabase) {
  const { table, each, rows } = dialect;
  const columns = { lane: "bigint", state: "text", finished_at: "bigint", job: "bigint" } as const;
  // `coalesce` hides the state from PostgreSQL's planner, which might walk all jobs of that state.
  const still = `
    select job.key from ${rows(":jobs", columns)} as over
    join ${table("jobs")} as job on job.key = over.job and coalesce(job.state, '') = over.state and job.finished_at = over.finished_at`;
  return {
    add: each(columns, ({ inserted }) => {
      return `insert into ${table("expiring")} (lane, state, finished_at, job) ${inserted} on conflict do nothing`;
    }),
    forget: each(columns, ({ using, value }) => {
      const isSame = Object.keys(columns).map((name) => `one.${name} = ${value(name)}`);
      return `delete from ${table("expiring")} as one ${using} where ${isSame.join(" and ")}`;
    }),
    queues: `select name, keep, backfill, ${isEarly} as "isEarly", :now as now from ${table("queues")} where keep is not null`,
    tally: `select lane, state, n from ${table("tally")}`,
    lanes: `select id, queue from ${table("lanes")}`,
    hold: `${still} order by job.key${skipLocked}`,
    still,
    upTo: `
      select max(key) as "to" from (
        select key from ${table("jobs")} where key > :from order by key limit ${BACKFILL_ROWS}) as chunk`,
    ended: `
      select key as job, lane, state, finished_at as "finishedAt" from ${table("jobs")}
      where key > :from and key <= :to and finished_at is not null
        and lane in (select id from ${table("lanes")} where queue = :name)`,
    continue: `update ${table("queues")} set backfill = :to where name = :name`,
  };
}

function isUnlisted<Queue extends LimitedRetention>(queue: Queue): queue is Queue & { backfill: number } {
  return queue.backfill !== null;
}

function toRow({ lane, state, finishedAt, job }: ExpiredJob) {
  return { lane, state, finished_at: finishedAt, job };
}

function byEnd(a: ExpiredJob, b: ExpiredJob): number {
  return a.finishedAt - b.finishedAt || a.job - b.job;
}
