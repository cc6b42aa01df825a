import type { JobKey } from "./ids.ts";
import { type FinishedState, isFinished, type JobError, type JobState } from "./job.ts";

/** A job that another is to come after. */
export interface Upstream {
  id: string;
  job: JobKey;
  state: JobState;
}

/** How a job starts that comes after others. */
export type Standing =
  /** What it was to come after has ended otherwise than succeeded. */
  { state: "cancelled"; error: JobError } | { state: "waiting"; for: readonly Upstream[] } | { state: "pending" };

export function standing(upstreams: readonly Upstream[]): Standing {
  const broken = upstreams.find(({ state }) => isFinished(state) && state !== "succeeded");
  if (broken !== undefined) return { state: "cancelled", error: upstreamEnded(broken.id, broken.state as FinishedState) };
  const unfinished = upstreams.filter(({ state }) => !isFinished(state));
  return unfinished.length > 0 ? { state: "waiting", for: unfinished } : { state: "pending" };
}

/** Why a job was cancelled without anybody asking for it. */
export function upstreamEnded(upstream: string, state: FinishedState): JobError {
  const message = `Job ${upstream}, which it was to come after, ${SAID[state]}.`;
  return { name: "UpstreamError", code: "UPSTREAM_ENDED", message };
}

const SAID: Record<FinishedState, string> = {
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "was cancelled",
  quarantined: "was quarantined",
};

/** `job` comes after `upstream`. */
export interface Wait {
  job: JobKey;
  upstream: JobKey;
}

export interface Behind {
  /** Those that are cancelled, each with the job whose end did it; they wait for nothing any more. */
  cancelled: Map<JobKey, JobKey>;
  /** Those that have one thing less to wait for. */
  freer: JobKey[];
}

/** What the end of some jobs means for those that wait for them. */
export function behind(waits: readonly Wait[], ended: ReadonlyMap<JobKey, FinishedState>): Behind {
  const cancelled = new Map<JobKey, JobKey>();
  for (const { job, upstream } of waits) if (ended.get(upstream) !== "succeeded") cancelled.set(job, upstream);
  const freer = new Set<JobKey>();
  for (const { job } of waits) if (!cancelled.has(job)) freer.add(job);
  return { cancelled, freer: [...freer] };
}

/**
 * Whether a job that waits for no other has to wait for its time. One that was to run at once, when it was made, still
 * is, also when the clock was set back since.
 */
export function isEarly(runAt: number, createdAt: number, now: number): boolean {
  return runAt > now && runAt > createdAt;
}
