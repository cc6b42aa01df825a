import type { StoredToken } from "../core/confirmation-token.ts";
import { HoldfastError } from "../core/errors.ts";
import { type BuildKey, parseBuildId } from "../core/ids.ts";
import type { BuildRow, LeadView, StageCounts } from "./builds.ts";
import { type Flag, isYes } from "./flag.ts";
import type { NewJob } from "./store.ts";

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
  throw new HoldfastError("OPTION_INVALID", "`after` is no cursor of a list.", "Give the `next` of the page before.");
}

/** What is read of the orchestrator's lock; `build` is the build's id. */
export interface LeadColumns extends LeadView {
  token: string;
  key: BuildKey;
}

/** The token is its holder's business. */
export function toLead(row: LeadColumns): LeadView {
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
  return new HoldfastError("NO_SUCH_BUILD", `There is no build ${id}.`, "Look at the list of builds for its id.");
}
