import type { Enqueued } from "../core/jobs/admission.ts";
import type { CommitRows, FinishedState } from "../core/jobs/job.ts";
import type { Clock } from "../core/text/duration.ts";
import type { ClaimSource, Outlook } from "../core/jobs/claiming.ts";
import type { HoldfastError } from "../core/text/errors.ts";
import type { Fence, JobKey, ProcessId } from "../core/text/ids.ts";
import type { Fate, LeaseRef } from "../core/jobs/lease.ts";
import type { Next, Outcome, Policy, Reclaimed } from "../core/jobs/retry.ts";
import type { Declaration } from "../core/limits/settings.ts";
import type { AuditStore } from "./audit.ts";
import type { BuildStore } from "./builds.ts";
import type { EventStore, SinkStore } from "./events.ts";
import type { DamageStore, MaintenanceStore } from "./maintenance.ts";
import type { LockStore, QueueStore, ScheduleStore } from "./queues.ts";
import type { QueryStore } from "./queries.ts";
import type { ProcessStore } from "./processes.ts";
import type { RecoveryStore } from "./recoveries.ts";
import type { NewWork, WorkEnd, WorkStore } from "./work.ts";

export type { ClaimSource, Declaration, Enqueued, Fate, Outlook, Reclaimed };

/**
 * Where jobs live. Each call is one atomic unit: it happened, durably, when its promise resolves, or it did not happen.
 * Calls made in one turn of the event loop share one commit, in the order they were made, and fail apart.
 *
 * What may be refused in the ordinary course of things (a duplicate, a lost lease) is a value here, never an exception.
 */
export interface Store {
  /** Made with the database, once; part of every idempotency key. */
  readonly databaseId: string;
  /** "power": an answer survives a power cut. "process": it survives the process only. */
  readonly durability: Durability;
  /** The time that is written: the given clock's, or that of the database, as far as it is known here. */
  readonly clock: Clock;
  /** What there is. */
  readonly queries: QueryStore;
  readonly queues: QueueStore;
  /** Runs of pipelines. */
  readonly builds: BuildStore;
  /** What they work on. */
  readonly work: WorkStore;
  /** Audit entries: what operators, recovery and builds did, by the actor that has the store open. */
  readonly audit: AuditStore;
  /** What is wrong with it. */
  readonly damage: DamageStore;
  readonly maintenance: MaintenanceStore;
  /** What is done about processes that died. */
  readonly recoveries: RecoveryStore;
  /** Who has it open. */
  readonly processes: ProcessStore;
  readonly locks: LockStore;
  readonly schedules: ScheduleStore;
  readonly events: EventStore;
  /** Sinks and durable subscribers. */
  readonly sinks: SinkStore;

  // ── jobs in ──
  /** Each by itself, or, `whole`, all or none: when an id of theirs is taken, nothing is added and the answer is that one alone. */
  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]>;

  /**
   * In a transaction of the caller's own, all or none: there when he commits, gone when he rolls back. Refused with an
   * error, before anything is written, where he could not keep what this store promises. A store that runs in this
   * process answers, or throws, at once.
   */
  enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Enqueued[] | Promise<Enqueued[]>;
  /**
   * The caller's own synchronous work and what it enqueues within `handle`, in one commit. It is called once, when
   * no other call can write; what it throws undoes all of it, and is the answer. Refused by stores in other processes.
   */
  transact<T>(work: (handle: object) => T): Promise<T>;

  // ── jobs out ──
  /** Promotes what is due, then takes up to `max` jobs: by priority, then first in, first out, queue by queue in fair shares. */
  claim(request: ClaimRequest): Promise<Claimed[]>;
  /** Each lease is extended to now + its `lease`; the answer says which of them are gone, and why. */
  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<Fate[]>;
  /**
   * Ends attempts. All that belongs to one (outcome, checkpoint, follow-ups) is written together, or refused together. Where
   * it rejects, none has ended. A settlement with `commit` is the only one of its call; it rejects with `CommitRowsFailed` when a callback threw.
   */
  settle(settlements: readonly Settlement[]): Promise<Fate[]>;
  saveCheckpoint(lease: LeaseRef, value: string | null): Promise<Fate>;
  loadCheckpoint(job: JobKey): Promise<string | null>;
  saveProgress(reports: readonly ProgressReport[]): Promise<Fate[]>;
  /** The state of leases that the caller believes to hold; reads only. */
  inspect(leases: readonly LeaseRef[]): Promise<Fate[]>;
  /** How long until the next delayed job of these is due, null when there is none; `ready` when something can be claimed now. */
  outlook(from: readonly ClaimSource[]): Promise<Outlook>;

  // ── operating ──
  cancel(id: string): Promise<boolean>;
  /** failed or quarantined → pending, with fresh counts; "key-taken" when another unfinished job has its key by now. */
  retry(id: string): Promise<boolean | "key-taken">;
  /** Removes finished jobs; the ids their callers chose stay remembered. */
  prune(filter: PruneFilter): Promise<number>;
  /**
   * One small step of forgetting finished jobs that their queue need not keep, but none that ended less than `leastAge`
   * ago; `more`: another step is worth while.
   */
  expire(limit: number, leastAge?: number): Promise<{ removed: number; more: boolean }>;

  // ── changes ──
  /** Calls after each commit of this store, and of others too unless `ownOnly`: watching for theirs costs. Returns the way to stop. */
  onChange(call: (change: Change) => void, options?: ChangeOptions): () => void;
  /** From now on every write is refused with what this makes; reads go on. Null: they are taken again. */
  seal(refusal: (() => HoldfastError) | null): void;
  close(): Promise<void>;
}

export type Durability = "power" | "process";

export interface NewJob {
  name: string;
  queue: string;
  version: number;
  policy: Policy;
  input: string | null;
  priority: number;
  /** From the store's now. */
  delay: number;
  /** An instant instead of a delay. */
  runAt?: number;
  /** Chosen by the caller: one job ever. */
  id?: string;
  /** Made by the engine for a follow-up, whose id is known before it is committed. */
  followUpId?: string;
  /** One unfinished job of this name. */
  key?: string;
  /** The tick of the schedule that made it. */
  scheduledFor?: number;
  /** The ids of jobs that must succeed first. */
  after?: readonly string[];
  /** What its definition says about its queue and its limits; the same object for all jobs of a definition. */
  declares?: Declaration;
  /** The job's key for each of the limits that are declared, in their order. */
  limitKeys?: readonly string[];
  /** It is a work item of a build. */
  work?: NewWork;
}

export interface ClaimRequest {
  from: readonly ClaimSource[];
  max: number;
  /** The process whose life vouches for the claim; null for a claim by hand, where the lease alone decides. */
  holder: ProcessId | null;
  /** Who claims, for people to read. */
  worker: string;
  /** Take the queue's lock with the claim: its token. */
  exclusive?: string;
  /** Called before the answer, where the claim itself shows it: the outlook behind it, which need not be asked for then. */
  left?: (outlook: Outlook) => void;
}

/** What a worker needs to run a job. `Store.get` has the rest. */
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
}

export interface Settlement extends LeaseRef {
  outcome: Outcome;
  followUps?: readonly NewJob[] | undefined;
  /** Of a success: callbacks that write the user's own rows in the same transaction, in this order. */
  commit?: readonly CommitRows[] | undefined;
  /** Of a work item: what belongs to its end. */
  work?: WorkEnd | undefined;
  /** Set by the store when it writes an outcome other than a success: the state that the job gets. */
  decided?: Next | undefined;
}

export interface ProgressReport extends LeaseRef {
  fraction: number;
  message: string | null;
}

export interface PruneFilter {
  state: FinishedState;
  queue?: string;
  ids?: readonly string[];
  finishedBefore?: number;
  limit: number;
}

export interface ChangeOptions {
  ownOnly?: boolean;
  /** Called when jobs are handed in, before their commit: a claim made at once is part of it. */
  onIncoming?: () => void;
}

export interface Change {
  /** By this store's own commit, or by another's. */
  own: boolean;
  /** Jobs of these queues may have become claimable; null when it cannot be told. */
  ready: ReadonlySet<string> | null;
  /** These leases ended other than by their holder's settling, e.g. by `cancel`. */
  ended: readonly { job: JobKey; fence: Fence }[];
}
