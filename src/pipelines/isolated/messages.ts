import type { Fingerprint } from "../../core/pipelines/context-hash.ts";
import type { JobError } from "../../core/jobs/job.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Outcome } from "../../core/jobs/retry.ts";
import type { DriverName } from "../../store/sqlite/driver.ts";
import type { NewJob } from "../../store/store.ts";

/** A target, as it is sent to another process. */
export interface ToldTarget {
  id: string;
  hash: string;
  parent?: ToldTarget;
  file?: { path: string; fingerprint: Fingerprint; snapshot: boolean };
}

/** One attempt at a stage, for a process of its own. Structured clones: bytes stay bytes. */
export interface ToldTask {
  module: string;
  pipeline: string;
  stage: string;
  /** What names its output in errors. */
  output: string;
  lease: LeaseRef;
  id: string;
  attempt: number;
  scheduledFor: Date | null;
  idempotencyKey: string;
  input: unknown;
  outputs: Record<string, unknown>;
  target: ToldTarget;
  /** Of a gather. */
  failed?: number;
  /** Where copies and snapshots are; null: the targets are no files. */
  artifacts: { folder: string; driver: DriverName } | null;
}

export interface Member {
  target: ToldTarget;
  output: unknown;
  outputs: Record<string, unknown>;
}

/** What the handler's process asks for, and waits for. */
export interface Calls {
  load: { args: []; answer: unknown };
  save: { args: [unknown]; answer: void };
  artifact: {
    args: [name: string, data: Uint8Array | string | { path: string }];
    answer: { name: string; hash: string; size: number };
  };
  /** The next members of a gather; none: there are no more. */
  members: { args: []; answer: Member[] };
  /** Targets that an expand has yielded. */
  targets: { args: [unknown[]]; answer: void };
}

/** What it says in passing. */
export interface Tells {
  cost: [{ usd?: number; tokens?: number }];
  progress: [fraction: number, message: string | undefined];
  log: [level: "debug" | "info" | "warn" | "error", message: string, data: object | undefined];
}

export type ToGuest =
  | { type: "run"; task: ToldTask }
  | { type: "abort"; reason: { name: string; code: string; message: string; hint: string } }
  | { type: "answer"; call: number; value: unknown }
  | { type: "refusal"; call: number; error: JobError };

export type FromGuest =
  | { type: "ready" }
  | { type: "call"; call: number; name: keyof Calls; args: unknown[] }
  | { type: "tell"; name: keyof Tells; args: unknown[] }
  /** `output`: JSON text, or bytes. `isUnchanged`: the file's bytes are still those it was claimed for. */
  | { type: "returned"; output: string | Uint8Array | null; isUnchanged: boolean; followUps: NewJob[] }
  | { type: "threw"; outcome: Outcome };
