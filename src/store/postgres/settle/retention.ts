import type { QueueSettings } from "../../../core/jobs/claiming.ts";
import type { FinishedState } from "../../../core/jobs/job.ts";
import { BACKFILL_ROWS, findExcess, longerList, type ExpiredJob } from "../../../core/jobs/retention.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { listOf, lists, type Rows } from "../connection/driver.ts";
import { MUTEX, tryLockMutex } from "../transactions/mutexes.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { FinishedJob } from "./settle-effects.ts";
import type { JobParts } from "../store-parts.ts";

interface LimitedRetention {
  name: string;
  keep: QueueSettings["keep"];
  backfill: number | null;
  waits: boolean;
}

interface Outstanding {
  due: boolean;
  /** Something will be due when other transactions have committed. */
  soon: boolean;
  unlisted: string[];
}

type RetentionParts = Pick<JobParts, "catalog" | "settings" | "tally">;

/**
 * Finished jobs of queues with `keep`, in the order in which they ended. A job that an operator has retried may still be
 * listed; it is checked before it is removed.
 */
export class Retention {
  readonly #parts: RetentionParts;
  readonly #sql: Record<
    "add" | "alone" | "queues" | "oldest" | "hold" | "still" | "forget" | "own" | "first" | "wait" | "upTo" | "ended" | "goOn",
    string
  >;

  constructor(s: string, parts: RetentionParts) {
    this.#parts = parts;
    // `coalesce` hides the state from the planner, which might walk all jobs of that state.
    const listed = `
      from unnest($1::bigint[], $2::text[], $3::bigint[]) as over (key, state, finished_at)
      join ${s}.jobs as job on job.key = over.key and coalesce(job.state, '') = over.state and job.finished_at = over.finished_at`;
    this.#sql = {
      add: `
        insert into ${s}.expiring (lane, state, finished_at, job)
        select * from unnest($1::integer[], $2::text[], $3::bigint[], $4::bigint[]) as ended (lane, state, finished_at, job)
        on conflict do nothing`,
      alone: tryLockMutex(s, MUTEX.retention),
      queues: `
        select ${s}.clock($1), name, keep, backfill,
          coalesce(pg_snapshot_xmin(pg_current_snapshot())::text::bigint < -backfill, false)
        from ${s}.queues where keep is not null`,
      oldest: `
        select ask.turn, one.lane, ask.state, one.finished_at, one.job
        from unnest($1::integer[], $2::integer[], $3::text[], $4::bigint[], $5::integer[]) as ask (turn, lane, state, before, most)
        cross join lateral (
          select lane, finished_at, job from ${s}.expiring
          where lane = ask.lane and state = ask.state and finished_at < ask.before
          order by finished_at, job limit ask.most) as one
        order by ask.turn, one.finished_at, one.job`,
      hold: `select job.key ${listed} order by job.key for update of job skip locked`,
      still: `select job.key ${listed}`,
      forget: `
        delete from ${s}.expiring as one
        using unnest($1::integer[], $2::text[], $3::bigint[], $4::bigint[]) as over (lane, state, finished_at, job)
        where one.lane = over.lane and one.state = over.state and one.finished_at = over.finished_at and one.job = over.job`,
      own: "select pg_current_xact_id()::text::bigint",
      first: "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
      wait: `update ${s}.queues set backfill = -$2::bigint where name = $1`,
      upTo: `select max(key) from (select key from ${s}.jobs where key > $1 order by key limit ${BACKFILL_ROWS}) as chunk`,
      ended: `
        select key, lane, state, finished_at from ${s}.jobs
        where key > $1 and key <= $2 and finished_at is not null and lane = any($3::integer[])`,
      goOn: `update ${s}.queues set backfill = $2 where name = $1`,
    };
  }

  async add(tx: Tx, ended: readonly FinishedJob[], finishedAt: number): Promise<void> {
    const over = ended.map((one) => ({ ...one, finishedAt }));
    await this.#list(tx, over);
  }

  async outstanding(rows: Rows, at: number | null, leastAge: number): Promise<Outstanding> {
    const { queues, now } = await this.#readQueues(rows, at);
    const unlisted = unlistedIn(queues);
    const due = unlisted.some(({ waits }) => !waits) || (await this.#due(rows, queues, now, leastAge, 1)).length > 0;
    return { due, soon: unlisted.length > 0, unlisted: unlisted.map(({ name }) => name) };
  }

  async alone(tx: Tx): Promise<boolean> {
    return (await tx.rows(this.#sql.alone)).length > 0;
  }

  async take(tx: Tx, limit: number, leastAge: number): Promise<{ taken: number; over: ExpiredJob[] }> {
    const { queues, now } = await this.#readQueues(tx.rows, tx.at);
    const due = await this.#due(tx.rows, queues, now, leastAge, limit);
    if (due.length === 0) return { taken: 0, over: [] };
    const held = new Set(await this.#keys(tx, this.#sql.hold, due));
    // Another transaction has locked the job, e.g. to let another job wait for it: it is removed in the next step.
    const busy = new Set(await this.#keys(tx, this.#sql.still, due));
    // A job that was retried is listed again when it ends.
    const taken = due.filter(({ job }) => held.has(job) || !busy.has(job));
    await tx.rows(this.#sql.forget, ...lists(taken, "lane", "state", "finishedAt", "job"));
    tx.wrote();
    return { taken: taken.length, over: due.filter(({ job }) => held.has(job)) };
  }

  /**
   * Lists jobs that ended before `keep` was declared; true while there are more. A settle that did not know of `keep` may not
   * have committed yet, so this begins when every transaction has ended that began before it. The queues in `unlisted` were
   * seen before this transaction began.
   */
  async backfill(tx: Tx, unlisted: readonly string[]): Promise<boolean> {
    const { queues } = await this.#readQueues(tx.rows, tx.at);
    const rest = unlistedIn(queues);
    const queue = rest.find(({ waits }) => !waits);
    if (queue === undefined) return rest.length > 0;
    const { name, backfill: from } = queue;
    if (from === 0 && !unlisted.includes(name)) return true;
    if (from === 0 && !(await this.#isFirst(tx, name))) return true;
    return this.#listFrom(tx, name, Math.max(0, from));
  }

  async #isFirst(tx: Tx, name: string): Promise<boolean> {
    const own = await this.#number(tx, this.#sql.own);
    if ((await this.#number(tx, this.#sql.first)) >= own) return true;
    await tx.rows(this.#sql.wait, name, own);
    tx.wrote();
    return false;
  }

  async #listFrom(tx: Tx, name: string, from: number): Promise<boolean> {
    const [[to]] = (await tx.rows<[number | null]>(this.#sql.upTo, from)) as [[number | null]];
    if (to !== null) {
      await this.#parts.settings.at(tx);
      await this.#parts.catalog.reload(tx.rows);
      const lanes = [...this.#parts.catalog.lanes()].filter(({ queue }) => queue === name);
      const ids = listOf(lanes.map(({ id }) => id));
      const ended = await tx.rows<[JobKey, number, FinishedState, number]>(this.#sql.ended, from, to, ids);
      const over = ended.map(([job, lane, state, finishedAt]) => ({ job, lane, state, finishedAt }));
      await this.#list(tx, over);
    }
    await tx.rows(this.#sql.goOn, name, to);
    tx.wrote();
    return true;
  }

  async #list(tx: Tx, ended: readonly ExpiredJob[]): Promise<void> {
    const listed = ended.filter(
      ({ lane, state }) => this.#parts.settings.view.keep(this.#parts.catalog.lane(lane).queue, state) !== undefined,
    );
    if (listed.length > 0) await tx.rows(this.#sql.add, ...lists(listed, "lane", "state", "finishedAt", "job"));
  }

  async #readQueues(rows: Rows, at: number | null): Promise<{ queues: LimitedRetention[]; now: number }> {
    const found = await rows<[number, string, string, number | null, boolean]>(this.#sql.queues, at);
    const queues = found.map(([, name, keep, backfill, waits]) => {
      return { name, keep: JSON.parse(keep) as QueueSettings["keep"], backfill, waits };
    });
    return { queues, now: found[0]?.[0] ?? 0 };
  }

  async #due(
    rows: Rows,
    queues: readonly LimitedRetention[],
    now: number,
    leastAge: number,
    limit: number,
  ): Promise<ExpiredJob[]> {
    if (queues.length === 0) return [];
    const [finished] = await Promise.all([this.#parts.tally.all(rows), this.#parts.catalog.reload(rows)]);
    const set = new Map(queues.map((queue) => [queue.name, queue]));
    const kept = {
      set,
      lanes: this.#parts.catalog.lanes(),
      finished,
      unlisted: new Set(unlistedIn(queues).map(({ name }) => name)),
    };
    const found = findExcess(kept, now, leastAge);
    const asks = found.flatMap(({ lanes, state, count, countBefore, ageBefore }, i) => [
      ...(count === 0
        ? []
        : lanes.map((lane) => ({ turn: 2 * i, lane, state, before: countBefore, most: Math.min(count, limit) }))),
      ...(ageBefore === null ? [] : lanes.map((lane) => ({ turn: 2 * i + 1, lane, state, before: ageBefore, most: limit }))),
    ]);
    if (asks.length === 0) return [];
    const oldest = await rows<[number, number, FinishedState, number, JobKey]>(
      this.#sql.oldest,
      ...lists(asks, "turn", "lane", "state", "before", "most"),
    );
    const byTurn = Map.groupBy(oldest, ([turn]) => turn);
    const over = (turn: number, most: number): ExpiredJob[] =>
      (byTurn.get(turn) ?? []).slice(0, most).map(([, lane, state, finishedAt, job]) => ({ job, lane, state, finishedAt }));
    return found.flatMap(({ count }, i) => longerList(over(2 * i, count), over(2 * i + 1, limit))).slice(0, limit);
  }

  async #keys(tx: Tx, sql: string, over: readonly ExpiredJob[]): Promise<JobKey[]> {
    const rows = await tx.rows<[JobKey]>(sql, ...lists(over, "job", "state", "finishedAt"));
    return rows.map(([key]) => key);
  }

  async #number(tx: Tx, sql: string): Promise<number> {
    return ((await tx.rows<[number]>(sql)) as [[number]])[0][0];
  }
}

function unlistedIn(queues: readonly LimitedRetention[]): (LimitedRetention & { backfill: number })[] {
  return queues.filter((queue): queue is LimitedRetention & { backfill: number } => queue.backfill !== null);
}
