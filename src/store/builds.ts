import {
  approveBudget,
  type Budget,
  fromBudget,
  refusedToken,
  type StoredToken,
  type Amount,
  type Cost,
} from "../core/pipelines/budget.ts";
import {
  type BuildConditions,
  type BuildReason,
  type BuildState,
  mayMoveBuild,
  startsNothingNew,
  type WantedMove,
} from "../core/pipelines/build.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { type BuildKey, parseBuildId, type ProcessId } from "../core/text/ids.ts";
import { pipelineChanged, type PipelineDescription } from "../core/pipelines/pipeline.ts";
import { type Flag, isYes } from "./job-row.ts";
import type { NewJob, BuildStore } from "./store.ts";

export const ORCHESTRATOR_TTL_MS = 10 * 60_000;

export interface NewBuild {
  pipeline: string;
  queue: string;
  hash: string;
  description: string;
  options: string;
  budget: Budget;
  maxFailures: number | null;
  stages: readonly string[];
  lead: NewOrchestratorLock;
  listing: NewJob;
}

export type StartedBuild = OrchestratedBuild | LockConflict | { paused: string };

export interface ResumeBuild {
  build: string;
  hash: string;
  description: string;
  lead: NewOrchestratorLock;
  approval?: Approval;
  /** False: a program resumes the build, and a supervisor may restart that program again and again. */
  byOperator?: boolean;
}

export interface Approval {
  token: unknown;
  budget: Cost;
}

export interface LockToken {
  pipeline: string;
  token: string;
}

export interface ByOperator {
  by: string;
  holder?: ProcessId;
}

export interface NewOrchestratorLock {
  token: string;
  holder: ProcessId;
  pid: number;
  host: string;
  program: string;
  /** Hash of the program's files, only for people and the audit; "": unknown. */
  programHash: string;
}

export interface OrchestratorLockRow extends Omit<NewOrchestratorLock, "token"> {
  pipeline: string;
  build: string;
  acquiredAt: number;
  beatAt: number;
}

export interface LockConflict {
  conflict: OrchestratorLockRow;
}

export interface NewRound {
  round: number;
  listing: NewJob;
}

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
  /** An operator has used a token since the build paused, and the build has not continued yet. */
  approved: boolean;
  maxFailures: number | null;
  round: number;
  listing: "running" | "done" | "failed";
  /** Unfinished work items, without the listing. */
  open: number;
  /** Failed targets that were not superseded or tried again since. */
  failed: number;
  /** Why the budget kept a job from starting. */
  blocked: "budget_precheck_block" | "budget_exceeded" | null;
  refused: Amount;
  createdAt: number;
  finishedAt: number | null;
  stages: StageCounts[];
}

export interface OrchestratedBuild extends BuildRow {
  /** The queue is paused, because work of earlier builds is left: see `advance`. */
  isQueuePaused: boolean;
  /** `advance` to round 0 has yet to list the targets again that failed before the resume. */
  retries: boolean;
}

export interface StageCounts {
  stage: string;
  ran: number;
  cached: number;
  failed: number;
  passed: number;
  open: number;
}

export type BuildFilter =
  | { id: string }
  | { pipeline?: string; state?: BuildState; order?: "newest" | "oldest"; limit: number; after?: string }
  /** The newest build of a pipeline, or the newest in a state. */
  | { pipeline: string; state?: BuildState; newest: true }
  /** The newest build of each pipeline, by name, and every build that has not ended. The cost grows with pipelines only. */
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

export const BUILD = `key, id, pipeline, queue, state, reason, note, seq, hash, description, options,
  budget_micros, budget_tokens, spent_micros, spent_tokens, reserved_micros, reserved_tokens, approved, blocked,
  refused_micros, refused_tokens, max_failures, round, listing, open, failed, created_at, finished_at`;

export interface BuildColumns extends Omit<
  BuildRow,
  "budget" | "spent" | "reserved" | "approved" | "maxFailures" | "refused" | "createdAt" | "finishedAt" | "stages"
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

export function buildPage(builds: BuildRow[], limit: number): { items: BuildRow[]; next?: string } {
  const items = builds.slice(0, limit);
  const last = items.at(-1);
  return builds.length > limit && last !== undefined ? { items, next: last.id } : { items };
}

export function keyOfBuildCursor(after: string | undefined): BuildKey | 0 {
  if (after === undefined) return 0;
  const parsed = parseBuildId(after);
  if (parsed !== null) return parsed.key;
  throw new HoldfastError("OPTION_INVALID", "`after` is not a cursor of this list.", "Give `next` of the previous page.");
}

export interface OrchestratorLockColumns extends OrchestratorLockRow {
  token: string;
  key: BuildKey;
}

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

/** Returns `results.build` of a failure that a resumed build has yet to retry, below the negated keys of superseded ones. */
export function retriedIn(build: BuildKey): number {
  return -(2 ** 52) - build;
}

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

export const STARTED = { move: "start", reason: "started" } as const satisfies WantedMove;
export const LOST = { move: "crash", reason: "orchestrator_lost" } as const satisfies WantedMove;
export const REPLACED = {
  move: "abandon",
  reason: "abandoned",
  note: "another build was started",
} as const satisfies WantedMove;

export function abandonment(note: string): WantedMove {
  return { move: "abandon", reason: "abandoned", note };
}

/** Removes a lock for an operator, and crashes its ACTIVE build. With `holder`, only if that process still holds the lock. */
export async function breakOrchestratorLock(builds: BuildStore, pipeline: string, operator: ByOperator): Promise<boolean> {
  const lock = await leadOf(builds, pipeline);
  if (lock === null) return false;
  try {
    return (await builds.move(lock.build, { ...LOST, note: `the lock was broken by ${operator.by}` }, operator)) !== null;
  } catch (error) {
    // The build has left ACTIVE, which released its lock, since it was read.
    if (error instanceof HoldfastError && error.code === "BUILD_STATE") return false;
    throw error;
  }
}

export function factsOf(
  build: BuildRow,
  { isRetrying, ...known }: { holdsLock: boolean; running: number; isRetrying: boolean; tokenMinted: boolean },
): BuildConditions {
  const listings = build.listing === "done" && !isRetrying ? 0 : 1;
  return { ...known, left: build.open + listings, failed: build.failed };
}

export function startsNothing(build: BuildRow): boolean {
  return build.blocked !== null || startsNothingNew(build);
}

/** Returns how a build resumes. Throws if the pipeline has changed, before a token is used. */
export function resumption(build: BuildRow, wanted: ResumeBuild): { move: WantedMove; facts: BuildConditions } {
  const samePipeline = build.hash === wanted.hash;
  if (!samePipeline && mayMoveBuild("resume", build.state)) {
    throw pipelineChanged(build.id, described(build.description), described(wanted.description));
  }
  const reason = build.state === "BUDGET_PAUSE" ? "budget_approved" : "resumed";
  return { move: { move: "resume", reason }, facts: { holdsLock: true, samePipeline, approved: true } };
}

export function budgetOf(build: BuildRow): Budget {
  if (build.state !== "BUDGET_PAUSE") return build.budget;
  if (!build.approved) throw refusedToken("TOKEN_NEEDED", build);
  // Attempts that ran during the pause may have cost more than was approved.
  return approveBudget(build, fromBudget(build.budget), build.refused);
}

export function tokenUse({ approval }: Pick<ResumeBuild, "approval">): { more?: object } {
  return approval === undefined ? {} : { more: { token: "used" } };
}

function described(text: string): PipelineDescription {
  return JSON.parse(text) as PipelineDescription;
}
