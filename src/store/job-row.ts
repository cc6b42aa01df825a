import type { ClaimableLane } from "../core/jobs/claiming.ts";
import { removedJobsData } from "../core/jobs/event.ts";
import { type Fence, generatedId, type JobKey } from "../core/text/ids.ts";
import type { FinishedState, Job, JobError, JobState } from "../core/jobs/job.ts";
import { fromJson } from "../core/text/json.ts";
import type { Policy } from "../core/jobs/retry.ts";
import type { Act } from "./audit.ts";
import type { Claimed, PruneFilter } from "./store.ts";

/** Longer inputs have their own row, so that a claim or a renewal does not rewrite them. */
const LARGE_INPUT = 2_000;
/** Stands in the job's row for an input with its own row; no JSON text is empty. */
export const ELSEWHERE = "";

export function isLarge(input: string | null): input is string {
  return input !== null && input.length > LARGE_INPUT;
}

/** Name and key as one text, for one index; names contain no line break. */
export function slotOf(name: string, key: string): string {
  return `${name}\n${key}`;
}

/** The slot of the one job that waits to replace the running job with this slot; no name is empty. */
export function slotBehind(slot: string): string {
  return `\n${slot}`;
}

export function slotOfJob({ name, key, behind }: { name: string; key?: string; behind?: object }): string | null {
  if (key === undefined) return null;
  return behind === undefined ? slotOf(name, key) : slotBehind(slotOf(name, key));
}

function keyOfSlot(slot: string): string {
  return slot.slice(slot.indexOf("\n", 1) + 1);
}

/** What few jobs have, as one JSON text; null for a job that has nothing of it. */
export interface JobMeta {
  tags?: readonly string[];
  /** Where a trace of the producer continues, as W3C's traceparent. */
  trace?: string | undefined;
}

export function metaOf({ tags = [], trace }: JobMeta): string | null {
  if (tags.length === 0 && trace === undefined) return null;
  return JSON.stringify({ ...(tags.length === 0 ? {} : { tags }), trace });
}

export function readMeta(meta: string | null): JobMeta {
  return meta === null ? {} : (JSON.parse(meta) as JobMeta);
}

export function publicId(id: string | null, createdAt: number, key: JobKey): string {
  return id ?? generatedId(createdAt, key);
}

export const HEAD = "key, priority, policy, attempt, created_at, id, input, scheduled_for, limits, slot, meta, checksum, run_at";
export type HeadRow = [
  key: JobKey,
  priority: number,
  policy: number,
  attempt: number,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  limits: string | null,
  slot: string | null,
  meta: string | null,
  checksum: number | null,
  runAt: number,
];

export function toClaimed(
  [key, priority, , attempt, createdAt, id, , scheduledFor, , , meta, , runAt]: HeadRow,
  { lane, lease }: ClaimableLane,
  input: string | null,
  policy: Policy,
  fence: Fence,
  now: number,
): Claimed {
  return {
    job: key,
    fence,
    id: publicId(id, createdAt, key),
    name: lane.name,
    queue: lane.queue,
    version: lane.version,
    input,
    attempt: attempt + 1,
    priority,
    policy,
    lease,
    expiresAt: now + lease,
    scheduledFor,
    createdAt,
    runAt,
    trace: readMeta(meta).trace ?? null,
  };
}

/** `fraction` and `message` are the progress, `body` is a large input. */
export interface JobRow {
  key: JobKey;
  fence: Fence;
  state: JobState;
  lane: number;
  priority: number;
  attempt: number;
  crashes: number;
  run_at: number;
  created_at: number;
  started_at: number | null;
  finished_at: number | null;
  id: string | null;
  slot: string | null;
  input: string | null;
  output: string | null;
  error: string | null;
  meta: string | null;
  fraction: number | null;
  message: string | null;
  body: string | null;
  worker: string | null;
  host: string | null;
  pid: number | null;
  expires_at: number | null;
}

export function toJob(row: JobRow, lane: { queue: string; name: string }): Job {
  const job: Job = {
    id: publicId(row.id, row.created_at, row.key),
    name: lane.name,
    queue: lane.queue,
    state: row.state,
    input: fromJson(row.body ?? row.input),
    attempt: row.attempt,
    crashes: row.crashes,
    priority: row.priority,
    createdAt: row.created_at,
    runAt: row.run_at,
  };
  if (row.slot !== null) job.key = keyOfSlot(row.slot);
  const { tags } = readMeta(row.meta);
  if (tags !== undefined) job.tags = [...tags];
  if (row.output !== null) job.output = fromJson(row.output);
  if (row.error !== null) job.error = fromJson(row.error) as JobError;
  if (row.started_at !== null) job.startedAt = row.started_at;
  if (row.finished_at !== null) job.finishedAt = row.finished_at;
  if (row.fraction !== null) {
    job.progress = row.message === null ? { fraction: row.fraction } : { fraction: row.fraction, message: row.message };
  }
  if (row.state !== "running") return job;
  Object.assign(job, holderOf(row));
  if (row.expires_at !== null) job.leaseExpiresAt = row.expires_at;
  return job;
}

/** `worker`: the name that a claim by hand was given, else host and pid of its process. */
export function holderOf({ worker, host, pid }: Pick<JobRow, "worker" | "host" | "pid">): Pick<Job, "worker" | "host" | "pid"> {
  const name = worker === null ? {} : { worker };
  return host === null || pid === null ? name : { worker: `${host}:${pid}`, ...name, host, pid };
}

/** The audit also has the ids that were asked for. */
export function jobsRemoved(jobs: number, filter: PruneFilter): [act: Act, data: object] {
  const data = removedJobsData(jobs, filter);
  const { state, ids } = filter;
  return [{ action: "jobs.removed", name: state, after: ids === undefined ? data : { ...data, asked: ids } }, data];
}

const MINUTE = 60_000;

/** Finished jobs of a lane: `n` exist, `ended` ever ended, `fresh` since `since`, `before` in the minute before that. */
export interface Tallied {
  lane: number;
  state: FinishedState;
  n: number;
  ended: number;
  since: number;
  fresh: number;
  before: number;
}

/** Adds `excluded` to the row `old`, in the SQL of both databases. If the clock was set back, the count of the minute restarts. */
export const COUNTED = `
  n = old.n + excluded.n, ended = old.ended + excluded.n,
  before = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.before
                when excluded.since - old.since between ${MINUTE} and ${2 * MINUTE - 1} then old.fresh else 0 end,
  fresh = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.fresh + excluded.n else excluded.n end,
  since = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.since else excluded.since end`;

/** How many ended within the last minute, as far as two counters of a minute can tell. */
export function lastMinute({ since, fresh, before }: Tallied, now: number): number {
  const elapsed = now - since;
  if (elapsed < 0 || elapsed >= 2 * MINUTE) return 0;
  if (elapsed >= MINUTE) return Math.round(fresh * (2 - elapsed / MINUTE));
  return Math.round(fresh + before * (1 - elapsed / MINUTE));
}

export type Flag = boolean | 0 | 1;

export function isYes(flag: Flag): boolean {
  return flag === true || flag === 1;
}
