import type { Fence, JobKey } from "./ids.ts";
import type { FinishedState, JobError } from "./job.ts";
import type { Lane } from "./queue.ts";
import type { Next } from "./retry.ts";

/** What happened, as sinks and subscribers get it. */
export interface Event {
  /** Rises with each event of a database. */
  seq: number;
  /** `job.succeeded`, `queue.paused`, … */
  type: string;
  at: number;
  /** The same for every delivery of this event, and for no other event. */
  dedupeKey: string;
  /** The id of the job it is about. */
  job?: string;
  build?: string;
  data: unknown;
}

/** What can happen to a job. `job.started` to `job.quarantined` only where the job's queue asks for events. */
export type JobEventType =
  | "job.enqueued"
  | "job.started"
  | "job.succeeded"
  /** It goes back to be run again: after an error, a crash, or because its worker stopped. */
  | "job.returned"
  | "job.failed"
  | "job.quarantined"
  | "job.cancelled"
  /** By an operator. */
  | "job.retried";

/** What becomes of an attempt, as it is told. */
export const EVENT_OF: Record<Next["state"], JobEventType> = {
  succeeded: "job.succeeded",
  pending: "job.returned",
  failed: "job.failed",
  quarantined: "job.quarantined",
};

/** An event as it is written. */
export interface NewEvent {
  type: string;
  /** What makes it one of its kind in this database: no two events have the same. */
  transition: string;
  /** The job's id. */
  job?: string;
  /** The build's id. */
  build?: string;
  data: object;
}

/** A job of which something is told, as its row is after the change; `error` is JSON. */
export interface ToldJob {
  key: JobKey;
  fence: Fence | 0;
  attempt: number;
  id: string;
  error: string | null;
}

/** What is told of a job. Payloads are not in it: they may be large, and secret. */
export function jobEvent(type: JobEventType, job: ToldJob, { name, queue, version }: Lane): NewEvent {
  const { key, fence, attempt, id, error } = job;
  const data: Record<string, unknown> = { id, name, queue, version, attempt };
  if (error !== null && !FRESH.has(type)) data["error"] = brief(JSON.parse(error) as JobError);
  return { type, transition: jobTransition(type, key, fence), job: id, data };
}

/** Told of a job whose last error, where it has one, is of another time. */
const FRESH: ReadonlySet<JobEventType> = new Set(["job.enqueued", "job.started", "job.retried"]);

/** Without the stack. */
function brief({ name, message, code }: JobError): JobError {
  return code === undefined ? { name, message } : { name, message, code };
}

/** What the dedupe key is the hash of, for one transition of one job: an attempt is (job, fence). */
function jobTransition(type: JobEventType, job: JobKey, fence: Fence | 0): string {
  return `${type}|${job}:${fence}`;
}

/** The same for everything else: what it is about, the commit in which it happened, and its number among what is told there. */
export function change(type: string, subject: string, commit: Fence, number: number): string {
  return `${type}|${subject}|${commit}:${number}`;
}

/** What is told of an act on one thing: `lock.broken` names the lock. */
export function about(type: string, subject: string): object {
  return { [type.slice(0, type.indexOf("."))]: subject };
}

/** What is told of jobs that an operator has removed. */
export function removedJobs(jobs: number, { state, queue }: { state: FinishedState; queue?: string }): object {
  return { state, jobs, ...(queue === undefined ? {} : { queue }) };
}

/** Whether a subscriber who asked for these types gets this one: `job.failed` as it is written, `job.*` all that begin so. */
export function isAskedFor(type: string, types: readonly string[] | undefined): boolean {
  if (types === undefined) return true;
  return types.some((asked) => (asked.endsWith("*") ? type.startsWith(asked.slice(0, -1)) : type === asked));
}

const FIRST_PAUSE = 1_000;
const FIRST_RETRY_MS = 100;
const LONGEST_PAUSE = 300_000;

/** How long a sink is left alone after so many failures in a row; with jitter, or all sinks of a host come back at once. */
export function redeliverAfter(failures: number, random: number): number {
  return backOff(FIRST_PAUSE, failures, random);
}

/** The same for one event that a sink refused while it accepts others. */
export function retryRefusedAfter(refusals: number, random: number): number {
  return backOff(FIRST_RETRY_MS, refusals, random);
}

function backOff(first: number, failures: number, random: number): number {
  const full = Math.min(LONGEST_PAUSE, first * 2 ** Math.min(failures - 1, 40));
  return Math.round(full / 2 + (full / 2) * random);
}
