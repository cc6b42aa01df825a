import { approve, type Budget, fromBudget } from "../core/budget.ts";
import { type BuildFacts, mayMoveBuild, startsNothingNew, type WantedMove } from "../core/build.ts";
import { refusedToken } from "../core/confirmation-token.ts";
import { pipelineChanged, type PipelineDescription } from "../core/pipeline-description.ts";
import type { BuildRow, ResumeBuild } from "./builds.ts";

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

/** Of a build as it was read, by whoever holds its lock, or does not. */
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

/** How a build goes on whose lock was just taken; throws if its pipeline is another by now. A token is used after that. */
export function resumption(build: BuildRow, wanted: ResumeBuild): { move: WantedMove; facts: BuildFacts } {
  const samePipeline = build.hash === wanted.hash;
  if (!samePipeline && mayMoveBuild("resume", build.state)) {
    throw pipelineChanged(build.id, described(build.description), described(wanted.description));
  }
  const reason = build.state === "BUDGET_PAUSE" ? "budget_approved" : "resumed";
  return { move: { move: "resume", reason }, facts: { holdsLock: true, samePipeline, approved: true } };
}

/** The budget with which a build goes on without a token: the one that it has, if it needs none, or none any more. */
export function budgetOf(build: BuildRow): Budget {
  if (build.state !== "BUDGET_PAUSE") return build.budget;
  if (!build.approved) throw refusedToken({ code: "TOKEN_NEEDED" }, build);
  // What was in flight at the pause may have cost more since than was approved.
  return approve(build, fromBudget(build.budget), build.refused);
}

/** For the audit: that it goes on by a token, and not which one. */
export function tokenUse({ approval }: Pick<ResumeBuild, "approval">): { more?: object } {
  return approval === undefined ? {} : { more: { token: "used" } };
}

function described(text: string): PipelineDescription {
  return JSON.parse(text) as PipelineDescription;
}
