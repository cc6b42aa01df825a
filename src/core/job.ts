import type { JobKey } from "./ids.ts";

export type JobState = "waiting" | "pending" | "running" | "succeeded" | "failed" | "cancelled" | "quarantined";

/** Why a job moves. */
export type JobMove = "unblock" | "claim" | "succeed" | "fail" | "give-back" | "quarantine" | "cancel" | "retry";

/**
 * The job's state machine. Nothing else decides a transition: the stores guard each write by the states listed here,
 * the SQL CHECK and the picture in docs/state-machine.md are compared with it by a test.
 */
export const JOB_MOVES: Record<JobMove, { from: readonly JobState[]; to: JobState }> = {
  unblock: { from: ["waiting"], to: "pending" },
  claim: { from: ["pending"], to: "running" },
  succeed: { from: ["running"], to: "succeeded" },
  fail: { from: ["running"], to: "failed" },
  "give-back": { from: ["running"], to: "pending" },
  quarantine: { from: ["running"], to: "quarantined" },
  cancel: { from: ["waiting", "pending", "running"], to: "cancelled" },
  retry: { from: ["failed", "quarantined"], to: "pending" },
};

export const JOB_STATES: readonly JobState[] = [
  "waiting",
  "pending",
  "running",
  "succeeded",
  "failed",
  "cancelled",
  "quarantined",
];

/** A finished job moves again only by an operator's retry. */
export type FinishedState = "succeeded" | "failed" | "cancelled" | "quarantined";
export const FINISHED_STATES: readonly FinishedState[] = ["succeeded", "failed", "cancelled", "quarantined"];

export function isFinished(state: JobState): state is FinishedState {
  return (FINISHED_STATES as readonly JobState[]).includes(state);
}

export function mayMove(move: JobMove, from: JobState): boolean {
  return JOB_MOVES[move].from.includes(from);
}

/** What went wrong, as it is stored and shown. */
export interface JobError {
  name: string;
  message: string;
  code?: string;
  stack?: string;
}

/** A job as a reader sees it. */
export interface Job<In = unknown, Out = unknown> {
  id: string;
  name: string;
  queue: string;
  key?: string;
  state: JobState;
  input: In;
  output?: Out;
  error?: JobError;
  attempt: number;
  crashes: number;
  priority: number;
  progress?: { fraction: number; message?: string };
  createdAt: number;
  runAt: number;
  startedAt?: number;
  finishedAt?: number;
}

export type Finished<Out = unknown> = Job<unknown, Out> &
  ({ state: "succeeded"; output: Out } | { state: "failed" | "cancelled" | "quarantined" });

/** Higher priority first, then first in, first out. */
export function byTurn(a: { priority: number; key: JobKey }, b: { priority: number; key: JobKey }): number {
  return b.priority - a.priority || a.key - b.key;
}

/** Whatever was thrown, as it is stored. Handlers throw anything: no getter or proxy of theirs may take the worker down. */
export function toJobError(thrown: unknown): JobError {
  try {
    return thrown instanceof Error ? describe(thrown) : { name: "Error", message: sayValue(thrown) };
  } catch {
    return { name: "Error", message: "Something was thrown that cannot be read." };
  }
}

function describe(thrown: Error): JobError {
  const error: JobError = { name: String(thrown.name), message: String(thrown.message) };
  const code: unknown = (thrown as { code?: unknown }).code;
  if (typeof code === "string" || typeof code === "number") error.code = String(code);
  if (typeof thrown.stack === "string") error.stack = thrown.stack;
  return error;
}

function sayValue(value: unknown): string {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}
