import { HoldfastError } from "../text/errors.ts";

export type BuildState = "PENDING" | "ACTIVE" | "SUCCESS" | "FAILED" | "CRASHED" | "BUDGET_PAUSE" | "ABANDONED";

export type BuildMove = "start" | "succeed" | "fail" | "crash" | "pause" | "resume" | "abandon";

export type BuildReason =
  | "started"
  | "all_targets_done"
  /** Targets failed after their retries, and everything that could run has run. */
  | "targets_failed"
  /** The listing failed after its retries, so the targets are unknown. */
  | "source_failed"
  | "budget_refused"
  /** `open` found that the orchestrator is dead. */
  | "orphaned_at_startup"
  /** A live process found that the orchestrator died, or that its lock expired. */
  | "orchestrator_lost"
  | "stopped"
  | "budget_precheck_block"
  | "budget_exceeded"
  | "resumed"
  | "budget_approved"
  | "abandoned";

type BuildNeed =
  | "lock"
  | "same-pipeline"
  | "approval"
  | "holder-gone"
  | "nothing-running"
  | "nothing-left"
  | "nothing-failed"
  | "something-failed"
  | "token"
  | "note";

type MoveReasons = Partial<Record<BuildReason, readonly BuildNeed[]>>;

const ABANDON: MoveReasons = { abandoned: ["note"] };

/** The build's state machine. A test compares it with the picture and the table in docs/build-states.md. */
export const BUILD_MOVES: Record<BuildMove, { from: Partial<Record<BuildState, MoveReasons>>; to: BuildState }> = {
  start: { from: { PENDING: { started: ["lock"] } }, to: "ACTIVE" },
  succeed: {
    from: { ACTIVE: { all_targets_done: ["lock", "nothing-running", "nothing-left", "nothing-failed"] } },
    to: "SUCCESS",
  },
  fail: {
    from: {
      ACTIVE: { targets_failed: ["lock", "nothing-running", "something-failed"], source_failed: ["lock", "nothing-running"] },
      // The orchestrator released the lock with the pause, and attempts in flight may have ended since.
      BUDGET_PAUSE: { targets_failed: ["nothing-running", "something-failed"], budget_refused: ["note"] },
    },
    to: "FAILED",
  },
  crash: {
    from: { ACTIVE: { orphaned_at_startup: ["holder-gone"], orchestrator_lost: ["holder-gone"], stopped: ["lock"] } },
    to: "CRASHED",
  },
  pause: {
    from: { ACTIVE: { budget_precheck_block: ["lock", "token"], budget_exceeded: ["lock", "token"] } },
    to: "BUDGET_PAUSE",
  },
  resume: {
    from: {
      CRASHED: { resumed: ["lock", "same-pipeline"] },
      BUDGET_PAUSE: { budget_approved: ["lock", "same-pipeline", "approval"] },
    },
    to: "ACTIVE",
  },
  abandon: { from: { PENDING: ABANDON, ACTIVE: ABANDON, CRASHED: ABANDON, BUDGET_PAUSE: ABANDON }, to: "ABANDONED" },
};

export const BUILD_STATES: readonly BuildState[] = [
  "PENDING",
  "ACTIVE",
  "SUCCESS",
  "FAILED",
  "CRASHED",
  "BUDGET_PAUSE",
  "ABANDONED",
];

type EndedState = "SUCCESS" | "FAILED" | "ABANDONED";
export const ENDED_STATES: readonly EndedState[] = ["SUCCESS", "FAILED", "ABANDONED"];

export function hasEnded(state: BuildState): state is EndedState {
  return (ENDED_STATES as readonly BuildState[]).includes(state);
}

export function mayMoveBuild(move: BuildMove, from: BuildState): boolean {
  return BUILD_MOVES[move].from[from] !== undefined;
}

export interface MovingBuild {
  id: string;
  state: BuildState;
  seq: number;
}

/** What the caller knows of the build. An absent condition is false or unknown. */
export interface BuildConditions {
  holdsLock?: boolean;
  samePipeline?: boolean;
  /** A confirmation token was used, now or by an earlier approval, and the budget has room. */
  approved?: boolean;
  holderGone?: boolean;
  running?: number;
  /** Work that has yet to run, without work that can never run because something before it failed. */
  left?: number;
  failed?: number;
  tokenMinted?: boolean;
}

export interface BuildTransition {
  build: string;
  seq: number;
  move: BuildMove;
  from: BuildState;
  to: BuildState;
  reason: BuildReason;
  note: string | null;
}

export interface WantedMove {
  move: BuildMove;
  reason: BuildReason;
  note?: string;
}

export function moveBuild(build: MovingBuild, { move, reason, note }: WantedMove, facts: BuildConditions): BuildTransition {
  const { from, to } = BUILD_MOVES[move];
  const ways = from[build.state];
  if (ways === undefined) throw illegalMove(build, to);
  const needs = ways[reason];
  if (needs === undefined) {
    throw new HoldfastError(
      "BUILD_REASON",
      `Build ${build.id} cannot go from ${build.state} to ${to} for the reason "${reason}".`,
      `Give ${Object.keys(ways).join(" or ")}.`,
    );
  }
  for (const need of needs) {
    const { met, says, hint } = NEEDS[need];
    if (met(facts, note)) continue;
    throw new HoldfastError("BUILD_NOT_READY", `Build ${build.id} cannot go from ${build.state} to ${to}: ${says}.`, hint);
  }
  return { build: build.id, seq: build.seq + 1, move, from: build.state, to, reason, note: note ?? null };
}

export function reasonText({ reason, note }: { reason: string; note: string | null }): string {
  if (note === null) return reason;
  return reason === "budget_refused" ? `${reason}: ${note}` : note;
}

function illegalMove({ id, state }: MovingBuild, to: BuildState): HoldfastError {
  return new HoldfastError("BUILD_STATE", `Build ${id} is ${state}, so it cannot become ${to}.`, hintFor(state));
}

function hintFor(state: BuildState): string {
  const next = (Object.keys(BUILD_MOVES) as BuildMove[]).filter((move) => mayMoveBuild(move, state));
  if (next.length === 0) return "The build has ended. Start a new one, which reuses all results.";
  return `From ${state} it can become ${[...new Set(next.map((move) => BUILD_MOVES[move].to))].join(", ")}.`;
}

const NEEDS: Record<BuildNeed, { met(facts: BuildConditions, note: string | undefined): boolean; says: string; hint: string }> = {
  lock: {
    met: ({ holdsLock }) => holdsLock === true,
    says: "the lock of its pipeline is not held by who wants it",
    hint: "One process at a time moves the builds of a pipeline. Wait until it is done, or stop it.",
  },
  "same-pipeline": {
    met: ({ samePipeline }) => samePipeline === true,
    says: "its pipeline is not what it was when the build was started",
    hint: "Abandon the build and start a new one, which reuses every result that did not change.",
  },
  approval: {
    met: ({ approved }) => approved === true,
    says: "no new budget was approved",
    hint: "Give a confirmation token and a budget with room for what is left.",
  },
  "holder-gone": {
    met: ({ holderGone }) => holderGone === true,
    says: "nothing proves that its orchestrator is gone",
    hint: "Stop the process that runs it, or wait until its lock expires.",
  },
  "nothing-running": {
    met: ({ running }) => running === 0,
    says: "attempts are still in flight",
    hint: "Wait until they have ended.",
  },
  "nothing-left": { met: ({ left }) => left === 0, says: "there is still work to do", hint: "Let it run to its end." },
  "nothing-failed": {
    met: ({ failed }) => failed === 0,
    says: "targets have failed",
    hint: "It ends FAILED.",
  },
  "something-failed": {
    met: ({ failed }) => failed !== undefined && failed > 0,
    says: "no target has failed",
    hint: "It ends SUCCESS, when nothing is left.",
  },
  token: {
    met: ({ tokenMinted }) => tokenMinted === true,
    says: "there is no confirmation token for it",
    hint: "Create one in the same commit, so that an operator can approve a new budget.",
  },
  note: {
    met: (_, note) => note !== undefined && note.trim() !== "",
    says: "no reason was given",
    hint: "Give the reason in words: it is kept for those who ask later.",
  },
};

export interface BuildProgress {
  listing: "running" | "done" | "failed";
  /** Unfinished work items, running ones included, without the listing. */
  open: number;
  failed: number;
  maxFailures: number | null;
  blocked: "budget_precheck_block" | "budget_exceeded" | null;
}

export function startsNothingNew({ failed, maxFailures, listing }: BuildProgress): boolean {
  return listing === "failed" || (maxFailures !== null && failed > maxFailures);
}

// Returns the next move, or null. A build that will fail does not pause, because more money would not help. While attempts run,
// `moveBuild` rejects its failure, and the orchestrator asks again.
export function nextBuildMove(progress: BuildProgress): WantedMove | null {
  const { listing, open, failed, blocked } = progress;
  if (startsNothingNew(progress)) return { move: "fail", reason: listing === "failed" ? "source_failed" : "targets_failed" };
  if (blocked !== null && open > 0) return { move: "pause", reason: blocked };
  if (listing === "running" || open > 0) return null;
  return failed > 0 ? { move: "fail", reason: "targets_failed" } : { move: "succeed", reason: "all_targets_done" };
}

/** Returns the move of a paused build after its last attempt. If nothing is left to pay for, no approval is needed. */
export function nextPausedMove(progress: BuildProgress): WantedMove | null {
  const { listing, open, failed } = progress;
  if (failed === 0) return null;
  const over = startsNothingNew(progress) || (listing === "done" && open === 0);
  return over ? { move: "fail", reason: "targets_failed" } : null;
}

const REASON_TEXTS: Record<BuildReason, string> = {
  started: "started",
  all_targets_done: "all targets are done",
  targets_failed: "targets failed",
  source_failed: "the source could not be listed",
  budget_refused: "more budget was refused",
  orphaned_at_startup: "its orchestrator had died",
  orchestrator_lost: "its orchestrator died",
  stopped: "stopped",
  budget_precheck_block: "the next attempt would exceed the budget",
  budget_exceeded: "the budget is exceeded",
  resumed: "resumed",
  budget_approved: "a new budget was approved",
  abandoned: "abandoned",
};

/** Why the build is as it is now: `approved` is set on a paused build that waits for its next run. */
export function currentReasonText({ reason, approved }: { reason: string; approved?: true }): string {
  return buildReasonText(approved ? "budget_approved" : reason);
}

export function buildReasonText(reason: string): string {
  return reason.replace(/^[a-z_]+(?=$|: )/, (code) => (REASON_TEXTS as Record<string, string | undefined>)[code] ?? code);
}
