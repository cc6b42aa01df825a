import {
  Admission,
  type RejectedJob,
  findRejected,
  rejectAll,
  replacedJob,
  type JobLookup,
  type InitialState,
  type Upstream,
} from "../../../core/jobs/admission.ts";
import type { JobState } from "../../../core/jobs/job.ts";
import { limitsText } from "../../../core/limits/limit-gate.ts";
import { type JobKey, parseGeneratedId } from "../../../core/text/ids.ts";
import { ELSEWHERE, type HeadRow, isLarge, metaOf, publicId, slotBehind, slotOf, slotOfJob, toClaimed } from "../../job-row.ts";
import { Dependents } from "../../sql/dependents.ts";
import { Retention } from "../../sql/retention.ts";
import { runSync } from "../../sql/script.ts";
import type { WorkBatch } from "../../sql/work/work-batch.ts";
import type { ArtifactCheck } from "../../sql/work/work-batch.ts";
import { WorkBatches } from "../../sql/work/work-batches.ts";
import type { Added, Claimed, Enqueued, NewJob } from "../../store.ts";
import type { NewWork } from "../../work.ts";
import { jobChecksum, rowChecksum } from "../checksum.ts";
import type { Connection, Statement, Value } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";
import { dependentsDatabase, retentionDatabase, workDatabase } from "../script-hooks.ts";
import { Catalog, Limits, Settings } from "./catalog.ts";
import { Events, JobEvents } from "./events.ts";
import { SettleEffects } from "./settle.ts";

const ROWS = 25;

/** Columns of a new job. A commit that only adds jobs stores its number only in `fence`. */
const COLUMNS = "key, gate, lane, priority, policy, fence, run_at, created_at, id, slot, input, checksum";

/** Adds jobs. It checks before it inserts, without a race, because the transaction holds the database's only write lock. */
export class Enqueue {
  readonly #parts: JobParts;
  readonly #sql;
  readonly #existing: JobLookup = {
    nameOf: (id) => this.#find(id)?.name,
    upstream: (id) => this.#upstream(id),
    holderOf: (name, key) => this.#holderOf(name, key),
  };

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#sql = {
      plain: rowInsert(db, "pending", COLUMNS),
      claimed: rowInsert(db, "running", `${COLUMNS}, attempt, holder, started_at, lease, expires_at`),
      insertWhole: db.prepare(
        `insert into holdfast_jobs (state, ${COLUMNS}, scheduled_for, limits, meta, error, finished_at)
         values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
      ),
      // Both walk an index of ready jobs: holdfast_jobs_ready, and holdfast_jobs_suspect.
      highest: db.prepare(
        `select priority from holdfast_jobs
         where lane = ? and state = 'pending' and gate is null and crashes = 0 order by priority desc limit 1`,
      ),
      anyLock: db.prepare("select 1 from holdfast_locks limit 1"),
      suspect: db.prepare(
        "select 1 from holdfast_jobs where lane = ? and state = 'pending' and gate is null and crashes > 0 limit 1",
      ),
      state: db.prepare("select state from holdfast_jobs where key = ?"),
      remembered: db.prepare("select ended from holdfast_ids where id = ? and ended is not null"),
      insertInput: db.prepare("insert into holdfast_inputs (job, body) values (?, ?)"),
      insertId: db.prepare("insert into holdfast_ids (id, job, name, chosen, checksum) values (?, ?, ?, ?, ?)"),
      byId: db.prepare("select name, job from holdfast_ids where id = ?"),
      byKey: db.prepare("select lane, key from holdfast_jobs where key = ? and created_at = ? and id is null"),
      replaced: db.prepare(
        `select key, state, lane, priority, gate, limits, created_at, id, slot, scheduled_for from holdfast_jobs
         where slot = :slot and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
      ),
      replace: db.prepare(
        `update holdfast_jobs set lane = ?, priority = ?, policy = ?, gate = ?, limits = ?, run_at = ?, input = ?, meta = ?,
           checksum = ?, errors = 0, crashes = 0, error = null
         where key = ?`,
      ),
      dropInput: db.prepare("delete from holdfast_inputs where job = ?"),
      dropNotes: db.prepare("delete from holdfast_notes where job = ?"),
      bySlot: db.prepare(
        `select key, created_at, id from holdfast_jobs
         where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
      ),
    };
  }

  run(tx: Tx, jobs: readonly NewJob[], batch?: WorkBatch): Added[] {
    const answers: Added[] = [];
    const hasWork = jobs.some(({ work }) => work !== undefined);
    const existing = hasWork ? runSync(this.#parts.batches.existing(tx, jobs, batch)) : null;
    const items: NewItem[] = [];
    const events: { key: JobKey; id: string; lane: number; broken: boolean }[] = [];
    let admission: Admission | undefined;
    const plain = new RowWriter(this.#sql.plain);
    const claimed = new RowWriter(this.#sql.claimed);
    const above = new Map<string, number>();
    const firstAbove = (queue: string): number => {
      if (!above.has(queue)) above.set(queue, this.#firstAbove(tx, queue, batch));
      return above.get(queue) as number;
    };
    this.#parts.settings.at(tx.settings);
    for (const given of jobs) {
      let job = given;
      if (job.replaces) {
        plain.flush();
        const replaced = this.#replace(tx, job);
        if (typeof replaced === "string") {
          answers.push({ id: replaced, duplicate: true });
          continue;
        }
        job = replaced;
      }
      // A job that this one refers to may be in this very batch.
      if (job.key !== undefined || job.after !== undefined) plain.flush();
      const isNamed = job.id !== undefined || job.key !== undefined || job.after !== undefined;
      const refused = (isNamed ? (admission ??= new Admission(this.#existing)).reject(job) : undefined) ?? existing?.of(job);
      if (refused !== undefined) {
        answers.push(refused);
        continue;
      }
      const key = tx.nextKey();
      const id = job.id ?? job.followUpId ?? null;
      const runAt = job.runAt ?? tx.now + job.delay;
      const large = isLarge(job.input);
      const lane = this.#parts.catalog.laneFor(tx, job);
      const policy = this.#parts.catalog.policyFor(tx, job.policy);
      const limits = this.#limitsOf(tx, job);
      const slot = slotOfJob(job);
      const input = large ? ELSEWHERE : job.input;
      const gate = runAt > tx.now ? "time" : null;
      const { priority, scheduledFor = null } = job;
      const meta = job.tags === undefined && job.trace === undefined ? null : metaOf(job);
      const checked = { key, lane, priority, policy, created_at: tx.now, id, slot, scheduled_for: scheduledFor, limits, meta };
      const checksum = jobChecksum({ ...checked, input: job.input });
      let broken = false;
      let claim: Claimed | undefined;
      if (
        limits === null &&
        meta === null &&
        job.behind === undefined &&
        job.after === undefined &&
        job.scheduledFor === undefined
      ) {
        const row = [key, gate, lane, priority, policy, tx.commit, runAt, tx.now, id, slot, input, checksum] as const;
        if (job.claim === undefined || gate !== null || priority <= firstAbove(job.queue)) plain.add(...row);
        else {
          const { holder, lease } = job.claim;
          claimed.add(...row, 1, holder, tx.now, lease, tx.now + lease);
          const head: HeadRow = [key, priority, policy, 0, tx.now, id, input, null, null, slot, null, checksum, runAt];
          claim = toClaimed(head, { lane: this.#parts.catalog.lane(lane), lease }, job.input, job.policy, tx.commit, tx.now);
        }
      } else {
        const initial = (admission ??= new Admission(this.#existing)).initialState(job);
        broken = initial.state === "cancelled";
        const [admitted, error, endedAt] = this.#admit(tx, { key, lane, priority, limits }, gate, initial);
        const values = [key, admitted, lane, priority, policy, tx.commit, runAt, tx.now, id, slot, input, checksum];
        this.#sql.insertWhole.run(initial.state, ...values, scheduledFor, limits, meta, error, endedAt);
      }
      if (large) this.#sql.insertInput.run(key, job.input);
      if (id !== null) this.#named(id, key, job);
      if (job.work !== undefined) items.push({ job: key, lane, work: job.work, isCancelled: broken });
      if (this.#parts.settings.view.recordsEvents(job.queue)) events.push({ key, id: publicId(id, tx.now, key), lane, broken });
      if (claim === undefined) tx.ready(job.queue);
      const answer = { id: publicId(id, tx.now, key), duplicate: false, ...(claim && { claimed: claim }) };
      existing?.add(job, answer.id);
      answers.push(answer);
    }
    plain.flush();
    claimed.flush();
    for (const { broken, lane, ...job } of events) {
      this.#parts.jobEvents.addNew(tx, job, lane);
      if (broken) this.#parts.jobEvents.add(tx, "job.cancelled", job.key);
    }
    if (items.length > 0) this.#addItems(tx, items, batch);
    this.#parts.effects.write(tx);
    if (answers.some((answer) => "duplicate" in answer && !answer.duplicate)) tx.wrote();
    return answers;
  }

  /** Returns the priority above which a job of the queue comes before its ready jobs. Infinity: the queue holds its jobs back. */
  #firstAbove(tx: Tx, queue: string, batch: WorkBatch | undefined): number {
    const { settings, catalog } = this.#parts;
    if (settings.view.isPaused(queue) || settings.view.recordsEvents(queue) || batch?.totals.hasFailed) return Infinity;
    if (this.#sql.anyLock.row() !== undefined) return Infinity;
    let highest = -Infinity;
    for (const { id } of catalog.lanesOf(queue, tx.lanes)) {
      if (this.#sql.suspect.row(id) !== undefined) return Infinity;
      highest = Math.max(highest, (this.#sql.highest.row(id)?.[0] ?? highest) as number);
    }
    return highest;
  }

  /** Returns the id of the job that now has the new input, or the job to add. */
  #replace(tx: Tx, job: NewJob): string | NewJob {
    const slot = slotOf(job.name, job.key as string);
    const holder = this.#sql.replaced.get<Replaced>({ slot });
    const row = replacedJob(holder, this.#sql.replaced.get<Replaced>({ slot: slotBehind(slot) }));
    if (row === undefined && holder === undefined) return job;
    if (row === undefined) {
      const { key, created_at, id } = holder as Replaced;
      return { ...job, behind: { id: publicId(id, created_at, key), job: key } };
    }
    const { key, created_at, id, scheduled_for } = row;
    if (row.limits !== null && row.state === "pending") {
      this.#parts.limits.withdraw(tx, [{ ...row, limits: row.limits }]);
      this.#parts.limits.write(tx);
    }
    const { priority, input } = job;
    const lane = this.#parts.catalog.laneFor(tx, job);
    const policy = this.#parts.catalog.policyFor(tx, job.policy);
    const limits = this.#limitsOf(tx, job);
    const meta = metaOf(job);
    const runAt = job.runAt ?? tx.now + job.delay;
    let gate: string | null = null;
    if (row.state === "pending" && runAt > tx.now) gate = "time";
    else if (row.state === "pending" && limits !== null) gate = this.#parts.limits.admit(tx, { key, lane, priority, limits });
    const checksum = jobChecksum({
      key,
      lane,
      priority,
      policy,
      created_at,
      id,
      slot: row.slot,
      input,
      scheduled_for,
      limits,
      meta,
    });
    const large = isLarge(input);
    this.#sql.replace.run(lane, priority, policy, gate, limits, runAt, large ? ELSEWHERE : input, meta, checksum, key);
    this.#sql.dropInput.run(key);
    if (large) this.#sql.insertInput.run(key, input);
    // The checkpoint belongs to the former input.
    this.#sql.dropNotes.run(key);
    tx.ready(job.queue);
    tx.wrote();
    return publicId(id, created_at, key);
  }

  refused(jobs: readonly NewJob[]): RejectedJob | undefined {
    return findRejected(jobs, this.#existing);
  }

  /** Returns the gate of a new job that is not plain, and for a job that is cancelled with its upstream, error and end. */
  #admit(
    tx: Tx,
    job: { key: JobKey; lane: number; priority: number; limits: string | null },
    gate: string | null,
    initial: InitialState,
  ): [gate: string | null, error: string | null, endedAt: number | null] {
    const { key, lane, limits } = job;
    if (initial.state === "cancelled") {
      this.#parts.effects.add(key, lane, "cancelled");
      return [null, JSON.stringify(initial.error), tx.now];
    }
    if (initial.state === "waiting") {
      const waits = initial.for.map(({ job: upstream }) => ({ job: key, upstream }));
      runSync(this.#parts.dependents.add(tx, waits));
      return [null, null, null];
    }
    if (gate === null && limits !== null) return [this.#parts.limits.admit(tx, { ...job, limits }), null, null];
    return [gate, null, null];
  }

  #named(id: string, key: JobKey, job: NewJob): void {
    const chosen = job.id === undefined ? 0 : 1;
    this.#sql.insertId.run(id, key, job.name, chosen, rowChecksum("holdfast_ids", { id, job: key, name: job.name, chosen }));
  }

  #addItems(tx: Tx, items: readonly NewItem[], given: WorkBatch | undefined): void {
    const builds = [...new Set(items.flatMap(({ work }) => work.build ?? []))];
    const batch = given ?? runSync(this.#parts.batches.adding(tx, builds));
    for (const { job, work } of items) batch.add(job, work);
    runSync(given === undefined ? this.#parts.batches.close(tx, batch) : this.#parts.batches.write(tx, batch));
    const cancelled = items.filter(({ isCancelled }) => isCancelled);
    const ended = cancelled.map(({ job, lane }) => ({ job, lane, was: "waiting" }) as const);
    runSync(this.#parts.batches.cancelled(tx, tx.now, ended));
  }

  #limitsOf(tx: Tx, job: NewJob): string | null {
    const own = job.declares === undefined ? undefined : this.#parts.settings.declare(tx, job.declares);
    const rules = this.#parts.settings.view.rulesFor(job.queue, own);
    return rules.length === 0 ? null : limitsText(rules, job.limitKeys ?? []);
  }

  #holderOf(name: string, key: string): string | undefined {
    const row = this.#sql.bySlot.row(slotOf(name, key)) as [JobKey, number, string | null] | undefined;
    return row && publicId(row[2], row[1], row[0]);
  }

  #upstream(id: string): Upstream | undefined {
    const found = this.#find(id);
    // A pruned job's state is stored with the id that its caller chose.
    const row = (found === undefined ? undefined : this.#sql.state.row(found.key)) ?? this.#sql.remembered.row(id);
    const state = (row?.[0] ?? null) as JobState | null;
    return found === undefined || state === null ? undefined : { id, job: found.key, state };
  }

  #find(id: string): { name: string; key: JobKey } | undefined {
    const chosen = this.#sql.byId.row(id) as [string, JobKey] | undefined;
    if (chosen !== undefined) return { name: chosen[0], key: chosen[1] };
    const generated = parseGeneratedId(id);
    const row = generated && (this.#sql.byKey.row(generated.key, generated.createdAt) as [number, JobKey] | undefined);
    return row ? { name: this.#parts.catalog.lane(row[0]).name, key: row[1] } : undefined;
  }
}

interface RowInsert {
  columns: number;
  one: Statement;
  many: Statement;
}

function rowInsert(db: Connection, state: JobState, columns: string): RowInsert {
  const count = columns.split(",").length;
  const row = `('${state}', ${Array(count).fill("?").join(", ")})`;
  const insert = (rows: number) =>
    db.prepare(`insert into holdfast_jobs (state, ${columns}) values ${Array(rows).fill(row).join(", ")}`);
  return { columns: count, one: insert(1), many: insert(ROWS) };
}

/** Inserts rows in groups: a statement with many rows is half again as fast as one for each. */
class RowWriter {
  readonly #insert: RowInsert;
  #values: Value[] = [];

  constructor(insert: RowInsert) {
    this.#insert = insert;
  }

  add(...row: readonly Value[]): void {
    this.#values.push(...row);
    if (this.#values.length === ROWS * this.#insert.columns) this.flush();
  }

  flush(): void {
    const { columns, one, many } = this.#insert;
    const values = this.#values;
    this.#values = [];
    if (values.length === ROWS * columns) many.run(...values);
    else for (let i = 0; i < values.length; i += columns) one.run(...values.slice(i, i + columns));
  }
}

interface Replaced {
  key: JobKey;
  state: JobState;
  lane: number;
  priority: number;
  gate: string | null;
  limits: string | null;
  created_at: number;
  id: string | null;
  slot: string;
  scheduled_for: number | null;
}

interface NewItem {
  job: JobKey;
  lane: number;
  work: NewWork;
  isCancelled: boolean;
}

export type JobParts = Omit<EnqueueParts, "forget" | "whole" | "provisionally">;

export class EnqueueParts {
  readonly catalog: Catalog;
  readonly settings: Settings;
  readonly events: Events;
  readonly dependents: Dependents;
  readonly jobEvents: JobEvents;
  readonly limits: Limits;
  readonly retention: Retention;
  readonly effects: SettleEffects;
  readonly enqueue: Enqueue;
  readonly batches: WorkBatches;
  readonly #db: Connection;
  readonly #sql;

  constructor(db: Connection, options: { canDeclare: boolean; artifacts?: ArtifactCheck }) {
    this.#db = db;
    this.catalog = new Catalog(db);
    this.settings = new Settings(db, options);
    this.events = new Events(db);
    this.jobEvents = new JobEvents(db, this);
    this.limits = new Limits(db, this);
    this.retention = new Retention(DIALECT, retentionDatabase(this));
    const database = workDatabase(db, this.catalog);
    this.batches = new WorkBatches(DIALECT, { ...options, settings: this.settings, database });
    this.dependents = new Dependents(DIALECT, { batches: this.batches, database: dependentsDatabase(db, this) });
    this.effects = new SettleEffects(db, this);
    this.enqueue = new Enqueue(db, this);
    this.#sql = {
      mark: db.prepare("savepoint holdfast_enqueue"),
      undo: db.prepare("rollback to holdfast_enqueue"),
      keep: db.prepare("release holdfast_enqueue"),
    };
  }

  forget(): void {
    this.catalog.forget();
    this.settings.forget();
    this.effects.forget();
    this.limits.forget();
  }

  /** Adds all jobs, or if one is refused, none. The answer is that refusal then. */
  whole(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    const refused = this.enqueue.refused(jobs);
    return refused === undefined ? this.enqueue.run(tx, jobs) : rejectAll(refused);
  }

  /** Adds jobs in a transaction that a user may roll back in part: it drops the caches first. If it throws, it wrote nothing. */
  provisionally(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    this.forget();
    this.#sql.mark.run();
    try {
      const answers = this.whole(tx, jobs);
      this.#sql.keep.run();
      return answers;
    } catch (error) {
      // After a full disk, SQLite has ended the whole transaction with the savepoint.
      if (this.#db.inTransaction) {
        this.#sql.undo.run();
        this.#sql.keep.run();
      }
      throw error;
    }
  }
}
