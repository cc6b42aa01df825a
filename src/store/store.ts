import type { Enqueued } from "../core/jobs/admission.ts";
import type { AttemptView } from "../core/jobs/attempts.ts";
import type { ClaimOutlook, ClaimSource } from "../core/jobs/claiming.ts";
import type { Event } from "../core/jobs/event.ts";
import type { JobFacts } from "../core/jobs/explain.ts";
import type { Job } from "../core/jobs/job.ts";
import type { LeaseRef, LeaseState, StaleLease } from "../core/jobs/lease.ts";
import type { QueueMinute } from "../core/jobs/minutes.ts";
import type { Reclaimed } from "../core/jobs/retry.ts";
import type { Declaration } from "../core/limits/settings.ts";
import type { CostHistory, Amount } from "../core/pipelines/budget.ts";
import type { BuildReason, WantedMove } from "../core/pipelines/build.ts";
import type { WalView } from "../core/recovery/loss.ts";
import type { Clock } from "../core/text/duration.ts";
import type { HoldfastError } from "../core/text/errors.ts";
import type { Fence, JobKey, ProcessId } from "../core/text/ids.ts";
import type { Act, AuditCheck, AuditEntry, AuditQuery, AuditVerification } from "./audit.ts";
import type { BackUpOptions, Manifest } from "./backups.ts";
import type {
  Approval,
  BuildFilter,
  BuildRow,
  ByOperator,
  LockToken,
  MintedToken,
  NewBuild,
  NewRound,
  OrchestratorLockRow,
  ResumeBuild,
  StartedBuild,
} from "./builds.ts";
import type { Delivery, EventQuery, SinkHold, SinkView } from "./events.ts";
import type {
  Change,
  ChangeOptions,
  ClaimRequest,
  Claimed,
  Expired,
  ProgressReport,
  PruneFilter,
  Pruned,
  Settlement,
  NewJob,
} from "./jobs.ts";
import type { Checked, Finding, Gauged, Thoroughness, Vitals } from "./maintenance.ts";
import type { KnownProcesses, NewProcess, ProbedProcesses, Works } from "./processes.ts";
import type { JobOverview, ListFilter } from "./queries.ts";
import type { CleanedLocks, LimitUsage, LockView, MinutesQuery, ScheduleDraft, StoredSchedule, Tick } from "./queues.ts";
import type {
  DeadProcess,
  ExpiredLease,
  Found,
  Judgement,
  Left,
  OwnReport,
  RecoveredProcess,
  Recovering,
  RecoveryHistory,
  RecoveryPreview,
  StoredReport,
} from "./recoveries.ts";
import type {
  ArtifactRef,
  Beginning,
  Clearing,
  FoundResult,
  ListedBatch,
  MemberPage,
  ResultContext,
  ResultQuery,
  SpendSlice,
  StoredResult,
  TargetPage,
  TargetPaths,
  TargetRow,
  WorkView,
} from "./work.ts";

export type { ClaimSource, Declaration, Enqueued, LeaseState, ClaimOutlook, Reclaimed };
export type * from "./jobs.ts";

// Each call is one atomic unit: once its promise resolves, it has happened durably; if it rejects, it has not. Calls of one turn
// of the event loop share a commit, in order, and fail apart. Expected refusals (a duplicate, a lost lease) are values.
export interface Store {
  readonly databaseId: string;
  readonly durability: Durability;
  /** The given clock, or the database's clock as far as this process knows it. */
  readonly clock: Clock;
  readonly hooks: StoreHooks;
  readonly queries: QueryStore;
  readonly queues: QueueStore;
  readonly builds: BuildStore;
  readonly work: WorkStore;
  readonly audit: AuditStore;
  readonly damage: DamageStore;
  readonly maintenance: MaintenanceStore;
  readonly recoveries: RecoveryStore;
  readonly processes: ProcessStore;
  readonly locks: LockStore;
  readonly schedules: ScheduleStore;
  readonly events: EventStore;

  /** Enqueues each job by itself. With `whole`, all jobs or none, and if one is refused, the answer is that refusal alone. */
  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]>;

  /** Enqueues in the caller's transaction, all or none, if that keeps this store's promises. SQLite answers synchronously. */
  enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Enqueued[] | Promise<Enqueued[]>;
  /** Runs a synchronous callback, and what it enqueues within `handle`, in one commit. Its error rolls all back. SQLite only. */
  transact<T>(work: (handle: object) => T): Promise<T>;

  /** Claims up to `max` due jobs: by priority, then first in, first out, in fair shares of the queues. */
  claim(request: ClaimRequest): Promise<Claimed[]>;
  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<LeaseState[]>;
  /** Writes outcomes of attempts with all they bring. If it rejects, no attempt has ended. One with `commit` comes alone. */
  settle(settlements: readonly Settlement[]): Promise<LeaseState[]>;
  /** Stores progress, checkpoint, cost so far, and log lines. It adds log lines even if the attempt has ended meanwhile. */
  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]>;
  loadCheckpoint(job: JobKey): Promise<string | null>;
  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]>;
  outlook(from: readonly ClaimSource[]): Promise<ClaimOutlook>;

  cancel(id: string): Promise<boolean>;
  /** Makes a failed or quarantined job pending, with fresh counts. "key-taken": another unfinished job has its key. */
  retry(id: string): Promise<boolean | "key-taken">;
  /** Removes up to `limit` finished jobs; ids that callers chose stay taken. `more`: call again. */
  prune(filter: PruneFilter | Expired): Promise<Pruned>;

  /** Calls after each commit of this store, and of others unless `ownOnly`, which costs less. The returned function stops it. */
  onChange(call: (change: Change) => void, options?: ChangeOptions): () => void;
  close(): Promise<void>;
}

export interface QueryStore {
  get(id: string): Promise<Job | null>;
  /** Returns the facts that explain why a job, or a queue's oldest pending job, does not run. Null: there is no such job. */
  facts(of: { id: string } | { queue: string }): Promise<JobFacts | null>;
  /** Returns the kept attempts, oldest first, and the running or succeeded one. Empty: there is no such job. */
  attempts(id: string): Promise<AttemptView[]>;
  /** Lists jobs. A page may have fewer items than `limit` and still `next`, because a call reads a bounded number of rows. */
  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }>;
  overview(): Promise<JobOverview>;
}

export interface QueueStore {
  declare(declarations: readonly Declaration[]): Promise<void>;
  /** Pauses or resumes a queue. A paused queue's running jobs continue. False: nothing changed. */
  setPaused(queue: string, paused: boolean): Promise<boolean>;
  /** Returns limits that are in use, by key: those first that most jobs wait for. */
  limits(limit: number): Promise<LimitUsage[]>;
  /** Returns counts of ended attempts: from a minute on, by minute and queue, or the totals of each queue. */
  minutes(query: MinutesQuery | "totals"): Promise<QueueMinute[]>;
  /** Adds a worker's counts to the minutes and to the totals, and removes minutes before `keepFrom`. */
  addMinutes(minutes: readonly QueueMinute[], keepFrom: number): Promise<void>;
}

export interface ScheduleStore {
  /** Creates or replaces a schedule. A replaced one stays paused, and keeps its next tick unless cron or time zone differ. */
  save(draft: ScheduleDraft): Promise<StoredSchedule>;
  /** Lists schedules by key. `due`: those that are due and not paused, the most overdue first, or else those that tick next. */
  list(query?: { key?: string; due?: boolean }): Promise<StoredSchedule[]>;
  /** Adds the jobs of `tick.fire` and advances the schedule if it is still as it was read. False: another process did it. */
  tick(tick: Tick): Promise<boolean>;
  /** Adds one job now. Without `overlap` it returns the last job while that is unfinished. Null: there is no such schedule. */
  trigger(key: string): Promise<Enqueued | null>;
  /** Pauses, removes or, from its next tick on, resumes a schedule. False: there is none, or it was not paused, or was saved since. */
  update(key: string, to: "paused" | "removed" | { resumed: number; revision: number }): Promise<boolean>;
}

export interface LockStore {
  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean>;
  /** Extends a lock, or releases it if `ttl` is null. False: this token does not hold it, or no longer. */
  renew(name: string, token: string, ttl: number | null): Promise<boolean>;
  list(name?: string): Promise<LockView[]>;
  /** Removes expired locks, and `broken` (with `stale`, only if it is). Shortens overlong locks, after the clock was set back. */
  clean(broken?: { name: string; stale?: boolean }): Promise<CleanedLocks>;
}

export interface EventStore {
  page(query: EventQuery): Promise<Event[]>;
  /** Removes at most `limit` of the oldest events that every sink has passed. */
  trim(what: { olderThan: number; limit: number }): Promise<number>;
  /** Returns the number of the newest event, or where a sink continues. An unknown sink is added, and starts from now. */
  position(sink?: { name: string; kind: string }): Promise<number>;
  /** Takes or, by its token, keeps the right to deliver. It is free without a holder, after its `ttl`, or if its holder is dead. */
  hold(sink: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null>;
  /** Records a delivery. False: the sink has another token, and nothing changes. */
  deliver(sink: string, token: Fence, delivery: Delivery): Promise<boolean>;
  sinks(): Promise<SinkView[]>;
  dropSink(name: string): Promise<boolean>;
}

/** The audit. Entries are written in the transaction of their action, chained by hashes, without secrets and job inputs. */
export interface AuditStore {
  /** Returns entries after a number, in order; with `last` the newest of them. */
  page(query: AuditQuery): Promise<AuditEntry[]>;
  /** Verifies entries after `from`, the end of an earlier call, or from the first on. */
  verify(query: AuditVerification): Promise<AuditCheck>;
  /** Writes the entry and the event of an action that changes nothing else in this database, such as a backup. */
  record(act: Act): Promise<void>;
}

export interface ProcessStore {
  /** The process that this handle acts for. `register` sets it; a thread of a registered process sets it itself. */
  self: ProcessId | null;
  /** Registers this process, with a proof of life. It is its first commit: before it, the process claims and acknowledges nothing. */
  register(process: NewProcess): Promise<ProcessId>;
  /** Returns which other processes live, as far as it can prove that. `boot` is this host's, for an unregistered caller. */
  probe(boot?: string): Promise<ProbedProcesses>;
  /** Stores what a process works on, or asks it to stop, with its running jobs within `stop`. False: nothing changed. */
  update(id: ProcessId, change: { works: readonly Works[] } | { stop: number }): Promise<boolean>;
  /** Unregisters a process. False: it still holds a job, or was not registered. */
  unregister(id: ProcessId): Promise<boolean>;
}

/** Recovery of jobs. Each transaction adds what it reclaims to the one open report, which is exact if a recovery is killed. */
export interface RecoveryStore {
  /** Opens or continues a report. Null, nothing is written: no process is dead, nothing is found, every report has an owner. */
  begin(found: Found): Promise<Recovering | null>;
  /** Reclaims up to `limit` jobs. If none is left, it crashes the process's builds, frees its locks, and unregisters it. */
  reclaimFrom(dead: DeadProcess): Promise<RecoveredProcess>;
  /** Closes the owner's report, unless processes that it names are still registered (`left`); or acknowledges all with errors. */
  close(ending: OwnReport | "acknowledged"): Promise<{ closed: StoredReport[]; left: Left[] }>;
  /** Returns reports, the newest first, and the sums over all. "open": under way, or with errors and not acknowledged. */
  history(query: { limit: number; which?: "ended" | "all" | "open" }): Promise<RecoveryHistory>;
  /** Returns what a recovery would change. `expired`: leases that it would end. `rebooted`: the dead whose host restarted. */
  preview(
    known: KnownProcesses & { rebooted?: readonly ProcessId[] },
    expired: readonly ExpiredLease[],
  ): Promise<RecoveryPreview>;
  /** Returns leases to judge: expired, expiring later than possible (`skewed`), or held by one of the `dead`. */
  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]>;
  /** Ends or cuts leases, each only if it is still exactly as it was judged. `by`: an operator, for the audit. */
  reclaim(judgements: readonly Judgement[], cause: string, by?: string): Promise<Reclaimed & { shortened: number }>;
}

// A method reads the row inside its transaction, asks src/core, and writes what that decides. Each transition has a number,
// an audit entry and an event. The queue is paused whenever the build is not ACTIVE, or work of earlier builds is left.
export interface BuildStore {
  // Takes the pipeline's lock and starts a build with its first listing job (abandoning a CRASHED build), or resumes one, in
  // one commit. `paused`: another build waits for its budget. Throws refusals of src/core (NO_SUCH_BUILD, PIPELINE_CHANGED, …).
  start(build: NewBuild | ResumeBuild): Promise<StartedBuild>;
  // Moves a build, and releases the lock unless the build is ACTIVE then. An operator needs no token, and breaks the lock by
  // crashing the build. Null: there is no such build, or another token or, for an operator, another `holder` has the lock.
  move(build: string, move: WantedMove, lock: LockToken | ByOperator, mint?: MintedToken): Promise<BuildRow | null>;
  /** Uses a token to set a paused build's budget, or makes a token and voids earlier ones. Null: there is no such build. */
  authorize(build: string, use: Approval | MintedToken, by: string): Promise<BuildRow | null>;
  // "run" unpauses the queue once no work of earlier builds is left. A round starts with its listing job. Round 0 starts again
  // after a resume, for targets that failed before it. False: not ready, not ACTIVE, or not the lock's token.
  advance(build: string, lock: LockToken, to: "run" | NewRound): Promise<boolean>;
  list(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }>;

  beat(lock: LockToken): Promise<boolean>;
  orchestratorLocks(pipeline?: string): Promise<OrchestratorLockRow[]>;
  /** Crashes ACTIVE builds without a lock or live orchestrator (dead, unregistered, or silent for ORCHESTRATOR_TTL_MS). */
  orphan(known: KnownProcesses, reason: BuildReason): Promise<BuildRow[]>;
}

// A job with `work` is a *work item*: (build, stage, target). Its settlement (`WorkEnd`) also writes result, progress, counts
// and next item. However an attempt leaves `running`, its reservation is freed and its cost charged in that transaction.
export interface WorkStore {
  /** Returns targets of one segment, without those that do not exist. */
  targets(query: TargetPaths | TargetPage | MemberPage): Promise<TargetRow[]>;
  countTargets(pipeline: string, segment: number): Promise<number>;
  /** Writes a batch of a listing if its job is still held. Targets with another `rev` than was read are left alone. */
  listed(lease: LeaseRef, batch: ListedBatch): Promise<LeaseState>;

  lookUp(pipeline: string, contexts: readonly ResultContext[]): Promise<(FoundResult | null)[]>;
  results(query: ResultQuery): Promise<StoredResult[]>;

  /** Cancels unfinished work items of ended builds; returns how many. */
  clearWork(clearing: Clearing): Promise<number>;
  works(jobs: readonly JobKey[]): Promise<(WorkView | null)[]>;
  /** Reserves the estimates, in order, as far as the budgets allow. A final refusal pauses the queue, and is written to the build. */
  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]>;
  costs(pipeline: string): Promise<Record<string, CostHistory>>;
  /** Returns what a build's results have cost over time, until an instant; a sample if there are many results. */
  spend(build: Pick<BuildRow, "key" | "createdAt">, until: number): Promise<SpendSlice[]>;

  /** Returns those that a transaction references that is committed, or was under way at the call. */
  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>>;
  artifacts(of: { build: string; stage?: string; path?: string }): Promise<ArtifactRef[]>;
}

export interface MaintenanceStore {
  readonly journaled: boolean;
  /** Number that rises with each restore: a journal continues only backups of the same epoch. */
  readonly epoch: number;
  readonly isOverdue: boolean;
  /** Who keeps the log short: a thread that calls `run`, or, by default, each commit of this handle. */
  keptBy: "thread" | "commits";
  /** Regular maintenance, for a thread in which a stall blocks no job. Returns the write-ahead log if it is long. */
  run(): Promise<WalView | null>;
  /** Copies the log into the database, off this thread; unless `alone`, not a short one. `waitMs`: also empties the log. */
  checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void>;
  /** Returns sizes, at a cost that does not depend on the size of the database. `readers`: also looks them up for a short log. */
  gauge(options?: { readers?: boolean }): Promise<Gauged>;
  diagnose(): Promise<Vitals>;
  /** Makes a checked copy of one instant, which gets its name only when it is whole. Rejects with `BACKUP_EXISTS`. */
  backUp(path: string, options: BackUpOptions): Promise<Manifest>;
}

export interface DamageStore {
  /** Why every write is rejected with `DAMAGED` or `DATABASE_GONE`; null: no damage is known. */
  readonly damaged: string | null;
  /** Why reads may lack committed rows: damage, or commits that were missing at opening. Null: nothing is known to be missing. */
  readonly incomplete: string | null;
  /** Returns the error for a write or claim, or null. `again`: first checks findings of other processes, files, and own locks. */
  refusal(of: "write" | "claim", again?: boolean): HoldfastError | null;
  /** Checks off the main thread; damage makes the store read-only. `clears`: findings to clear if a complete check has none. */
  check(how: Thoroughness, clears?: readonly string[]): Promise<Checked>;
  /** Returns findings of all processes that no report has yet, and damage until a check or a restore clears it. */
  findings(): Promise<Finding[]>;
}

export type Durability = "power" | "process";

/** Calls of a store to the program that has it open, which sets them. */
export interface StoreHooks {
  /** Makes the error with which the store rejects every write. Null: it accepts writes. */
  refuseWrites: (() => HoldfastError) | null;
  /** Finds missing artifacts inside a transaction. Until it is set, references are not checked. */
  missingArtifacts(hashes: Iterable<string>): readonly string[];
  /** Called when the store begins to reject writes or claims, or with null when it accepts them again. */
  onDamaged(error: HoldfastError | null): void;
}

export function newHooks(): StoreHooks {
  return { refuseWrites: null, missingArtifacts: () => [], onDamaged: () => {} };
}
