import type { Enqueued } from "../core/jobs/admission.ts";
import type { LogLine } from "../core/jobs/attempts.ts";
import type { CommitRows, FinishedState } from "../core/jobs/job.ts";
import type { ClaimSource, ClaimOutlook } from "../core/jobs/claiming.ts";
import type { Amount, Budget } from "../core/pipelines/budget.ts";
import type { Fence, JobKey, ProcessId, ResultKey } from "../core/text/ids.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Next, Outcome, Policy } from "../core/jobs/retry.ts";
import type { Declaration } from "../core/limits/settings.ts";
import type { NewWork, WorkEnd } from "./work.ts";

export interface NewJob {
  name: string;
  queue: string;
  version: number;
  policy: Policy;
  input: string | null;
  priority: number;
  delay: number;
  runAt?: number;
  /** Id that the caller chose: at most one job ever has it. */
  id?: string;
  /** Id that the engine made for a follow-up, so that the handler has it before the commit. */
  followUpId?: string;
  /** At most one unfinished job of this name has the key. */
  key?: string;
  /** True: an unfinished job with the key gets this input, or if it runs, this job waits behind it. */
  replaces?: boolean;
  behind?: { id: string; job: JobKey };
  scheduledFor?: number;
  after?: readonly string[];
  tags?: readonly string[];
  trace?: string | undefined;
  /** Settings of the queue and its limits: the same object for all jobs of a definition. */
  declares?: Declaration;
  /** The job's key for each declared limit, in their order. */
  limitKeys?: readonly string[];
  work?: NewWork;
  /** Claims the job as it is added, unless its queue holds it back or another ready job comes before it. */
  claim?: { holder: ProcessId; lease: number };
}

/** The answer for a job, with its claim if it asked for one and got it. */
export type Added = Enqueued & { claimed?: Claimed };

export interface ClaimRequest {
  from: readonly ClaimSource[];
  max: number;
  /** The process that vouches for the claim. Null: a claim by hand, for which only the lease counts. */
  holder: ProcessId | null;
  worker: string;
  /** Token of the queue's lock, which an exclusive claim takes. */
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
  /** When the job could start: its delay was over, and the jobs that it waits for had succeeded. */
  runAt: number;
  trace: string | null;
}

export interface Settlement extends LeaseRef {
  outcome: Outcome;
  followUps?: readonly NewJob[] | undefined;
  /** Callbacks of a success that write the user's rows in the same transaction. */
  commit?: readonly CommitRows[] | undefined;
  work?: WorkEnd | undefined;
  decided?: Next | undefined;
  /** Set by the call: the job of the target's next stage, if it was claimed in the same transaction. */
  continued?: Continued | undefined;
}

export interface Continued {
  claimed: Claimed;
  /** Key of the result that the settlement has written. */
  result: ResultKey | null;
  /** The build's budget by now. */
  budget: Budget;
}

export type ProgressReport = LeaseRef &
  ({ fraction: number; message: string | null } | { checkpoint: string | null } | { cost: Amount } | AttemptLog);

export interface AttemptLog extends LeaseRef {
  /** Number of the first of these lines within the attempt, from 1 on. */
  first: number;
  lines: readonly LogLine[];
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
  /** After another process's commit the listener needs no call for this long. While all listeners pause, no file is watched. */
  pauseMs?: number;
  /** Called when jobs are handed in, before their commit, so that a claim made at once joins that commit. */
  onIncoming?: () => void;
}

export interface Change {
  own: boolean;
  /** Queues whose jobs may have become claimable; null: unknown. */
  ready: ReadonlySet<string> | null;
  /** Leases that ended other than by their holder's settle, e.g. by `cancel`. */
  ended: readonly { job: JobKey; fence: Fence }[];
}

/** How long the `commit` callbacks of one attempt may take on PostgreSQL before their transaction is rolled back. */
export const COMMIT_LIMIT_MS = 30_000;

/** Thrown by `Store.settle`: a `commit` callback threw. Nothing is committed, and the attempt still holds its lease. */
export class CommitRowsFailed extends Error {
  constructor(cause: unknown) {
    super("A `commit` callback threw, so neither its rows nor the success were committed.", { cause });
    this.name = new.target.name;
  }
}

/** Returns the only settlement of a call with `commit`, which has its own transaction: an error would roll back others. */
export function onlyOne(settlements: readonly Settlement[]): Settlement {
  const [settlement] = settlements;
  if (settlements.length === 1 && settlement !== undefined) return settlement;
  throw new Error("A settlement with `commit` must be the only one of its call.");
}
