import type { BuildReason, BuildState, WantedMove } from "../core/build.ts";
import type { Budget } from "../core/budget.ts";
import type { Amount, Cost } from "../core/cost.ts";
import type { BuildKey, ProcessId } from "../core/ids.ts";
import type { NewJob } from "./store.ts";

/**
 * Where builds live: runs of pipelines, their states, their money, and who leads them. The same rules as in `Store`: each
 * call is one atomic unit, and what may be refused in the ordinary course of things is a value. Decisions are core's: a
 * method reads the row inside its transaction, asks core, and writes what core says. Each transition has its number, its
 * audit entry and its event in its transaction, and the build's queue is paused whenever the build is not ACTIVE, or work is
 * left of builds before it.
 */
export interface BuildStore {
  // ── builds ──
  /**
   * Takes the lock of the pipeline and makes a build, PENDING → ACTIVE, with its first listing job, in one commit. A
   * CRASHED build of the pipeline is abandoned with it.
   */
  start(build: NewBuild): Promise<LedBuild | LockConflict | { paused: string }>;
  /**
   * Takes the lock, uses the token up, sets the budget and continues the build, in one commit. What had failed is no longer
   * counted: it is run again (`LedBuild.retries`). Throws core's refusals (NO_SUCH_BUILD, state, token, PIPELINE_CHANGED).
   */
  resume(build: ResumeBuild): Promise<LedBuild | LockConflict>;
  /**
   * Lets the queue of an ACTIVE build go on that rested because of what builds before it had left, if nothing of that is there
   * any more (`clearWork`). False: there is, or the token is not the lock's.
   */
  letRun(build: string, lock: LockToken): Promise<boolean>;
  /**
   * By the orchestrator: refused (`null`) when the lock of this build is not `lock.token`'s any more. The lock is let go when
   * the build is not ACTIVE after it. By somebody without the lock (`by`), for what needs none: a paused build that fails.
   */
  move(build: string, move: WantedMove, lock: LockToken | { by: string }, mint?: MintedToken): Promise<BuildRow | null>;
  /** By an operator, whatever the lock. The lock goes with it, so that its orchestrator stops. Null: no such build. */
  abandon(build: string, note: string, by: string): Promise<BuildRow | null>;
  /** Token and budget, without running anything: the next `resume` needs no token. Throws core's refusals. */
  approve(build: string, approval: Approval, by: string): Promise<BuildRow | null>;
  /** Another token for a paused build; those before it do not count any more. */
  mintToken(build: string, minted: MintedToken, by: string): Promise<BuildRow | null>;
  /**
   * The next round (see `BuildRow.round`) and its listing job; or round 0 again, to list what failed before the resume, once
   * nothing of a later round is open. False: the build is not ready for it, not ACTIVE, or the token is not the lock's.
   */
  nextRound(build: string, round: number, listing: NewJob, lock: LockToken): Promise<boolean>;
  getBuild(id: string): Promise<BuildRow | null>;
  /** In creation order. */
  listBuilds(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }>;
  /** The newest of a pipeline, whatever its state; of one state, if given. */
  newestBuild(pipeline: string, state?: BuildState): Promise<BuildRow | null>;
  /** The newest of each pipeline, by its name: whatever has not ended is among them. It costs what there are pipelines, not builds. */
  newestBuilds(): Promise<BuildRow[]>;

  // ── the orchestrator's lock ──
  /** Says that the holder lives. False: the token is not the lock's any more. */
  beat(lock: LockToken): Promise<boolean>;
  getLead(pipeline: string): Promise<LeadView | null>;
  leads(): Promise<LeadView[]>;
  /**
   * Removes the lock whoever holds it, and its ACTIVE build is CRASHED: an operator's act. `holder`: only that one's, for who
   * has found it dead: somebody else may have taken the lock since.
   */
  breakLead(pipeline: string, by: string, holder?: ProcessId): Promise<boolean>;
  /**
   * ACTIVE builds without a living lead become CRASHED, their locks go, their queues rest: those led by one of the `dead`, by
   * nobody, by a process that is not registered any more, or, unless among `alive`, by one that has not said so for `TTL`.
   */
  orphan(known: { dead: readonly ProcessId[]; alive: readonly ProcessId[] }, reason: BuildReason): Promise<BuildRow[]>;
}

/** How long an orchestrator on another host may say nothing. */
export const LEAD_TTL = 10 * 60_000;

export interface NewBuild {
  pipeline: string;
  /** The queue of its work items; it is paused whenever the build is not ACTIVE. */
  queue: string;
  /** `pipelineHash`, and what it was made of, as JSON. */
  hash: string;
  description: string;
  /** Rerun, only, … as JSON, for whoever works on it. */
  options: string;
  budget: Budget;
  maxFailures: number | null;
  /** In order. */
  stages: readonly string[];
  lead: NewLead;
  /** The job that lists the source; its `work` names no build yet. */
  listing: NewJob;
}

export interface ResumeBuild {
  build: string;
  /** Of the pipeline as it is now, and what it was made of, as JSON. */
  hash: string;
  description: string;
  lead: NewLead;
  approval?: Approval;
}

/** What an operator gives so that a paused build goes on. */
export interface Approval {
  token: unknown;
  budget: Cost;
}

/** The orchestrator's lock. */
export interface LockToken {
  pipeline: string;
  token: string;
}

export interface NewLead {
  token: string;
  holder: ProcessId;
  pid: number;
  host: string;
  /** Its name, for people. */
  program: string;
  /** Of the files of the program that builds the pipeline; "" if it is not known. For people and the audit: it decides nothing. */
  programHash: string;
}

export interface LeadView extends Omit<NewLead, "token"> {
  pipeline: string;
  build: string;
  acquiredAt: number;
  beatAt: number;
}

/** Somebody else leads the pipeline's build. */
export interface LockConflict {
  conflict: LeadView;
}

/** `bytes` are random. */
export interface MintedToken {
  bytes: Uint8Array;
}

export interface BuildRow {
  key: BuildKey;
  id: string;
  pipeline: string;
  queue: string;
  state: BuildState;
  reason: BuildReason;
  note: string | null;
  seq: number;
  hash: string;
  description: string;
  options: string;
  budget: Budget;
  spent: Amount;
  reserved: Amount;
  /** A token was used for it since it paused, and it has not gone on yet. */
  approved: boolean;
  maxFailures: number | null;
  /** 0 is the source's, then one for each gather. */
  round: number;
  /** Of the round. */
  listing: "running" | "done" | "failed";
  /** Work items that have not ended, the listing's not among them. */
  open: number;
  /** Targets that have failed, and not been superseded or tried again since. */
  failed: number;
  /** The budget let something not start. */
  blocked: "budget_precheck_block" | "budget_exceeded" | null;
  /** What that was estimated at. */
  refused: Amount;
  createdAt: number;
  finishedAt: number | null;
  stages: StageCounts[];
}

/** A build that was just started or resumed. */
export interface LedBuild extends BuildRow {
  /** Work of builds before it is left, so its queue rests, and nobody claims that: see `letRun`. */
  rests: boolean;
  /** Targets that failed before the resume are to be listed again: `nextRound` with round 0. */
  retries: boolean;
}

export interface StageCounts {
  stage: string;
  ran: number;
  cached: number;
  failed: number;
  /** Passed by, because it did not match. */
  passed: number;
  /** Work items that have not ended. */
  open: number;
}

export interface BuildFilter {
  pipeline?: string;
  state?: BuildState;
  limit: number;
  after?: string;
}
