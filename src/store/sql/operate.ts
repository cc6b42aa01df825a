import { FINISHED_STATES, type FinishedState, type JobState, mayMove } from "../../core/jobs/job.ts";
import { needsAnotherStep } from "../../core/jobs/retention.ts";
import type { LimitedJob } from "../../core/limits/limit-gate.ts";
import { isPipelineQueue } from "../../core/pipelines/work.ts";
import { auditedJob, subjectOf } from "../../core/recovery/audit.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { jobsRemoved } from "../job-row.ts";
import type { Expired, Pruned, PruneFilter } from "../store.ts";
import { type Attempts, type EndedAttempt, type HeldAttempt, heldAttempt } from "./attempts.ts";
import type { Audit } from "./audit.ts";
import type { DependentsDatabase } from "./dependents.ts";
import { idParams, keyOf } from "./queries.ts";
import type { FinishedJob, Retention } from "./retention.ts";
import { type Access, type Answer, type Dialect, type Script, together, type Tx, wait } from "./script.ts";
import type { WorkBatches } from "./work/work-batches.ts";

/** What each database does in its own way when a job is cancelled. SQLite has one writer at a time and needs no locks. */
export interface CancelDatabase extends DependentsDatabase {
  readonly cancel: string;
  lockClaims?(tx: Tx, fences: readonly Fence[]): Answer<void>;
  prepare(tx: Tx): Answer<unknown>;
  attemptsKept(queue: string): number;
  withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): Answer<void>;
  free(tx: Tx, jobs: readonly LimitedJob[]): Answer<unknown>;
  /** Counts, lists and tells dependents what ended. */
  follow(tx: Tx, now: number, ended: readonly FinishedJob[]): Answer<void>;
}

export interface OperateDatabase extends CancelDatabase {
  /** SQL condition on the state, in words for which there is an index. */
  isIn(state: FinishedState): string;
  readonly holderOf: string;
  /** Statements that remove what belongs to the jobs `:jobs`, before their rows. */
  readonly removals: readonly string[];
  lockQueue?(tx: Tx, queue: string): Answer<unknown>;
  subtract(tx: Tx, gone: readonly FinishedJob[]): Answer<void>;
  /** Lets one process at a time remove expired jobs, because two would both count the same ones as too many. */
  lockRetention?(tx: Tx): Answer<boolean>;
}

interface Row {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
  gate: string | null;
  priority: number;
  limits: string | null;
}

interface OperateParts {
  cancel: Cancel;
  retention: Retention;
  audit: Audit;
  batches: WorkBatches;
  database: OperateDatabase;
}

/** How long to wait for other transactions, which must commit before older jobs are listed, and do not notify. */
const BACKFILL_WAIT_MS = 250;

export class Operate {
  readonly #parts: OperateParts;
  readonly #access: Access;
  readonly #sql: ReturnType<typeof operateSql>;

  constructor(dialect: Dialect, parts: OperateParts, access: Access) {
    this.#parts = parts;
    this.#access = access;
    this.#sql = operateSql(dialect, parts.database);
  }

  cancel(id: string): Promise<boolean> {
    return this.#access.write("cancel", (tx) => this.#cancel(tx, id));
  }

  *#cancel(tx: Tx, id: string): Script<boolean> {
    const row = yield* this.#lock(tx, id);
    if (row === undefined || !mayMove("cancel", row.state)) return false;
    const { key: job, lane, state } = row;
    yield* this.#parts.cancel.end(tx, [row], true);
    yield* this.#parts.batches.cancelled(tx, yield* tx.time(), [{ job, lane, was: state }]);
    yield* this.#record(tx, "job.cancelled", id, row, "cancelled");
    return true;
  }

  retry(id: string): Promise<boolean | "key-taken"> {
    return this.#access.write("retry", (tx) => this.#retry(tx, id));
  }

  *#retry(tx: Tx, id: string): Script<boolean | "key-taken"> {
    const { database } = this.#parts;
    const row = yield* this.#lock(tx, id);
    if (row === undefined || !mayMove("retry", row.state)) return false;
    const { key, lane, priority, limits, slot } = row;
    const { queue } = database.lane(lane);
    // The job of an ended work item cannot be retried, because the next build does the work again.
    if (isPipelineQueue(queue)) return false;
    if (slot !== null && (yield* tx.get(database.holderOf, { slot })) !== undefined) return "key-taken";
    yield* wait(database.prepare(tx));
    const [gate = null] = limits === null ? [] : yield* wait(database.admit(tx, [{ key, lane, priority, limits }]));
    // The list of jobs to be removed must name finished jobs only.
    yield* tx.run(this.#sql.unlist, { jobs: [key] });
    yield* tx.run(this.#sql.retry, { key, gate });
    yield* wait(database.recordEvents(tx, "job.retried", [{ job: key, lane }], true));
    yield* wait(database.subtract(tx, [{ job: key, lane, state: row.state as FinishedState }]));
    yield* this.#record(tx, "job.retried", id, row, "pending");
    tx.ready(queue);
    return true;
  }

  prune(filter: PruneFilter | Expired): Promise<Pruned> {
    return "expired" in filter ? this.#pruneExpired(filter) : this.#access.write("prune", (tx) => this.#prune(tx, filter));
  }

  async #pruneExpired(filter: Expired): Promise<Pruned> {
    const { due, soon, unlisted } = await this.#access.read((db) => this.#parts.retention.outstanding(db, filter.expired.minAge));
    if (due) return this.#access.write("expire", (tx) => this.#expire(tx, filter, unlisted));
    // Wait in real time, whatever clock is injected.
    if (soon) await new Promise((resolve) => setTimeout(resolve, BACKFILL_WAIT_MS));
    return { removed: 0, more: soon };
  }

  *#prune(tx: Tx, filter: PruneFilter): Script<Pruned> {
    const { state, queue = null, ids, finishedBefore: before = null, limit } = filter;
    if (!FINISHED_STATES.includes(state)) return { removed: 0, more: false };
    const { all, chosen } = this.#sql.prunable[state];
    const params = { queue, before, limit };
    const jobs =
      ids === undefined
        ? yield* tx.all<FinishedJob>(all, params)
        : yield* tx.all<FinishedJob>(chosen, { ...params, ids: JSON.stringify(ids.map(idParams)) });
    yield* this.#remove(tx, jobs);
    if (jobs.length > 0) yield* this.#parts.audit.record(tx, ...jobsRemoved(jobs.length, filter));
    return { removed: jobs.length, more: jobs.length === limit };
  }

  *#expire(tx: Tx, { expired, limit }: Expired, unlisted: readonly string[]): Script<Pruned> {
    const { retention, database } = this.#parts;
    if (!(yield* wait(database.lockRetention?.(tx) ?? true))) return { removed: 0, more: false };
    const listing = yield* retention.backfill(tx, unlisted);
    const { taken, over } = yield* retention.take(tx, limit, expired.minAge);
    yield* this.#remove(tx, over);
    return { removed: over.length, more: needsAnotherStep({ listing, taken, removed: over.length, limit }) };
  }

  *#remove(tx: Tx, jobs: readonly FinishedJob[]): Script<void> {
    if (jobs.length === 0) return;
    const { before, last } = this.#sql.remove;
    const params = { jobs: jobs.map(({ job }) => job) };
    for (const statement of before) yield* tx.run(statement, params);
    yield* tx.run(last, params);
    yield* wait(this.#parts.database.subtract(tx, jobs));
  }

  *#record(tx: Tx, action: string, id: string, { lane, state }: Row, after: JobState): Script<void> {
    const of = this.#parts.database.lane(lane);
    const [was, is] = [auditedJob(of, state), auditedJob(of, after)];
    yield* this.#parts.audit.add(tx, { action, subject: subjectOf(action, id), before: was, after: is });
  }

  /** Locks the queue before the rows of its jobs, as every transaction does, or two would deadlock. */
  *#lock(tx: Tx, id: string): Script<Row | undefined> {
    const { cancel, database } = this.#parts;
    const found = yield* tx.get<Pick<Row, "key" | "lane" | "limits">>(this.#sql.find, idParams(id));
    if (found === undefined) return undefined;
    yield* wait(database.knowLanes?.(tx, [found.lane]));
    const { queue } = database.lane(found.lane);
    if (found.limits !== null || isPipelineQueue(queue)) yield* wait(database.lockQueue?.(tx, queue));
    return (yield* cancel.lock(tx, [found.key]))[0];
  }
}

function operateSql(dialect: Dialect, { isIn, removals }: OperateDatabase) {
  const { table } = dialect;
  const these = (column: string) => dialect.in(column, "bigint", ":jobs");
  const ids = { id: "text", key: "bigint", createdAt: "bigint" } as const;
  const unlist = `
    delete from ${table("expiring")} where (lane, state, finished_at, job) in (
      select lane, state, finished_at, key from ${table("jobs")} where ${these("key")})`;
  const prunable = (state: FinishedState) => {
    const of = (which: string) => `
      select key as job, lane, state from ${table("jobs")}
      where ${isIn(state)} ${which}
        and (cast(:before as bigint) is null or finished_at < cast(:before as bigint))
        and (cast(:queue as text) is null or lane in (select id from ${table("lanes")} where queue = :queue))
      order by key limit :limit${dialect.locking}`;
    return {
      all: of(""),
      chosen: of(
        `and key in (select ${keyOf(dialect, "one.id", "one.key", `one."createdAt"`)} from ${dialect.rows(":ids", ids)} as one)`,
      ),
    };
  };
  return {
    find: `select key, lane, limits from ${table("jobs")} where key = ${keyOf(dialect)}`,
    retry: `
      update ${table("jobs")} set state = 'pending', gate = :gate, errors = 0, crashes = 0, run_at = :now, finished_at = null
      where key = :key`,
    prunable: Object.fromEntries(FINISHED_STATES.map((state) => [state, prunable(state)])) as Record<
      FinishedState,
      ReturnType<typeof prunable>
    >,
    // Ids that callers chose are kept for ever, with the state in which the job ended, for jobs that come after it.
    unlist,
    remove: dialect.inOrder(
      `update ${table("ids")} as one set ended = job.state from ${table("jobs")} as job
       where ${these("job.key")} and one.id = job.id and one.chosen and one.ended is null`,
      `delete from ${table("ids")} where ${dialect.isFalse("chosen")} and id in (select id from ${table("jobs")} where ${these("key")})`,
      ...removals,
      unlist,
      `delete from ${table("notes")} where ${these("job")}`,
      `delete from ${table("logs")} where ${these("job")}`,
      `delete from ${table("attempts")} where ${these("job")}`,
      `delete from ${table("jobs")} where ${these("key")}`,
    ),
  };
}

/** Cancels jobs that have not ended. The caller holds the locks of queues with limits or work items. */
export class Cancel {
  readonly #database: CancelDatabase;
  readonly #attempts: Attempts;
  readonly #sql: Record<"lock" | "held" | "forgetWaits", string>;

  constructor(dialect: Dialect, parts: { attempts: Attempts; database: CancelDatabase }) {
    this.#database = parts.database;
    this.#attempts = parts.attempts;
    const { table, locking } = dialect;
    const held = heldAttempt(dialect);
    this.#sql = {
      lock: `
        select key, state, lane, fence, slot, gate, priority, limits from ${table("jobs")}
        where ${dialect.in("key", "bigint", ":jobs")} order by key${locking}`,
      held: `select job.key, ${held.columns} from ${held.from} where ${dialect.in("job.key", "bigint", ":jobs")}`,
      forgetWaits: `delete from ${table("waits")} where ${dialect.in("job", "bigint", ":jobs")}`,
    };
  }

  *lock(tx: Tx, jobs: readonly JobKey[]): Script<Row[]> {
    if (jobs.length === 0) return [];
    const rows = yield* tx.all<Row>(this.#sql.lock, { jobs });
    const lanes = rows.map(({ lane }) => lane);
    yield* wait(this.#database.knowLanes?.(tx, lanes));
    return rows;
  }

  /** Cancels work items without an audit entry. Returns those that had not ended, with their states before. */
  *quietly(tx: Tx, jobs: readonly JobKey[]): Script<Map<JobKey, JobState>> {
    const open = (yield* this.lock(tx, jobs)).filter(({ state }) => mayMove("cancel", state));
    if (open.length > 0) yield* this.end(tx, open, false);
    return new Map(open.map(({ key, state }) => [key, state]));
  }

  *end(tx: Tx, jobs: readonly Row[], isAlwaysRecorded: boolean): Script<void> {
    const database = this.#database;
    const running = jobs.filter(({ state }) => state === "running");
    if (running.length > 0)
      yield* wait(
        database.lockClaims?.(
          tx,
          running.map(({ fence }) => fence),
        ),
      );
    yield* wait(database.prepare(tx));
    const now = yield* tx.time();
    const ended = jobs.map(({ key: job, lane }) => ({ job, lane, state: "cancelled" }) as const);
    const attempts = yield* this.#attemptsOf(tx, running);
    yield* together(this.#attempts.record(tx, now, attempts), this.#cancel(tx, now, ended));
    yield* wait(database.recordEvents(tx, "job.cancelled", ended, isAlwaysRecorded));
    const waiting = jobs.filter(({ state }) => state === "waiting").map(({ key }) => key);
    if (waiting.length > 0) yield* tx.run(this.#sql.forgetWaits, { jobs: waiting });
    const limited = jobs.filter(isLimited);
    yield* wait(
      database.withdraw(
        tx,
        limited.filter(({ state }) => state === "pending"),
      ),
    );
    yield* wait(
      database.free(
        tx,
        limited.filter(({ state }) => state === "running"),
      ),
    );
    yield* wait(database.follow(tx, now, ended));
    for (const { key, fence, lane } of running) {
      tx.ended(key, fence);
      // An exclusive claim may have ended, which opens its queue again.
      tx.ready(database.lane(lane).queue);
    }
  }

  /** Reads attempts after their rows are locked, because an attempt may have ended while this transaction waited. */
  *#attemptsOf(tx: Tx, running: readonly Row[]): Script<EndedAttempt[]> {
    if (running.length === 0) return [];
    const database = this.#database;
    const held = yield* tx.all<HeldAttempt & { key: JobKey }>(this.#sql.held, { jobs: running.map(({ key }) => key) });
    const queues = new Map(running.map(({ key, lane }) => [key, database.lane(lane).queue]));
    return held.map((one) => {
      const keep = database.attemptsKept(queues.get(one.key) as string);
      return { job: one.key, held: one, keep, outcome: "cancelled", error: null };
    });
  }

  *#cancel(tx: Tx, at: number, jobs: readonly FinishedJob[]): Script<void> {
    yield* tx.returning(this.#database.cancel, { at, jobs: jobs.map(({ job }) => job) });
  }
}

function isLimited(row: Row): row is Row & { limits: string } {
  return row.limits !== null;
}
