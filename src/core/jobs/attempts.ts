import { toJson } from "../text/json.ts";
import { type Log, toStorable } from "../text/text.ts";
import type { Job, JobError } from "./job.ts";
import { crashError, type Next, type Outcome, stallError } from "./retry.ts";

export const DEFAULT_ATTEMPTS_KEPT = 20;

/** How an attempt ended. A stall, or a restart of the host, counts as "crashed"; a worker that stops releases its attempts. */
export type AttemptOutcome = (typeof ATTEMPT_OUTCOMES)[number];
export const ATTEMPT_OUTCOMES = ["running", "succeeded", "failed", "released", "crashed", "timed-out", "cancelled"] as const;

/** One attempt of a job. */
export interface AttemptView {
  /** Number of the attempt, as its handler saw it; an attempt that was not charged shares its number with the next one. */
  attempt: number;
  outcome: AttemptOutcome;
  startedAt: number;
  endedAt?: number;
  /** Name that the claim was given, else the worker's host and pid; those of a success until that process ends. */
  worker?: string;
  host?: string;
  pid?: number;
  error?: JobError;
  /** The newest lines that the handler has logged, if its queue keeps `logs`. */
  log?: LogLine[];
}

/** A line that a handler has logged. */
export interface LogLine {
  at: number;
  level: Exclude<keyof Log, "debug">;
  message: string;
  data?: unknown;
}

export const MAX_LOGS_KEPT = 1_000;
const MAX_MESSAGE_CHARS = 2_000;
const MAX_DATA_CHARS = 8_000;

/** Returns a line as it is stored. `data` that is too large, or that JSON cannot represent, becomes shortened text. */
export function logLine(at: number, level: LogLine["level"], message: string, data: unknown): LogLine {
  const line: LogLine = { at, level, message: toStorable(String(message)).slice(0, MAX_MESSAGE_CHARS) };
  if (data === undefined) return line;
  const text = jsonOrText(data);
  line.data = text.length <= MAX_DATA_CHARS ? JSON.parse(text) : `${text.slice(0, MAX_DATA_CHARS)}…`;
  return line;
}

function jsonOrText(data: unknown): string {
  try {
    return toJson(data, "The data of a log line") ?? "null";
  } catch {
    return JSON.stringify(toStorable(String(data)));
  }
}

export interface AttemptEnding {
  outcome: Exclude<AttemptOutcome, "running" | "succeeded">;
  error: JobError | null;
}

export type Unsuccessful = Exclude<Outcome, { kind: "succeeded" }>;

/** Describes how an attempt ended. `isDead` says that its worker is dead, or not known to be alive. */
export function attemptEnding(outcome: Unsuccessful, next: Next, isDead: boolean): AttemptEnding {
  switch (outcome.kind) {
    case "error":
      return { outcome: isTimeout(outcome.error) ? "timed-out" : "failed", error: outcome.error };
    case "later":
    case "unreadable":
      return { outcome: "failed", error: outcome.error };
    case "released":
      return { outcome: "released", error: null };
    case "interrupted":
      return { outcome: isDead ? "crashed" : "released", error: next.error };
    case "stalled":
      return { outcome: "crashed", error: next.error ?? stallError(next.crashes) };
    case "crashed":
      return { outcome: "crashed", error: next.error ?? crashError(next.crashes) };
  }
}

/** Whether the keeper ended the attempt at its timeout. A handler's own error may have this name or this code, but not both. */
function isTimeout({ name, code }: JobError): boolean {
  return name === "TimeoutError" && code === "TIMEOUT";
}

/** Returns the attempt that the job's row shows: the running one, or the one that succeeded. All others are stored apart. */
export function currentAttempt({ state, attempt, startedAt, finishedAt, worker, host, pid }: Job): AttemptView | undefined {
  if ((state !== "running" && state !== "succeeded") || startedAt === undefined) return undefined;
  const ended = finishedAt === undefined ? {} : { endedAt: finishedAt };
  const name = worker === undefined ? {} : { worker };
  const process = host === undefined || pid === undefined ? {} : { host, pid };
  return { attempt, outcome: state, startedAt, ...ended, ...name, ...process };
}
