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
