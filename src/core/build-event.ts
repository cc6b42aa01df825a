import { type Budget, fromBudget } from "./budget.ts";
import type { BuildMove, BuildTransition } from "./build.ts";
import { type Amount, toCost } from "./cost.ts";
import { buildTransition } from "./dedupe-key.ts";
import type { NewEvent } from "./event.ts";

/** What can happen to a build. */
export type BuildEventType =
  | "build.started"
  | "build.succeeded"
  | "build.failed"
  | "build.crashed"
  | "build.paused"
  | "build.resumed"
  | "build.abandoned"
  /** By an operator, without a transition. */
  | "build.approved"
  | "build.token_minted";

/** How each move is told, and called in the audit. */
export const EVENT_OF_MOVE: Record<BuildMove, BuildEventType> = {
  start: "build.started",
  succeed: "build.succeeded",
  fail: "build.failed",
  crash: "build.crashed",
  pause: "build.paused",
  resume: "build.resumed",
  abandon: "build.abandoned",
};

/** A build of which something is told, as its row is after the change. */
export interface ToldBuild {
  id: string;
  pipeline: string;
  /** The number of its last transition. */
  seq: number;
  budget: Budget;
  spent: Amount;
}

/** What is told of a transition. */
export function buildMoved(build: ToldBuild, { move, from, to, reason, note }: BuildTransition): NewEvent {
  const type = EVENT_OF_MOVE[move];
  const transition = buildTransition(type, build.id, build.seq);
  return { type, transition, build: build.id, data: { ...told(build), from, to, reason, note } };
}

/** What is told of an act that moves nothing. There may be several between two transitions: no other act has this `unique`. */
export function buildAct(type: BuildEventType, build: ToldBuild, unique: string): NewEvent {
  return { type, transition: buildTransition(type, build.id, build.seq, unique), build: build.id, data: told(build) };
}

function told({ pipeline, seq, budget, spent }: ToldBuild): object {
  return { pipeline, seq, spent: toCost(spent), budget: fromBudget(budget) };
}
