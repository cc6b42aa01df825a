import type { BuildReason, BuildState } from "./build.ts";
import { hasEnded, sayReason } from "./build.ts";
import { type Budget, fromBudget } from "./budget.ts";
import { type Amount, type Cost, toCost } from "./cost.ts";

/** A build as people and programs see it. */
export interface Build {
  id: string;
  pipeline: string;
  state: BuildState;
  /** Why it is in that state: a reason's name, or an operator's own words. */
  reason: string;
  budget: Cost;
  spent: Required<Cost>;
  /** Of a build that has just paused: lets it go on, once. It is not kept anywhere. */
  token?: string;
  createdAt: number;
  finishedAt?: number;
  stages: Record<string, { ran: number; cached: number; failed: number; left: number }>;
  /** The first 20. */
  errors: { stage: string; target: string; message: string }[];
}

/** What is counted of a stage. */
export interface CountedStage {
  stage: string;
  /** The segment that it is in. */
  segment: number;
  /** The round in which its targets are listed. */
  round: number;
  ran: number;
  cached: number;
  failed: number;
  open: number;
}

export interface SeenBuild {
  id: string;
  pipeline: string;
  state: BuildState;
  reason: BuildReason;
  note: string | null;
  budget: Budget;
  spent: Amount;
  round: number;
  listing: "running" | "done" | "failed";
  createdAt: number;
  finishedAt: number | null;
}

export function viewOf(build: SeenBuild, stages: readonly CountedStage[], errors: Build["errors"], token?: string): Build {
  const { id, pipeline, state, budget, spent, createdAt, finishedAt } = build;
  return {
    id,
    pipeline,
    state,
    reason: sayReason(build),
    budget: fromBudget(budget),
    spent: toCost(spent),
    ...(token === undefined ? {} : { token }),
    createdAt,
    ...(finishedAt === null ? {} : { finishedAt }),
    stages: Object.fromEntries(
      stages.map((one, i) => [
        one.stage,
        { ran: one.ran, cached: one.cached, failed: one.failed, left: leftOf(build, stages, i) },
      ]),
    ),
    errors,
  };
}

/** Those that are at this stage or before it in its segment; a gather that is still to come is one. What has ended does no more. */
function leftOf({ round, state }: SeenBuild, stages: readonly CountedStage[], index: number): number {
  if (hasEnded(state)) return 0;
  const stage = stages[index] as CountedStage;
  const open = stages
    .slice(0, index + 1)
    .filter(({ segment }) => segment === stage.segment)
    .reduce((sum, one) => sum + one.open, 0);
  return stage.round > round ? Math.max(1, open) : open;
}
