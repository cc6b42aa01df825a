import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { byTurn } from "../../../core/jobs/job.ts";
import { publicId } from "../../job-row.ts";
import type { Claimed } from "../../store.ts";
import type { Catalog } from "../catalog.ts";

/** What can be claimed: by jobs_ready, and, where a worker died, by jobs_suspect. */
export const READY = "ready";
export const SUSPECT = "suspect = 'pending' and gate is null";

/** What came with somebody's own transaction, was to run at once, and has to pass its limits yet: by jobs_unseen. */
export const UNSEEN = "gate = 'time' and fence = 0 and run_at <= created_at";

/** Whether this process holds one that was running when a worker died. */
export function holdsSuspect(s: string, holder: string): string {
  return `exists (select 1 from ${s}.jobs where suspect = 'running' and holder = ${holder})`;
}

/** What a statement that claims jobs gives back of each: see `Started`. Of one lane, whoever asks knows it, and the lease. */
export const STARTED_OF_LANE = `job.key, job.priority, job.policy, job.attempt, job.created_at, job.id, job.input, job.scheduled_for,
  job.fence, job.expires_at, job.suspect is not null`;
export const STARTED = `${STARTED_OF_LANE}, job.lane, job.lease`;

/** As its row is after the claim. */
export type Started = [
  key: JobKey,
  priority: number,
  policy: number,
  attempt: number,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  fence: Fence,
  expiresAt: number,
  suspect: boolean,
  lane: number,
  lease: number,
];

/** What such a statement sets; there is a `fence`, a `clock`, and the `lease` of each. $2 and $3: the process, or who claims by hand. */
export function startSql(lease: string, now = "clock.now", fence = "(select fence from fence)"): string {
  return `state = 'running', attempt = attempt + 1, fence = ${fence}, holder = $2::bigint, worker = $3,
      started_at = ${now}, lease = ${lease}, expires_at = ${now} + ${lease}`;
}

/** Whether it was running when a worker died. */
export function isSuspect(started: Started): boolean {
  return started[10];
}

export function laneOf(started: Started): number {
  return started[11];
}

/** A statement gives rows back in any order. */
export function byStartedTurn([key, priority]: Started, [other, otherPriority]: Started): number {
  return byTurn({ key, priority }, { key: other, priority: otherPriority });
}

/** Its lane and policy are known by now. */
export function toClaimed(row: Started, catalog: Catalog): Claimed {
  const [job, priority, policy, attempt, createdAt, id, input, scheduledFor, fence, expiresAt, , lane, lease] = row;
  const { name, queue, version } = catalog.lane(lane);
  return {
    job,
    fence,
    id: publicId(id, createdAt, job),
    name,
    queue,
    version,
    input,
    attempt,
    priority,
    policy: catalog.policy(policy),
    lease,
    expiresAt,
    scheduledFor,
  };
}
