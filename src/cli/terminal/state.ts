import type { BuildState } from "../../core/build.ts";
import type { JobState } from "../../core/job.ts";
import type { Style } from "./colours.ts";

const STYLES: Record<JobState, Style | null> = {
  waiting: "dim",
  pending: null,
  running: "cyan",
  succeeded: "green",
  failed: "yellow",
  cancelled: "dim",
  quarantined: "red",
};

/** One colour a state, in every command. */
export function stateStyle(state: JobState): Style | null {
  return STYLES[state];
}

const BUILD_STYLES: Record<BuildState, Style | null> = {
  PENDING: null,
  ACTIVE: "cyan",
  SUCCESS: "green",
  FAILED: "red",
  CRASHED: "yellow",
  BUDGET_PAUSE: "yellow",
  ABANDONED: "dim",
};

/** A build that was stopped on purpose is CRASHED to programs; "stopped" is what happened. */
export function buildStateText({ state, reason }: { state: BuildState; reason: string }): string {
  return state === "CRASHED" && reason === "stopped" ? "stopped" : state;
}

export function buildStyle(state: BuildState): Style | null {
  return BUILD_STYLES[state];
}
