import type { LaneShare } from "../core/jobs/claiming.ts";
import { removedJobs } from "../core/jobs/event.ts";
import { type Fence, generatedId, type JobKey } from "../core/text/ids.ts";
import type { FinishedState, Job, JobError, JobState } from "../core/jobs/job.ts";
import { fromJson } from "../core/text/json.ts";
import type { Policy } from "../core/jobs/retry.ts";
import type { Act } from "./audit.ts";
import type { Claimed, PruneFilter } from "./store.ts";

/** Inputs above this many characters have a row of their own, so that a claim or a renewal does not rewrite them. */
const LARGE_INPUT = 2_000;
/** Stands in the job's row for an input that is elsewhere; no JSON text is empty. */
export const ELSEWHERE = "";

export function isLarge(input: string | null): input is string {
  return input !== null && input.length > LARGE_INPUT;
}

/** A name and a key as one text, for one index; names hold no line break. */
export function slotOf(name: string, key: string): string {
  return `${name}\n${key}`;
}

function keyOfSlot(slot: string): string {
  return slot.slice(slot.indexOf("\n") + 1);
}

/** The id that everybody outside knows a job by: its own, or the one that was made for it. */
export function publicId(id: string | null, createdAt: number, key: JobKey): string {
  return id ?? generatedId(createdAt, key);
}

/** What a claim reads of the jobs whose turn is next. */
export const HEAD = "key, priority, policy, attempt, created_at, id, input, scheduled_for, limits, slot, checksum";
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
  checksum: number | null,
];

/** As its row was before the claim; `input` is the whole of it, wherever it was. */
export function toClaimed(
  [key, priority, , attempt, createdAt, id, , scheduledFor]: HeadRow,
  { lane, lease }: LaneShare,
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
  };
}

/** What a reader sees of a job, as it is read from whichever database; `fraction` and `message` are its progress, `body` is a large input. */
export interface JobRow {
  key: JobKey;
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
  fraction: number | null;
  message: string | null;
  body: string | null;
  /** Who holds it: the name given to the claim, and the process; of a job that does not run they mean nothing. */
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
  if (row.output !== null) job.output = fromJson(row.output);
  if (row.error !== null) job.error = fromJson(row.error) as JobError;
  if (row.started_at !== null) job.startedAt = row.started_at;
  if (row.finished_at !== null) job.finishedAt = row.finished_at;
  if (row.fraction !== null) {
    job.progress = row.message === null ? { fraction: row.fraction } : { fraction: row.fraction, message: row.message };
  }
  return row.state === "running" ? Object.assign(job, holderOf(row)) : job;
}

function holderOf({ worker, host, pid, expires_at }: JobRow): Pick<Job, "worker" | "host" | "pid" | "leaseExpiresAt"> {
  const process = host === null || pid === null ? {} : { host, pid };
  const name = worker ?? (host === null ? null : `${host}:${pid}`);
  return {
    ...(name === null ? {} : { worker: name }),
    ...process,
    ...(expires_at === null ? {} : { leaseExpiresAt: expires_at }),
  };
}

/** What a claim stores as the name of its worker. Workers of a process have none: the process says who they are. */
export function storedWorker({ worker }: { worker: string }): string | null {
  return worker === "" ? null : worker;
}

/** A page of a list, of rows in the order of their keys and one more than are asked for, by which it is known that there is more. */
export function pageOf(
  rows: readonly JobRow[],
  limit: number,
  laneOf: (lane: number) => { queue: string; name: string },
): { items: Job[]; next?: string } {
  const items = rows.slice(0, limit).map((row) => toJob(row, laneOf(row.lane)));
  const last = rows[limit - 1];
  return rows.length > limit && last !== undefined ? { items, next: String(last.key) } : { items };
}

/** Where the page before ended. */
export function keyOfCursor(cursor: string | undefined): number {
  return cursor === undefined ? 0 : Number(cursor);
}

/** That jobs were removed, as it is written down and told. The audit also has the ids that were asked for. */
export function jobsRemoved(jobs: number, filter: PruneFilter): [act: Act, data: object] {
  const data = removedJobs(jobs, filter);
  const { state, ids } = filter;
  return [{ action: "jobs.removed", name: state, after: ids === undefined ? data : { ...data, asked: ids } }, data];
}

const MINUTE = 60_000;

/**
 * Counts of the finished jobs of a lane, kept with each change of one, so that counting never walks history. `n` is how
 * many there are, `ended` how many ended ever, and never falls. Two counters of a minute each tell about the last one:
 * `fresh` counts those since `since`, `before` those of the minute that ended there.
 */
export interface Tallied {
  lane: number;
  state: FinishedState;
  n: number;
  ended: number;
  since: number;
  fresh: number;
  before: number;
}

/**
 * What `excluded` more of them, at `excluded.since`, make of the row `old`; both databases read it the same. An instant
 * before the row's own means that the clock was set back since: the count of a minute begins anew.
 */
export const COUNTED = `
  n = old.n + excluded.n, ended = old.ended + excluded.n,
  before = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.before
                when excluded.since - old.since between ${MINUTE} and ${2 * MINUTE - 1} then old.fresh else 0 end,
  fresh = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.fresh + excluded.n else excluded.n end,
  since = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.since else excluded.since end`;

/** How many of them ended within the last minute, as far as two counters of a minute each can tell. */
export function lastMinute({ since, fresh, before }: Tallied, now: number): number {
  const elapsed = now - since;
  if (elapsed < 0 || elapsed >= 2 * MINUTE) return 0;
  if (elapsed >= MINUTE) return Math.round(fresh * (2 - elapsed / MINUTE));
  return Math.round(fresh + before * (1 - elapsed / MINUTE));
}

/** Yes or no, as it is read: a database without booleans holds 1 or 0. */
export type Flag = boolean | 0 | 1;

export function isYes(flag: Flag): boolean {
  return flag === true || flag === 1;
}
