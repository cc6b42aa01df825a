import type { JobKey } from "../text/ids.ts";

export type JobState = "waiting" | "pending" | "running" | "succeeded" | "failed" | "cancelled" | "quarantined";

export type JobMove = "unblock" | "claim" | "succeed" | "fail" | "give-back" | "quarantine" | "cancel" | "retry";

/** The moves of a job. Stores guard each write by them; a test compares them with the SQL CHECK and docs/state-machine.md. */
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
  tags?: string[];
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
  /** Name that the claim of a running job was given, else the worker's host and pid. */
  worker?: string;
  /** Host of the process that runs the job. A claim by hand that no process renews has none. */
  host?: string;
  pid?: number;
  leaseExpiresAt?: number;
}

export type Finished<Out = unknown> = Job<unknown, Out> &
  ({ state: "succeeded"; output: Out } | { state: "failed" | "cancelled" | "quarantined" });

export function byClaimOrder(a: { priority: number; key: JobKey }, b: { priority: number; key: JobKey }): number {
  return b.priority - a.priority || a.key - b.key;
}

export const MAX_ERROR_BYTES = 64 * 1024;
const MAX_NAME_BYTES = 1024;
const MAX_MESSAGE_BYTES = 24 * 1024;
const MAX_STACK_BYTES = MAX_ERROR_BYTES - MAX_MESSAGE_BYTES - 2 * MAX_NAME_BYTES;

/** Describes anything that a handler throws. No getter or proxy of the thrown value may crash the worker. */
export function toJobError(thrown: unknown): JobError {
  try {
    return capError(thrown instanceof Error ? describe(thrown) : { name: "Error", message: describeThrown(thrown) });
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

/** Shortens an error: a response body of megabytes in a message must not fill the database. The stack's frames are kept. */
function capError({ name, message, code, stack }: JobError): JobError {
  const capped: JobError = { name: capText(name, MAX_NAME_BYTES), message: capText(message, MAX_MESSAGE_BYTES) };
  if (code !== undefined) capped.code = capText(code, MAX_NAME_BYTES);
  if (stack !== undefined) {
    // The stack repeats name and message. With those shortened, frames are cut only if there are too many of them.
    const header = `${name}: ${message}`;
    const frames = stack.startsWith(header) ? `${capped.name}: ${capped.message}${stack.slice(header.length)}` : stack;
    capped.stack = capText(frames, MAX_STACK_BYTES);
  }
  return capped;
}

function capText(text: string, maxBytes: number): string {
  if (text.length <= maxBytes / 3 || Buffer.byteLength(text) <= maxBytes) return text;
  const note = `… (cut, ${text.length} characters in all)`;
  const kept = Buffer.from(text.slice(0, maxBytes)).subarray(0, maxBytes - Buffer.byteLength(note));
  // Drop the replacement character of three bytes that stands for a character cut in half.
  return `${kept.toString("utf8").replace(/\ufffd$/, "")}${note}`;
}

function describeThrown(value: unknown): string {
  if (typeof value === "string") return value;
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}

/** A SQLite handle: `DatabaseSync` of node:sqlite, `Database` of better-sqlite3. */
export interface SqliteHandle {
  prepare(sql: string): { run(...params: never[]): unknown };
  exec(sql: string): unknown;
}

/** What `hf.transaction` and `commit` hand out: the driver's own object, seen as what both drivers have in common. */
export interface TransactionHandle extends SqliteHandle {
  prepare(sql: string): {
    run: Bound<{ changes: number | bigint; lastInsertRowid: number | bigint }>;
    get: Bound<unknown>;
    all: Bound<unknown[]>;
  };
}
type SqlValue = string | number | bigint | null | Uint8Array;
interface Bound<Answer> {
  (...values: SqlValue[]): Answer;
  (named: Record<string, SqlValue>): Answer;
}

/** The transaction that records an attempt's success, open for rows of the user's own tables. */
export interface CommitTx {
  /** The connection, on SQLite; on PostgreSQL reading it throws TX_INVALID. */
  readonly db: TransactionHandle;
  /** Runs a statement, on PostgreSQL; on SQLite it throws TX_INVALID. */
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>;
}

/** Writes the user's own rows in the transaction that records the success, or not at all; synchronous on SQLite. */
export type CommitRows = (tx: CommitTx) => void | Promise<void>;

/** How often a target's bytes changed during processing. A file that keeps changing is given up: each run may cost money. */
export interface FileChurn {
  times: number;
  waited: boolean;
}

const MAX_FILE_CHANGES = 5;

/** The first wait. Each further one is four times as long: 250 ms, 1 s, 4 s, 16 s. */
const FIRST_CHANGE_WAIT_MS = 250;

export const NO_CHURN: FileChurn = { times: 0, waited: false };

export function changeWaitMs(times: number): number | null {
  return times >= MAX_FILE_CHANGES ? null : FIRST_CHANGE_WAIT_MS * 4 ** (times - 1);
}
