import { approve, type Budget, fromBudget, refusedToken, type StoredToken } from "../core/pipelines/budget.ts";
import {
  type BuildFacts,
  type BuildReason,
  type BuildState,
  mayMoveBuild,
  startsNothingNew,
  type WantedMove,
} from "../core/pipelines/build.ts";
import type { Amount, Cost } from "../core/pipelines/cost.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { type BuildKey, parseBuildId, type ProcessId } from "../core/text/ids.ts";
import { pipelineChanged, type PipelineDescription } from "../core/pipelines/pipeline.ts";
import { type Flag, isYes } from "./job-row.ts";
import type { KnownProcesses } from "./processes.ts";
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
  start(build: NewBuild): Promise<OrchestratedBuild | LockConflict | { paused: string }>;
  /**
   * Takes the lock, uses the token up, sets the budget and continues the build, in one commit. What had failed is no longer
   * counted: it is run again (`OrchestratedBuild.retries`). Throws core's refusals (NO_SUCH_BUILD, state, token, PIPELINE_CHANGED).
   */
  resume(build: ResumeBuild): Promise<OrchestratedBuild | LockConflict>;
  /**
   * Lets the queue of an ACTIVE build go on that rested because of what builds before it had left, if nothing of that is there
   * any more (`clearWork`). False: there is, or the token is not the lock's.
   */
  letRun(build: string, lock: LockToken): Promise<boolean>;
  /**
   * By the orchestrator: refused (`null`) when the lock of this build is not `lock.token`'s any more. The lock is let go when
   * the build is not ACTIVE after it. By a process without the lock (`by`), for what needs none: a paused build that fails.
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
  list(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }>;

  // ── the orchestrator's lock ──
  /** Says that the holder lives. False: the token is not the lock's any more. */
  beat(lock: LockToken): Promise<boolean>;
  /** Of all pipelines, if none is named. */
  orchestratorLocks(pipeline?: string): Promise<OrchestratorLockRow[]>;
  /**
   * Removes the lock of any holder, and its ACTIVE build is CRASHED: an operator's act. `holder`: only that one's, for who
   * has found it dead: another process may have taken the lock since.
   */
  breakLead(pipeline: string, by: string, holder?: ProcessId): Promise<boolean>;
  /**
   * Moves ACTIVE builds without a live orchestrator to CRASHED, removes their locks and pauses their queues: those of one of
   * the `dead`, without a lock, of a process that is not registered, or, unless among `alive`, without a heartbeat for `TTL`.
   */
  orphan(known: KnownProcesses, reason: BuildReason): Promise<BuildRow[]>;
}

/** How long an orchestrator on another host may say nothing. */
export const ORCHESTRATOR_TTL_MS = 10 * 60_000;

export interface NewBuild {
  pipeline: string;
  /** The queue of its work items; it is paused whenever the build is not ACTIVE. */
  queue: string;
  /** `pipelineHash`, and what it was made of, as JSON. */
  hash: string;
  description: string;
  /** Rerun, only, … as JSON, for the processes that work on it. */
  options: string;
  budget: Budget;
  maxFailures: number | null;
  /** In order. */
  stages: readonly string[];
  lead: NewOrchestratorLock;
  /** The job that lists the source; its `work` names no build yet. */
  listing: NewJob;
}

export interface ResumeBuild {
  build: string;
  /** Of the pipeline as it is now, and what it was made of, as JSON. */
  hash: string;
  description: string;
  lead: NewOrchestratorLock;
  approval?: Approval;
}

/** What an operator gives so that a paused build continues. */
export interface Approval {
  token: unknown;
  budget: Cost;
}

/** The orchestrator's lock. */
export interface LockToken {
  pipeline: string;
  token: string;
}

export interface NewOrchestratorLock {
  token: string;
  holder: ProcessId;
  pid: number;
  host: string;
  /** Its name, for people. */
  program: string;
  /** Of the files of the program that builds the pipeline; "" if it is not known. For people and the audit: it decides nothing. */
  programHash: string;
}

export interface OrchestratorLockRow extends Omit<NewOrchestratorLock, "token"> {
  pipeline: string;
  build: string;
  acquiredAt: number;
  beatAt: number;
}

/** Another process leads the pipeline's build. */
export interface LockConflict {
  conflict: OrchestratorLockRow;
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
export interface OrchestratedBuild extends BuildRow {
  /** Work of builds before it is left, so its queue rests, and no worker claims that: see `letRun`. */
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

/** Which builds are listed. */
export type BuildFilter =
  | { id: string }
  /** In creation order. */
  | { pipeline?: string; state?: BuildState; limit: number; after?: string }
  /** The newest of a pipeline, whatever its state; of one state, if given. */
  | { pipeline: string; state?: BuildState; newest: true }
  /** The newest of each pipeline, by its name; every build that has not ended is among them. It costs what there are pipelines, not builds. */
  | { newest: true };

export async function buildById(builds: Pick<BuildStore, "list">, id: string): Promise<BuildRow | null> {
  return (await builds.list({ id })).items[0] ?? null;
}

export async function newestBuild(builds: BuildStore, pipeline: string, state?: BuildState): Promise<BuildRow | null> {
  return (await builds.list({ pipeline, newest: true, ...(state === undefined ? {} : { state }) })).items[0] ?? null;
}

export async function leadOf(builds: BuildStore, pipeline: string): Promise<OrchestratorLockRow | null> {
  return (await builds.orchestratorLocks(pipeline))[0] ?? null;
}

/** What is read of a build. */
export const BUILD = `key, id, pipeline, queue, state, reason, note, seq, hash, description, options,
  budget_micros, budget_tokens, spent_micros, spent_tokens, reserved_micros, reserved_tokens, approved, blocked,
  refused_micros, refused_tokens, max_failures, round, listing, open, failed, created_at, finished_at`;

export interface BuildColumns extends Pick<
  BuildRow,
  | "key"
  | "id"
  | "pipeline"
  | "queue"
  | "state"
  | "reason"
  | "note"
  | "seq"
  | "hash"
  | "description"
  | "options"
  | "blocked"
  | "round"
  | "listing"
  | "open"
  | "failed"
> {
  budget_micros: number | null;
  budget_tokens: number | null;
  spent_micros: number;
  spent_tokens: number;
  reserved_micros: number;
  reserved_tokens: number;
  approved: Flag;
  refused_micros: number;
  refused_tokens: number;
  max_failures: number | null;
  created_at: number;
  finished_at: number | null;
}

/** `stages` in their order. */
export function toBuild(row: BuildColumns, stages: readonly StageCounts[]): BuildRow {
  return {
    key: row.key,
    id: row.id,
    pipeline: row.pipeline,
    queue: row.queue,
    state: row.state,
    reason: row.reason,
    note: row.note,
    seq: row.seq,
    hash: row.hash,
    description: row.description,
    options: row.options,
    budget: { micros: row.budget_micros, tokens: row.budget_tokens },
    spent: { micros: row.spent_micros, tokens: row.spent_tokens },
    reserved: { micros: row.reserved_micros, tokens: row.reserved_tokens },
    approved: isYes(row.approved),
    maxFailures: row.max_failures,
    round: row.round,
    listing: row.listing,
    open: row.open,
    failed: row.failed,
    blocked: row.blocked,
    refused: { micros: row.refused_micros, tokens: row.refused_tokens },
    createdAt: row.created_at,
    finishedAt: row.finished_at,
    stages: stages.map(({ stage, ran, cached, failed, passed, open }) => ({ stage, ran, cached, failed, passed, open })),
  };
}

/** A page of a list, of which one more was read to see whether there is more. */
export function buildPage(builds: BuildRow[], limit: number): { items: BuildRow[]; next?: string } {
  const items = builds.slice(0, limit);
  const last = items.at(-1);
  return builds.length > limit && last !== undefined ? { items, next: last.id } : { items };
}

/** The key after which a page begins. */
export function keyOfBuildCursor(after: string | undefined): BuildKey | 0 {
  if (after === undefined) return 0;
  const parsed = parseBuildId(after);
  if (parsed !== null) return parsed.key;
  throw new HoldfastError("OPTION_INVALID", "`after` is not a cursor of this list.", "Give `next` of the previous page.");
}

/** What is read of the orchestrator's lock; `build` is the build's id. */
export interface OrchestratorLockColumns extends OrchestratorLockRow {
  token: string;
  key: BuildKey;
}

/** The token is its holder's business. */
export function toOrchestratorLock(row: OrchestratorLockColumns): OrchestratorLockRow {
  const { pipeline, build, holder, pid, host, program, programHash, acquiredAt, beatAt } = row;
  return { pipeline, build, holder, pid, host, program, programHash, acquiredAt, beatAt };
}

export interface TokenColumns {
  hash: string;
  build: string;
  pause: number;
  minted_at: number;
  expires_at: number;
  used_at: number | null;
  replaced_at: number | null;
}

export function toToken(row: TokenColumns): StoredToken {
  const { hash, build, pause, minted_at, expires_at, used_at, replaced_at } = row;
  return { hash, build, pause, mintedAt: minted_at, expiresAt: expires_at, usedAt: used_at, replacedAt: replaced_at };
}

/**
 * What `results.build` holds for a failure that a resumed build has yet to run again: the failure is counted nowhere until
 * then. Superseded results have their own negated key there, which is never this small.
 */
export function retriedIn(build: BuildKey): number {
  return -(2 ** 52) - build;
}

/** The job that lists a round, as a work item of this build. */
export function listingOf(build: BuildKey, listing: NewJob): NewJob {
  return listing.work === undefined ? listing : { ...listing, work: { ...listing.work, build } };
}

export function noSuchBuild(id: string): HoldfastError {
  return new HoldfastError(
    "NO_SUCH_BUILD",
    `There is no build ${id}.`,
    "Call builds.list(), or run `holdfast builds list`, to see the builds.",
  );
}

/** What is asked of core about builds, and with which facts: the same on every store. */
export const STARTED = { move: "start", reason: "started" } as const satisfies WantedMove;
export const LOST = { move: "crash", reason: "orchestrator_lost" } as const satisfies WantedMove;
export const REPLACED = {
  move: "abandon",
  reason: "abandoned",
  note: "another build was started",
} as const satisfies WantedMove;

export function brokenBy(by: string): WantedMove {
  return { ...LOST, note: `the lock was broken by ${by}` };
}

/** Of a build as it was read, by a process that holds its lock, or does not. */
export function factsOf(
  build: BuildRow,
  { isRetrying, ...known }: { holdsLock: boolean; running: number; isRetrying: boolean; tokenMinted: boolean },
): BuildFacts {
  const listings = build.listing === "done" && !isRetrying ? 0 : 1;
  return { ...known, left: build.open + listings, failed: build.failed };
}

/** Whether an ACTIVE build starts nothing new, for its budget or for what has failed: its queue rests. */
export function startsNothing(build: BuildRow): boolean {
  return build.blocked !== null || startsNothingNew({ ...build, running: 0, left: build.open });
}

/** How a build continues whose lock was just taken; throws if its pipeline is another by now. A token is used after that. */
export function resumption(build: BuildRow, wanted: ResumeBuild): { move: WantedMove; facts: BuildFacts } {
  const samePipeline = build.hash === wanted.hash;
  if (!samePipeline && mayMoveBuild("resume", build.state)) {
    throw pipelineChanged(build.id, described(build.description), described(wanted.description));
  }
  const reason = build.state === "BUDGET_PAUSE" ? "budget_approved" : "resumed";
  return { move: { move: "resume", reason }, facts: { holdsLock: true, samePipeline, approved: true } };
}

/** The budget with which a build continues without a token: the one that it has, if it needs none, or none any more. */
export function budgetOf(build: BuildRow): Budget {
  if (build.state !== "BUDGET_PAUSE") return build.budget;
  if (!build.approved) throw refusedToken({ code: "TOKEN_NEEDED" }, build);
  // What was in flight at the pause may have cost more since than was approved.
  return approve(build, fromBudget(build.budget), build.refused);
}

/** For the audit: that it continues by a token, and not which one. */
export function tokenUse({ approval }: Pick<ResumeBuild, "approval">): { more?: object } {
  return approval === undefined ? {} : { more: { token: "used" } };
}

function described(text: string): PipelineDescription {
  return JSON.parse(text) as PipelineDescription;
}
