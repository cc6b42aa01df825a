import {
  Admission,
  findRejected,
  type InitialState,
  isEarly,
  rejectAll,
  type RejectedJob,
  replacedJob,
  type Wait,
} from "../../core/jobs/admission.ts";
import { generatedId, type JobKey } from "../../core/text/ids.ts";
import { metaOf, publicId, slotBehind, slotOf, slotOfJob } from "../job-row.ts";
import type { Added, Enqueued, NewJob } from "../store.ts";
import { ClaimedJobs, isClaimable } from "./claims/claimed-jobs.ts";
import { listOf, lists } from "./connection/driver.ts";
import type { Made, SingleCall, SingleStatement, Tx } from "./transactions/transaction.ts";
import type { Happened } from "./events.ts";
import { type ExistingJobs, ExistingJobsLookUp } from "./existing-jobs.ts";
import { runAsync } from "../sql/script.ts";
import type { WorkBatch } from "../sql/work/work-batch.ts";
import type { JobParts } from "./store-parts.ts";
import { type SingleRoute, splitAnswers } from "./transactions/write-queue.ts";

/** Separator that no JSON text contains. */
const INPUT_SEPARATOR = "\u001e";

interface Row {
  key: JobKey;
  standing: InitialState;
  gate: string | null;
  quiet: boolean;
  lane: number;
  job: NewJob;
  id: string | null;
  slot: string | null;
  runAt: number;
  limits: string | null;
  answer: Added;
}

type EnqueueParts = Pick<JobParts, "catalog" | "settings" | "limits" | "dependents" | "effects" | "events" | "batches"> & {
  /** True in a user's transaction, which may stay open for long: the next claim admits limited jobs, or all claims would wait. */
  defersLimits: boolean;
};

export class Enqueue {
  readonly #parts: EnqueueParts;
  readonly #lookUp: ExistingJobsLookUp;
  readonly #claimedJobs: ClaimedJobs;
  readonly #sql: Record<"plain" | "keys" | "insert" | "insertIds" | "awaited" | "replace" | "dropNotes", string>;
  readonly #one: SingleStatement;
  readonly #many: SingleStatement;
  readonly route: SingleRoute<readonly NewJob[], Enqueued[]> = {
    call: (tx, batches) => this.#single(tx, batches),
    recall: async (_, outcome, batches) => this.#recall(outcome, batches),
  };

  constructor(s: string, parts: EnqueueParts) {
    this.#parts = parts;
    this.#lookUp = new ExistingJobsLookUp(s, parts.catalog);
    this.#claimedJobs = new ClaimedJobs(s, parts);
    this.#sql = {
      plain: `
        with clock as materialized (select ${s}.clock($1) as now)
        insert into ${s}.jobs (state, gate, lane, priority, policy, run_at, created_at, input)
        select 'pending', case when coalesce(run_at, now + delay) > now then 'time' end,
          lane, priority, policy, coalesce(run_at, now + delay), now, input
        from clock, unnest($2::integer[], $3::integer[], $4::integer[], $5::bigint[], $6::bigint[], $7::text[])
          with ordinality as job (lane, priority, policy, run_at, delay, input, turn)
        order by turn
        returning key, created_at`,
      keys: `select nextval('${s}.job') from generate_series(1, $1::integer)`,
      insert: `
        insert into ${s}.jobs (key, state, gate, quiet, lane, priority, policy, run_at, scheduled_for, limits, created_at, finished_at,
          id, slot, input, error, meta)
        select key, state, gate, quiet, lane, priority, policy, run_at, scheduled_for, limits, $1::bigint, case when state = 'cancelled' then $1::bigint end,
          id, slot, input, error, meta
        from unnest($2::bigint[], $3::text[], $4::text[], $5::boolean[], $6::integer[], $7::integer[], $8::integer[], $9::bigint[],
          $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[])
          as job (key, state, gate, quiet, lane, priority, policy, run_at, scheduled_for, limits, id, slot, input, error, meta)`,
      insertIds: `
        insert into ${s}.ids (id, job, name, chosen)
        select * from unnest($1::text[], $2::bigint[], $3::text[], $4::boolean[]) order by 1`,
      replace: `
        update ${s}.jobs set lane = $2, priority = $3, policy = $4, gate = $5, limits = $6, run_at = $7, input = $8, meta = $9,
          quiet = quiet and $6::text is null, errors = 0, crashes = 0, error = null
        where key = $1`,
      dropNotes: `delete from ${s}.notes where job = $1`,
      awaited: `update ${s}.jobs set quiet = false where key = any($1::bigint[]) and quiet`,
    };
    const enqueueSql = (inputs: string, from: string) => `
        clock as materialized (select now, coalesce($5::bigint, now + $6::bigint) as run_at from (select ${s}.clock($1) as now) as one),
        job as (
          insert into ${s}.jobs (state, gate, lane, priority, policy, run_at, created_at, input)
          select 'pending', case when run_at > now then 'time' end, $2::integer, $3::integer, $4::integer, run_at, now, ${inputs}
          from clock${from} returning key, created_at)`;
    this.#one = {
      parts: enqueueSql("$7::text", ""),
      values: 7,
      made: "key, created_at, null from job",
      wrote: "true",
      answer: (verdict) => `select key, created_at, ${verdict} from job`,
    };
    // Keys follow the order of the list. If no other transaction took a key in between, the first one gives all.
    this.#many = {
      parts: `
        ${enqueueSql("input", `, string_to_table($7::text, E'\\u001e', '') as given (input)`)},
        added as materialized (
          select min(key) as first, min(created_at) as created_at, case when max(key) - min(key) + 1 <> count(*) then (
            select json_agg(key order by key)::text from job) end as keys
          from job)`,
      values: 7,
      made: "first, created_at, keys from added",
      wrote: "true",
      answer: (verdict) => `select first, created_at, keys, ${verdict} from added`,
    };
  }

  isPlain(jobs: readonly NewJob[]): boolean {
    if (!this.#parts.settings.isKnown) return false;
    let last: NewJob | null = null;
    for (const job of jobs) {
      if (!needsNoLookup(job)) return false;
      if (last !== null && haveSameDefinition(job, last)) continue;
      if (this.#hasLimitsOrEvents(job) || !this.#parts.settings.isSilent(job) || !this.#parts.catalog.isKnown([job]))
        return false;
      last = job;
    }
    return true;
  }

  async batches(tx: Tx, batches: readonly (readonly NewJob[])[]): Promise<Enqueued[][]> {
    const jobs = batches.length === 1 ? (batches[0] as readonly NewJob[]) : batches.flat();
    // Settings may have changed since the call.
    return splitAnswers(await (this.isPlain(jobs) ? this.plain(tx, jobs) : this.run(tx, jobs)), batches);
  }

  async plain(tx: Tx, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    this.#parts.settings.assumed(tx);
    const made = tx.rows<[JobKey, number]>(
      this.#sql.plain,
      tx.at,
      listOf(jobs.map((job) => this.#parts.catalog.laneOf(job))),
      listOf(jobs.map(({ priority }) => priority)),
      listOf(jobs.map(({ policy }) => this.#parts.catalog.policyIdOf(policy))),
      listOf(jobs.map(({ runAt }) => runAt ?? null)),
      ...lists(jobs, "delay", "input"),
    );
    tx.wrote();
    for (const queue of new Set(jobs.map(({ queue }) => queue))) tx.ready(queue);
    return toEnqueued(await made);
  }

  /** Inserts jobs that differ only in their inputs by one statement. Returns null if that is not possible. */
  #single(tx: Tx, batches: readonly (readonly NewJob[])[]): SingleCall<Enqueued[][]> | null {
    const jobs = batches.flat();
    const [job] = jobs;
    if (job === undefined || !this.isPlain(jobs) || !differInInputsOnly(jobs)) return null;
    const inputs = jobs.length === 1 ? job.input : joinInputs(jobs);
    if (inputs === undefined) return null;
    this.#parts.settings.assumed(tx);
    tx.wrote();
    tx.ready(job.queue);
    const { priority, policy, runAt = null, delay } = job;
    return {
      statement: jobs.length === 1 ? this.#one : this.#many,
      values: [tx.at, this.#parts.catalog.laneOf(job), priority, this.#parts.catalog.policyIdOf(policy), runAt, delay, inputs],
      read: (rows) => {
        const [made, madeAt, keys] = rows[0] as [number, number, string | null];
        return this.#recall({ made, madeAt, keys }, batches);
      },
    };
  }

  /** Returns the answers by the receipt, because the jobs themselves may have ended and been pruned. */
  #recall({ made, madeAt, keys }: Made, batches: readonly (readonly NewJob[])[]): Enqueued[][] {
    const known = keys === null ? null : (JSON.parse(keys) as JobKey[]);
    let n = 0;
    return batches.map((jobs) =>
      jobs.map(() => {
        const key = known === null ? (((made as number) + n) as JobKey) : (known[n] as JobKey);
        n++;
        return { id: generatedId(madeAt as number, key), duplicate: false };
      }),
    );
  }

  /** Enqueues jobs. The caller who gives a `batch` writes its totals of work items. */
  async run(tx: Tx, jobs: readonly NewJob[], batch?: WorkBatch): Promise<Added[]> {
    if (jobs.length === 0) return [];
    if (jobs.some(({ replaces, behind }) => replaces && behind === undefined)) return this.#replaceEach(tx, jobs, batch);
    await this.#parts.settings.at(tx);
    await this.#lock(tx, jobs);
    const limits = await this.#parts.settings.limitsOf(tx, jobs);
    if (limits === null && jobs.every((job) => needsNoLookup(job) && !this.#hasLimitsOrEvents(job))) {
      await this.#parts.catalog.know(tx, jobs);
      return this.plain(tx, jobs);
    }
    return this.#decided(tx, jobs, await this.#lookUp.of(tx, jobs), limits, batch);
  }

  /** Replaces one by one: a job may replace one of the same call. All rows are locked first, in one order, against deadlocks. */
  async #replaceEach(tx: Tx, jobs: readonly NewJob[], batch: WorkBatch | undefined): Promise<Enqueued[]> {
    const slots = jobs.filter(({ replaces }) => replaces).map(({ name, key }) => slotOf(name, key as string));
    const all = [...slots, ...slots.map(slotBehind)];
    await this.#parts.settings.at(tx);
    const lanes = await this.#lookUp.limitedLanes(tx, all);
    const held = lanes.map((lane) => this.#parts.catalog.lane(lane).queue);
    await this.#parts.limits.lock(tx, new Set([...held, ...this.#parts.limits.queuesOf(jobs)]));
    await this.#lookUp.lockSlots(tx, all);
    const answers: Enqueued[] = [];
    for (const job of jobs) {
      const left = job.replaces ? await this.#replace(tx, job) : job;
      answers.push(...(typeof left === "string" ? [{ id: left, duplicate: true }] : await this.run(tx, [left], batch)));
    }
    return answers;
  }

  /** Returns the id of the job that now has the new input, or the job to add. */
  async #replace(tx: Tx, given: NewJob): Promise<string | NewJob> {
    const { replaces: _, ...job } = given;
    const slot = slotOf(job.name, job.key as string);
    const held = await this.#lookUp.lockSlots(tx, [slot, slotBehind(slot)]);
    const holder = held.get(slot);
    const row = replacedJob(holder, held.get(slotBehind(slot)));
    if (holder === undefined) return job;
    const { key, createdAt, id, state, gate: oldGate } = row ?? holder;
    if (row === undefined) return { ...job, behind: { id: publicId(id, createdAt, key), job: key } };
    if (state === "pending" && row.limits !== null)
      await this.#parts.limits.withdraw(tx, [{ key, lane: row.lane, priority: row.priority, limits: row.limits, gate: oldGate }]);
    const [now, limitTexts] = [await tx.now(), await this.#parts.settings.limitsOf(tx, [job])];
    await this.#parts.catalog.know(tx, [job]);
    const [lane, policy] = [this.#parts.catalog.laneOf(job), this.#parts.catalog.policyIdOf(job.policy)];
    const { priority, input } = job;
    const limits = limitTexts?.[0] ?? null;
    const runAt = job.runAt ?? now + job.delay;
    let gate: string | null = state === "pending" && isEarly(runAt, now, now) ? "time" : null;
    if (state === "pending" && gate === null && limits !== null)
      [gate = null] = await this.#parts.limits.admit(tx, [{ key, lane, priority, limits }]);
    await tx.rows(this.#sql.replace, key, lane, priority, policy, gate, limits, runAt, input, metaOf(job));
    // The checkpoint belongs to the old input.
    await tx.rows(this.#sql.dropNotes, key);
    tx.ready(job.queue);
    tx.wrote();
    return publicId(id, createdAt, key);
  }

  async whole(tx: Tx, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    await this.#parts.settings.at(tx);
    await this.#lock(tx, jobs);
    const refused = await this.refused(tx, jobs);
    return refused === undefined ? this.run(tx, jobs) : rejectAll(refused);
  }

  async refused(tx: Tx, jobs: readonly NewJob[]): Promise<RejectedJob | undefined> {
    return findRejected(jobs, await this.#lookUp.of(tx, jobs));
  }

  async #decided(
    tx: Tx,
    jobs: readonly NewJob[],
    known: ExistingJobs,
    limits: readonly (string | null)[] | null,
    batch: WorkBatch | undefined,
  ): Promise<Added[]> {
    const now = await tx.now();
    const numbered = tx.rows<[JobKey]>(this.#sql.keys, jobs.length);
    const items = runAsync(this.#parts.batches.existing(tx, jobs, batch));
    const [keys, existing, above] = await Promise.all([numbered, items, this.#claimedJobs.firstAbove(tx, jobs, batch)]);
    const admission = new Admission(known);
    const rows: Row[] = [];
    const waits: Wait[] = [];
    const answers = jobs.map((job, i): Added => {
      const refused = admission.reject(job) ?? existing.of(job);
      if (refused !== undefined) return refused;
      const [key] = keys[i] as [JobKey];
      const row = this.#row(job, key, now, admission.initialState(job), limits?.[i] ?? null);
      rows.push(row);
      for (const { job: upstream } of row.standing.state === "waiting" ? row.standing.for : [])
        waits.push({ job: key, upstream });
      const id = publicId(row.id, now, key);
      known.found(id, { name: job.name, key, state: row.standing.state });
      existing.add(job, id);
      if (row.slot !== null && row.standing.state !== "cancelled") known.holds(row.slot, id);
      return row.answer;
    });
    if (rows.length === 0) return answers;
    const added = rows.map(({ job }) => job);
    await this.#parts.catalog.know(tx, added);
    const awaited = new Set(waits.map(({ upstream }) => upstream));
    for (const row of rows) {
      row.lane = this.#parts.catalog.laneOf(row.job);
      if (awaited.delete(row.key)) row.quiet = false;
    }
    await this.#admit(tx, rows);
    const isFirst = (row: Row) => isClaimable(row) && row.job.priority > (above.get(row.job.queue) as number);
    const { claimed = [], others = [] } = Object.groupBy(rows, (row) => (isFirst(row) ? "claimed" : "others"));
    await Promise.all([this.#write(tx, now, others), this.#claimedJobs.add(tx, now, claimed), this.#addItems(tx, rows, batch)]);
    if (awaited.size > 0) await tx.rows(this.#sql.awaited, listOf([...awaited]));
    await runAsync(this.#parts.dependents.add(tx, waits));
    await this.#recordEvents(tx, rows);
    const cancelled = rows.filter(({ standing }) => standing.state === "cancelled");
    const ended = cancelled.map(({ key, lane }) => ({ job: key, lane, was: "waiting" }) as const);
    await runAsync(this.#parts.batches.cancelled(tx, now, ended));
    const finished = cancelled.map(({ key: job, lane }) => ({ job, lane, state: "cancelled" }) as const);
    await this.#parts.effects.follow(tx, now, finished);
    for (const { job } of others) tx.ready(job.queue);
    tx.wrote();
    return answers;
  }

  #row(job: NewJob, key: JobKey, now: number, standing: InitialState, limits: string | null): Row {
    const runAt = job.runAt ?? now + job.delay;
    const id = job.id ?? job.followUpId ?? null;
    return {
      key,
      standing,
      gate: standing.state === "pending" && isEarly(runAt, now, now) ? "time" : null,
      quiet: limits === null && job.work === undefined,
      lane: 0,
      job,
      id,
      slot: slotOfJob(job),
      runAt,
      limits,
      answer: { id: publicId(id, now, key), duplicate: false },
    };
  }

  async #addItems(tx: Tx, rows: readonly Row[], given: WorkBatch | undefined): Promise<void> {
    const items = rows.flatMap(({ key, job: { work } }) => (work === undefined ? [] : [{ key, work }]));
    if (items.length === 0) return;
    const builds = [...new Set(items.flatMap(({ work }) => work.build ?? []))];
    const batch = given ?? (await runAsync(this.#parts.batches.adding(tx, builds)));
    for (const { key, work } of items) batch.add(key, work);
    await runAsync(given === undefined ? this.#parts.batches.close(tx, batch) : this.#parts.batches.write(tx, batch));
  }

  async #admit(tx: Tx, rows: readonly Row[]): Promise<void> {
    const limited = rows.flatMap((row) =>
      row.standing.state === "pending" && row.gate === null && row.limits !== null
        ? [{ row, key: row.key, lane: row.lane, priority: row.job.priority, limits: row.limits }]
        : [],
    );
    if (limited.length === 0) return;
    if (this.#defersLimits) {
      for (const { row } of limited) row.gate = "time";
      return;
    }
    const gates = await this.#parts.limits.admit(tx, limited);
    for (const [i, { row }] of limited.entries()) row.gate = gates[i] ?? null;
  }

  async #write(tx: Tx, now: number, rows: readonly Row[]): Promise<void> {
    const ids = rows.flatMap(({ id, key, job: { name, id: chosen } }) =>
      id === null ? [] : [{ id, key, name, isChosen: chosen !== undefined }],
    );
    if (rows.length === 0) return;
    if (ids.length > 0) await tx.rows(this.#sql.insertIds, ...lists(ids, "id", "key", "name", "isChosen"));
    const stored = rows.map(({ job, standing, ...row }) => ({
      ...row,
      state: standing.state,
      priority: job.priority,
      policy: this.#parts.catalog.policyIdOf(job.policy),
      scheduledFor: job.scheduledFor ?? null,
      input: job.input,
      error: standing.state === "cancelled" ? JSON.stringify(standing.error) : null,
      meta: metaOf(job),
    }));
    const columns = ["key", "state", "gate", "quiet", "lane", "priority", "policy", "runAt", "scheduledFor", "limits"] as const;
    await tx.rows(this.#sql.insert, now, ...lists(stored, ...columns, "id", "slot", "input", "error", "meta"));
  }

  async #recordEvents(tx: Tx, rows: readonly Row[]): Promise<void> {
    const happened = rows.flatMap(({ key, lane, standing }): Happened[] => {
      const enqueued: Happened = { type: "job.enqueued", job: key, lane };
      return standing.state === "cancelled" ? [enqueued, { type: "job.cancelled", job: key, lane }] : [enqueued];
    });
    await this.#parts.events.recordIfEnabled(tx, happened);
  }

  async #lock(tx: Tx, jobs: readonly NewJob[]): Promise<void> {
    const needed = this.#defersLimits ? jobs.filter(({ work }) => work !== undefined) : jobs;
    await this.#parts.limits.lock(tx, this.#parts.limits.queuesOf(needed));
  }

  /** After a stall, another transaction holds the same id or key, so limits are deferred as in a user's transaction. */
  get #defersLimits(): boolean {
    return this.#parts.defersLimits || this.#parts.limits.locks.yields;
  }

  #hasLimitsOrEvents({ queue }: NewJob): boolean {
    return this.#parts.settings.view.recordsEvents(queue) || this.#parts.settings.limits(queue);
  }
}

function needsNoLookup(job: NewJob): boolean {
  return (
    job.id === undefined &&
    job.followUpId === undefined &&
    job.key === undefined &&
    job.after === undefined &&
    job.scheduledFor === undefined &&
    job.tags === undefined &&
    job.trace === undefined &&
    job.work === undefined
  );
}

function toEnqueued(made: readonly (readonly [JobKey, number])[]): Enqueued[] {
  return made.map(([key, createdAt]) => ({ id: generatedId(createdAt, key), duplicate: false }));
}

function haveSameDefinition(job: NewJob, other: NewJob): boolean {
  return (
    job.name === other.name &&
    job.queue === other.queue &&
    job.version === other.version &&
    job.policy === other.policy &&
    job.declares === other.declares
  );
}

function differInInputsOnly(jobs: readonly NewJob[]): boolean {
  const [first] = jobs as [NewJob];
  const { priority, runAt, delay } = first;
  return jobs.every(
    (job) => haveSameDefinition(job, first) && job.priority === priority && job.runAt === runAt && job.delay === delay,
  );
}

/** Joins the inputs into one text, with "" for null. Returns undefined if an input cannot be part of it. */
function joinInputs(jobs: readonly NewJob[]): string | undefined {
  if (jobs.some(({ input }) => input === "" || input?.includes(INPUT_SEPARATOR))) return undefined;
  return jobs.map(({ input }) => input ?? "").join(INPUT_SEPARATOR);
}
