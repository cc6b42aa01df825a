import type { Fence, JobKey } from "../../core/ids.ts";
import { byTurn } from "../../core/job.ts";
import { publicId } from "../job-row.ts";
import type { Claimed } from "../store.ts";
import type { Catalog } from "./catalog.ts";

/** What can be claimed: by jobs_ready, and, where a worker died, by jobs_suspect. */
export const READY = "ready";
export const SUSPECT = "suspect = 'pending' and gate is null";

/** What a statement that claims jobs gives back of each: see `Started`. */
export const STARTED = `job.key, job.lane, job.priority, job.policy, job.attempt, job.created_at, job.id, job.input, job.scheduled_for,
  job.fence, job.lease, job.expires_at`;

/** As its row is after the claim. */
export type Started = [
  key: JobKey,
  lane: number,
  priority: number,
  policy: number,
  attempt: number,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  fence: Fence,
  lease: number,
  expiresAt: number,
];

/** What such a statement sets; there is a `fence`, a `clock`, and the `lease` of each. $2 and $3: the process, or who claims by hand. */
export function startSql(lease: string): string {
  return `state = 'running', attempt = attempt + 1, fence = (select fence from fence), holder = $2::bigint, worker = $3,
      started_at = clock.now, lease = ${lease}, expires_at = clock.now + ${lease}`;
}

/** A statement gives rows back in any order. */
export function byStartedTurn([key, , priority]: Started, [other, , otherPriority]: Started): number {
  return byTurn({ key, priority }, { key: other, priority: otherPriority });
}

/** Its lane and policy are known by now. */
export function toClaimed(row: Started, catalog: Catalog): Claimed {
  const [job, laneId, priority, policy, attempt, createdAt, id, input, scheduledFor, fence, lease, expiresAt] = row;
  const { name, queue, version } = catalog.lane(laneId);
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
