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

// Each call is one atomic unit: when its promise resolves, it has happened durably; otherwise it has not. Calls of one turn of
// the event loop share one commit, in order, and fail apart. Expected refusals (a duplicate, a lost lease) are values.
export interface Store {
  readonly databaseId: string;
  readonly durability: Durability;
  /** The given clock, or the database's clock as far as it is known here. */
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

  /** Each job by itself; `whole`: all or none, and the answer to a refusal is that one alone. */
  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]>;

  /** Enqueues in the caller's transaction, all or none, if that keeps this store's promises. SQLite answers synchronously. */
  enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Enqueued[] | Promise<Enqueued[]>;
  /** Runs a synchronous callback, and what it enqueues within `handle`, in one commit. Its error rolls all back. SQLite only. */
  transact<T>(work: (handle: object) => T): Promise<T>;

  /** Claims up to `max` due jobs: by priority, then first in, first out, in fair shares of the queues. */
  claim(request: ClaimRequest): Promise<Claimed[]>;
  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<LeaseState[]>;
  /** Writes an attempt's outcome, checkpoint and follow-ups together; if it rejects, none has ended. `commit` comes alone. */
  settle(settlements: readonly Settlement[]): Promise<LeaseState[]>;
  /** Progress, checkpoint, cost so far, and log lines, which are added even if the attempt has ended meanwhile. */
  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]>;
  loadCheckpoint(job: JobKey): Promise<string | null>;
  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]>;
  outlook(from: readonly ClaimSource[]): Promise<ClaimOutlook>;

  cancel(id: string): Promise<boolean>;
  /** failed or quarantined → pending, with fresh counts; "key-taken": another unfinished job has its key. */
  retry(id: string): Promise<boolean | "key-taken">;
  /** Removes up to `limit` finished jobs; ids that callers chose stay taken. `more`: call again. */
  prune(filter: PruneFilter | Expired): Promise<Pruned>;

  /** Calls after each commit of this store, and of others unless `ownOnly`, which costs less. Returns a function that stops it. */
  onChange(call: (change: Change) => void, options?: ChangeOptions): () => void;
  close(): Promise<void>;
}

export interface QueryStore {
  get(id: string): Promise<Job | null>;
  /** What explains why a job, or the oldest pending job of a queue, does not run. Null: there is none. */
  facts(of: { id: string } | { queue: string }): Promise<JobFacts | null>;
  /** Attempts that are kept, oldest first, and the running or succeeded one. None: there is no such job. */
  attempts(id: string): Promise<AttemptView[]>;
  /** A page may have fewer items than `limit`, and `next`: then the rows that a call may read were read. */
  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }>;
  overview(): Promise<JobOverview>;
}

export interface QueueStore {
  declare(declarations: readonly Declaration[]): Promise<void>;
  /** A paused queue's running jobs continue. False: nothing changed. */
  setPaused(queue: string, paused: boolean): Promise<boolean>;
  /** Limits that are in use, by key; those that most jobs wait for first. */
  limits(limit: number): Promise<LimitUsage[]>;
  /** Ended attempts: from this minute on, by minute and queue; or the totals of each queue. */
  minutes(query: MinutesQuery | "totals"): Promise<QueueMinute[]>;
  /** Adds what a worker counted, to the minutes and to the totals; removes minutes before `keepFrom`. */
  addMinutes(minutes: readonly QueueMinute[], keepFrom: number): Promise<void>;
}

export interface ScheduleStore {
  /** A saved schedule stays paused, and keeps its next tick unless cron or time zone differ. */
  save(draft: ScheduleDraft): Promise<StoredSchedule>;
  /** By key. `due`: without paused ones, those that are due, the most overdue first; if none is, those that tick next. */
  list(query?: { key?: string; due?: boolean }): Promise<StoredSchedule[]>;
  /** Adds the jobs of `ticksToFire` and advances the schedule, if it is still as it was read; false: another process did it. */
  tick(tick: Tick): Promise<boolean>;
  /** Adds one job now. Without `overlap` the answer is the last job while that is unfinished. Null: there is no such schedule. */
  trigger(key: string): Promise<Enqueued | null>;
  /** Pauses, removes or, from its next tick on, resumes a schedule. False: there is none, or it was not paused, or was saved since. */
  update(key: string, to: "paused" | "removed" | { resumed: number; revision: number }): Promise<boolean>;
}

export interface LockStore {
  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean>;
  /** Extends a lock that is still held by this token; `ttl` null releases it. False: it is not. */
  renew(name: string, token: string, ttl: number | null): Promise<boolean>;
  list(name?: string): Promise<LockView[]>;
  /** Removes expired locks, shortens overlong ones (the clock was set back). `broken`: also this one; `stale`: only if over. */
  clean(broken?: { name: string; stale?: boolean }): Promise<CleanedLocks>;
}

export interface EventStore {
  page(query: EventQuery): Promise<Event[]>;
  /** Removes at most `limit` of the oldest events that every sink has passed. */
  trim(what: { olderThan: number; limit: number }): Promise<number>;
  /** The number of the newest event. `sink`: where that sink continues; an unknown one is added, and starts from now. */
  position(sink?: { name: string; kind: string }): Promise<number>;
  /** Takes or, by its token, keeps the right to deliver. It is free without a holder, after its `ttl`, or if its holder is dead. */
  hold(sink: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null>;
  /** Records a delivery. False: the sink has another token, and nothing changes. */
  deliver(sink: string, token: Fence, delivery: Delivery): Promise<boolean>;
  sinks(): Promise<SinkView[]>;
  dropSink(name: string): Promise<boolean>;
}

/** Entries are written in the transaction of their action, chained by hashes, and hold no secrets and no job inputs. */
export interface AuditStore {
  /** Entries after a number, in order; with `last` the newest of them. */
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
  /** Which of the other processes live, as far as can be proven. `boot`: of this host, for a caller that is not registered. */
  probe(boot?: string): Promise<ProbedProcesses>;
  /** What a process works on, or that it is asked to stop, its running jobs within `stop`. False: nothing changed. */
  update(id: ProcessId, change: { works: readonly Works[] } | { stop: number }): Promise<boolean>;
  /** False: the process still holds something. */
  unregister(id: ProcessId): Promise<boolean>;
}

/** Each transaction adds what it reclaims to the one open report, so a report is exact wherever a recovery is killed. */
export interface RecoveryStore {
  /** Opens or continues a report. Null, nothing is written: no process is dead, nothing is found, every report has an owner. */
  begin(found: Found): Promise<Recovering | null>;
  /** Reclaims up to `limit` jobs. If none is left, it crashes the process's builds, frees its locks, and unregisters it. */
  reclaimFrom(dead: DeadProcess): Promise<RecoveredProcess>;
  /** The owner ends its report, unless processes that it names are registered (`left`); an operator, all that have errors. */
  close(ending: OwnReport | "acknowledged"): Promise<{ closed: StoredReport[]; left: Left[] }>;
  /** Reports, the newest first, and the sums over all. "open": under way, or with errors and not acknowledged. */
  history(query: { limit: number; which?: "ended" | "all" | "open" }): Promise<RecoveryHistory>;
  /** What a recovery would change. `expired`: leases that it would end. `rebooted`: those of the dead whose host restarted. */
  preview(
    known: KnownProcesses & { rebooted?: readonly ProcessId[] },
    expired: readonly ExpiredLease[],
  ): Promise<RecoveryPreview>;
  /** Leases to judge: expired, expiring later than possible (`skewed`), or held by one of the `dead`. */
  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]>;
  /** Ends or cuts leases, each only if it is still exactly as it was judged. `by`: an operator, for the audit. */
  reclaim(judgements: readonly Judgement[], cause: string, by?: string): Promise<Reclaimed & { shortened: number }>;
}

// A method reads the row inside its transaction, asks core, and writes what core decides. Each transition has a number, an
// audit entry and an event. The queue is paused whenever the build is not ACTIVE, or work of earlier builds is left.
export interface BuildStore {
  // Takes the pipeline's lock and starts a build with its first listing job (abandoning a CRASHED build), or resumes one, in
  // one commit. `paused`: another build waits for its budget. Throws core's refusals (NO_SUCH_BUILD, state, token,
  // PIPELINE_CHANGED).
  start(build: NewBuild | ResumeBuild): Promise<StartedBuild>;
  // Releases the lock if the build is not ACTIVE then. An operator needs no token, and breaks the lock by crashing the build.
  // Null: no such build, another token, or, if it breaks the lock, none or another `holder`.
  move(build: string, move: WantedMove, lock: LockToken | ByOperator, mint?: MintedToken): Promise<BuildRow | null>;
  /** For a paused build: uses a token and sets the budget, or makes a token and voids earlier ones. Null: no such build. */
  authorize(build: string, use: Approval | MintedToken, by: string): Promise<BuildRow | null>;
  // "run" unpauses the queue once no work of earlier builds is left. A round starts with its listing job; round 0 again, for
  // what failed before a resume, once no later round is open. False: not ready, not ACTIVE, or not the lock's token.
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
  /** Of one segment; missing ones are left out. */
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
  /** What a build's results have cost until an instant, over time; a sample of them where there are many. */
  spend(build: Pick<BuildRow, "key" | "createdAt">, until: number): Promise<SpendSlice[]>;

  /** Which of these are referenced by a transaction that is committed, or was under way at the call. */
  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>>;
  artifacts(of: { build: string; stage?: string; path?: string }): Promise<ArtifactRef[]>;
}

export interface MaintenanceStore {
  readonly journaled: boolean;
  /** Rises with each restore: a journal continues only backups of the same epoch. */
  readonly epoch: number;
  readonly isOverdue: boolean;
  /** Who keeps the log short: a thread that calls `run`, or, by default, each commit of this handle. */
  keptBy: "thread" | "commits";
  /** Regular maintenance, for a thread in which a stall blocks no job. Returns the write-ahead log if it is long. */
  run(): Promise<WalView | null>;
  /** Copies the log into the database, off this thread; unless `alone`, not a short one. `waitMs`: also empties the log. */
  checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void>;
  /** Cheap, whatever the size of the database. `readers`: also of a short log. */
  gauge(options?: { readers?: boolean }): Promise<Gauged>;
  diagnose(): Promise<Vitals>;
  /** A checked copy at one instant, which gets its name only when it is whole. Rejects with `BACKUP_EXISTS`. */
  backUp(path: string, options: BackUpOptions): Promise<Manifest>;
}

export interface DamageStore {
  /** Why every write is rejected with `DAMAGED` or `DATABASE_GONE`; null: no damage is known. */
  readonly damaged: string | null;
  /** Why reads may lack committed rows: damage, or commits that were missing at opening. Null: nothing is known to be missing. */
  readonly incomplete: string | null;
  /** The error for a write or claim; null: accepted. `again`: checks other processes' findings, files and own locks first. */
  refusal(of: "write" | "claim", again?: boolean): HoldfastError | null;
  /** Checks off the main thread; damage makes the store read-only. `clears`: findings to clear if a complete check has none. */
  check(how: Thoroughness, clears?: readonly string[]): Promise<Checked>;
  /** Findings of all processes that no report has recorded yet; damage stays until a check or a restore clears it. */
  findings(): Promise<Finding[]>;
}

export type Durability = "power" | "process";

/** What a store asks of the program that has it open, which sets these. */
export interface StoreHooks {
  /** The error with which every write is rejected; null: writes are accepted. */
  refuseWrites: (() => HoldfastError) | null;
  /** Finds missing artifacts inside a transaction. Until it is set, references are not checked. */
  missingArtifacts(hashes: Iterable<string>): readonly string[];
  /** Writes or claims are rejected from now on; null: they are accepted again. */
  onDamaged(error: HoldfastError | null): void;
}

export function newHooks(): StoreHooks {
  return { refuseWrites: null, missingArtifacts: () => [], onDamaged: () => {} };
}
