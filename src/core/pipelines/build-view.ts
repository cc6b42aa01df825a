import { firstOf } from "../text/text.ts";
import { type Budget, fromBudget, type Amount, type Cost, toCost } from "./budget.ts";
import { type EventType, buildTransition, type NewEvent } from "../jobs/event.ts";
import { pathStep } from "../text/json.ts";
import type { BuildMove, BuildState, BuildTransition } from "./build.ts";
import { type ContextParts, hideSecrets } from "./work.ts";

/** A build as people and programs see it. */
export interface Build {
  id: string;
  pipeline: string;
  state: BuildState;
  /** Why it is in that state: a reason's name, or an operator's own words. */
  reason: string;
  budget: Cost;
  spent: Required<Cost>;
  /** True if the new budget of a paused build was approved. The next run continues the build. */
  approved?: true;
  /** Token that resumes a build that has just paused. It works once, and is not stored. */
  token?: string;
  createdAt: number;
  finishedAt?: number;
  stages: Record<string, { ran: number; cached: number; failed: number; left: number }>;
  /** The first 20 errors. */
  errors: { stage: string; target: string; message: string }[];
}

/** Events of builds. An operator causes `build.approved` and `build.token_minted`, which are no transitions. */
export type BuildEventType = Exclude<Extract<EventType, `build.${string}`>, "build.token_refused">;

export const EVENT_OF_MOVE: Record<BuildMove, BuildEventType> = {
  start: "build.started",
  succeed: "build.succeeded",
  fail: "build.failed",
  crash: "build.crashed",
  pause: "build.paused",
  resume: "build.resumed",
  abandon: "build.abandoned",
};

interface EventBuild {
  id: string;
  pipeline: string;
  seq: number;
  budget: Budget;
  spent: Amount;
}

export function buildMoveEvent(build: EventBuild, { move, from, to, reason, note }: BuildTransition): NewEvent {
  const type = EVENT_OF_MOVE[move];
  const transition = buildTransition(type, build.id, build.seq);
  return { type, transition, build: build.id, data: { ...eventData(build), from, to, reason, note } };
}

/** Returns the event of an action without a transition. `unique` tells several actions between two transitions apart. */
export function buildActionEvent(type: BuildEventType, build: EventBuild, unique: string): NewEvent {
  return { type, transition: buildTransition(type, build.id, build.seq, unique), build: build.id, data: eventData(build) };
}

function eventData({ pipeline, seq, budget, spent }: EventBuild): object {
  return { pipeline, seq, spent: toCost(spent), budget: fromBudget(budget) };
}

export interface Difference {
  part: string;
  before: unknown;
  after: unknown;
}

/** Finds every innermost part that differs, with its path from `part` on: `key.prompt`, `key.models[1]`. */
export function findDifferences(before: unknown, after: unknown, part: string): Difference[] {
  if (Array.isArray(before) && Array.isArray(after)) {
    const longer = before.length > after.length ? before : after;
    return longer.flatMap((_, i) => findDifferences(before[i], after[i], `${part}[${i}]`));
  }
  if (isRecord(before) && isRecord(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
    return names.flatMap((name) => findDifferences(ownValue(before, name), ownValue(after, name), `${part}${pathStep(name)}`));
  }
  return Object.is(before, after) ? [] : [{ part, before, after }];
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function ownValue(object: Record<string, unknown>, name: string): unknown {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** Why a stage was run for a target, or was not. */
export interface Why {
  ran: boolean;
  reason: string;
  parts: Difference[];
}

interface WhyInput {
  ran: boolean;
  before: ContextParts | null;
  after: ContextParts;
  members?: readonly Difference[];
  forced?: boolean;
  failedBefore?: boolean;
  edited?: boolean;
}

export function explainRun({ ran, before, after, members = [], forced, failedBefore, edited }: WhyInput): Why {
  const changed = before === null ? [] : changedParts(before, after);
  const parts = members.length === 0 ? changed : [...changed.filter(({ part }) => part !== "target.hash"), ...members];
  const warning = edited === true ? " Its code was edited, and its version was not raised." : "";
  return { ran, reason: say() + warning, parts };

  function say(): string {
    if (!ran) return "Reused: version, key, input and target are unchanged.";
    if (forced === true) return "Ran: the build was started with `rerun` for this stage.";
    if (failedBefore === true && parts.length === 0) return "Ran: the last attempt failed.";
    if (before === null) return "Ran: this target had no result before.";
    if (parts.length === 0) return "Ran: the result before was deleted.";
    return `Ran: ${firstOf(parts.map(({ part }) => part))} changed.`;
  }
}

export function changedParts(before: ContextParts, after: ContextParts): Difference[] {
  return findDifferences(shown(before), shown(after), "").map(({ part, before, after }) => ({
    part: part.slice(1),
    before,
    after,
  }));
}

function shown({ stage, version, key, input, uses, target, reuse }: ContextParts): object {
  return {
    stage,
    version,
    ...(key === null ? {} : { key: hideSecrets(JSON.parse(key)) }),
    input,
    uses,
    target: reuse === "bytes" ? { hash: target.hash } : { id: target.id, hash: target.hash },
    reuse,
  };
}
