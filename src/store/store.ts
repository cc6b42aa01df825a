import type { Enqueued } from "../core/jobs/admission.ts";
import type { LogLine } from "../core/jobs/attempts.ts";
import type { CommitRows, FinishedState } from "../core/jobs/job.ts";
import type { Clock } from "../core/text/duration.ts";
import type { ClaimSource, ClaimOutlook } from "../core/jobs/claiming.ts";
import type { Amount } from "../core/pipelines/cost.ts";
import type { HoldfastError } from "../core/text/errors.ts";
import type { Fence, JobKey, ProcessId } from "../core/text/ids.ts";
import type { LeaseState, LeaseRef } from "../core/jobs/lease.ts";
import type { Next, Outcome, Policy, Reclaimed } from "../core/jobs/retry.ts";
import type { Declaration } from "../core/limits/settings.ts";
import type { AuditStore } from "./audit.ts";
import type { BuildStore } from "./builds.ts";
import type { EventStore } from "./events.ts";
import type { DamageStore, MaintenanceStore } from "./maintenance.ts";
import type { LockStore, QueueStore, ScheduleStore } from "./queues.ts";
import type { QueryStore } from "./queries.ts";
import type { ProcessStore } from "./processes.ts";
import type { RecoveryStore } from "./recoveries.ts";
import type { NewWork, WorkEnd, WorkStore } from "./work.ts";

export type { ClaimSource, Declaration, Enqueued, LeaseState, ClaimOutlook, Reclaimed };

/**
 * Where jobs live. Each call is one atomic unit: when its promise resolves, it has happened durably; otherwise it has not. Calls
 * of one turn of the event loop share one commit, in their order, and fail apart. Expected refusals (a duplicate, a lost lease)
 * are values, not exceptions.
 */
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

  /**
   * Enqueues in the caller's own transaction, all or none. Rejects before anything is written if that transaction cannot keep this
   * store's promises. A SQLite store answers or throws synchronously.
   */
  enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Enqueued[] | Promise<Enqueued[]>;
  /** Runs a synchronous callback, and what it enqueues within `handle`, in one commit. Its error rolls all back. SQLite only. */
  transact<T>(work: (handle: object) => T): Promise<T>;

  /** Claims up to `max` due jobs: by priority, then first in, first out, in fair shares of the queues. */
  claim(request: ClaimRequest): Promise<Claimed[]>;
  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<LeaseState[]>;
  /**
   * Ends attempts: outcome, checkpoint and follow-ups of one are written together, or rejected together. If it rejects, none has
   * ended. A settlement with `commit` is the only one of its call; `CommitRowsFailed`: a callback threw.
   */
  settle(settlements: readonly Settlement[]): Promise<LeaseState[]>;
  /** What running attempts report: progress, for people; the checkpoint that the job's next attempt loads; their cost so far. */
  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]>;
  /** Adds lines to the log of attempts, which may have ended meanwhile. */
  saveLogs(logs: readonly AttemptLog[]): Promise<void>;
  loadCheckpoint(job: JobKey): Promise<string | null>;
  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]>;
  /** When the next delayed job is due, and whether a job can be claimed now. */
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

export interface NewJob {
  name: string;
  queue: string;
  version: number;
  policy: Policy;
  input: string | null;
  priority: number;
  delay: number;
  runAt?: number;
  /** Chosen by the caller: one job ever. */
  id?: string;
  /** Made by the engine for a follow-up, whose id is known before its commit. */
  followUpId?: string;
  /** One unfinished job of this name. */
  key?: string;
  /** An unfinished job with the key gets this input; while it runs, this job waits behind it. */
  replaces?: boolean;
  /** Set by the store: the running job behind which it waits. */
  behind?: { id: string; job: JobKey };
  scheduledFor?: number;
  after?: readonly string[];
  tags?: readonly string[];
  /** Where a trace of the producer continues, as W3C's traceparent. */
  trace?: string | undefined;
  /** Settings of its queue and limits; the same object for all jobs of a definition. */
  declares?: Declaration;
  /** The job's key for each declared limit, in their order. */
  limitKeys?: readonly string[];
  work?: NewWork;
}

export interface ClaimRequest {
  from: readonly ClaimSource[];
  max: number;
  /** The process that vouches for the claim; null for a claim by hand, where only the lease counts. */
  holder: ProcessId | null;
  worker: string;
  /** The token for the queue's lock, which an exclusive claim takes. */
  exclusive?: string;
  /** Called before the answer if the claim itself shows the outlook after it. */
  left?: (outlook: ClaimOutlook) => void;
}

export interface Claimed extends LeaseRef {
  id: string;
  name: string;
  queue: string;
  version: number;
  input: string | null;
  attempt: number;
  priority: number;
  policy: Policy;
  lease: number;
  expiresAt: number;
  scheduledFor: number | null;
  createdAt: number;
}

export interface Settlement extends LeaseRef {
  outcome: Outcome;
  followUps?: readonly NewJob[] | undefined;
  /** Of a success: callbacks that write the user's rows in the same transaction. */
  commit?: readonly CommitRows[] | undefined;
  work?: WorkEnd | undefined;
  decided?: Next | undefined;
}

export type ProgressReport = LeaseRef &
  ({ fraction: number; message: string | null } | { checkpoint: string | null } | { cost: Amount });

/** Lines that an attempt has logged, in their order. */
export interface AttemptLog extends LeaseRef {
  /** Number of the first of these lines within the attempt, from 1 on. */
  first: number;
  lines: readonly LogLine[];
  /** How many lines of an attempt are kept. */
  keep: number;
}

export interface PruneFilter {
  state: FinishedState;
  queue?: string;
  ids?: readonly string[];
  finishedBefore?: number;
  limit: number;
}

/** Jobs that their queue need not keep, and that ended at least `minAge` milliseconds ago. */
export interface Expired {
  expired: { minAge: number };
  limit: number;
}

export interface Pruned {
  removed: number;
  more: boolean;
}

export interface ChangeOptions {
  ownOnly?: boolean;
  /** Called when jobs are handed in, before their commit: a claim made at once joins it. */
  onIncoming?: () => void;
}

export interface Change {
  own: boolean;
  /** Queues whose jobs may have become claimable; null: unknown. */
  ready: ReadonlySet<string> | null;
  /** Leases that ended other than by their holder's settle, e.g. by `cancel`. */
  ended: readonly { job: JobKey; fence: Fence }[];
}
