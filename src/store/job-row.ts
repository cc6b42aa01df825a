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
/** Marks, in a job's row, an input that has its own row. No JSON text is empty. */
export const ELSEWHERE = "";

export function isLarge(input: string | null): input is string {
  return input !== null && input.length > LARGE_INPUT;
}

/** Joins name and key to one text, for one index. Names contain no line break. */
export function slotOf(name: string, key: string): string {
  return `${name}\n${key}`;
}

/** Returns the slot of the one job that waits to replace the running job of a slot. No name is empty. */
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

/** Properties that few jobs have, stored as one JSON text; null if a job has none of them. */
export interface JobMeta {
  tags?: readonly string[];
  /** Span of the producer, as W3C's traceparent, from which its trace continues. */
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
  { lane, lease }: Pick<ClaimableLane, "lane" | "lease">,
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

/** Columns that make a job. `fraction` and `message` are the progress, and `body` is a large input. */
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

/** Returns who runs a job. `worker` is the name that a claim by hand was given, else host and pid of the process. */
export function holderOf({ worker, host, pid }: Pick<JobRow, "worker" | "host" | "pid">): Pick<Job, "worker" | "host" | "pid"> {
  const name = worker === null ? {} : { worker };
  return host === null || pid === null ? name : { worker: `${host}:${pid}`, ...name, host, pid };
}

/** Returns audit entry and event of removed jobs. Only the audit has the ids that the caller asked for. */
export function jobsRemoved(jobs: number, filter: PruneFilter): [act: Act, data: object] {
  const data = removedJobsData(jobs, filter);
  const { state, ids } = filter;
  return [{ action: "jobs.removed", name: state, after: ids === undefined ? data : { ...data, asked: ids } }, data];
}

const MINUTE = 60_000;

/** Counts of a lane's finished jobs: `n` exist, `ended` ever ended, `fresh` since `since`, `before` in the minute before that. */
export interface Tallied {
  lane: number;
  state: FinishedState;
  n: number;
  ended: number;
  since: number;
  fresh: number;
  before: number;
}

/** SQL of both databases that adds `excluded` to the row `old`. If the clock was set back, the count of the minute restarts. */
export const COUNTED = `
  n = old.n + excluded.n, ended = old.ended + excluded.n,
  before = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.before
                when excluded.since - old.since between ${MINUTE} and ${2 * MINUTE - 1} then old.fresh else 0 end,
  fresh = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.fresh + excluded.n else excluded.n end,
  since = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.since else excluded.since end`;

/** Estimates how many jobs ended within the last minute, from the counters of two minutes. */
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
