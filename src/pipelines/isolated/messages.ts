import type { Fingerprint } from "../../core/pipelines/context-hash.ts";
import type { Cost } from "../../core/pipelines/cost.ts";
import type { JobError } from "../../core/jobs/job.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Outcome } from "../../core/jobs/retry.ts";
import type { Log } from "../../core/text/text.ts";
import type { DriverName } from "../../store/sqlite/driver.ts";
import type { NewJob } from "../../store/store.ts";

export interface TargetMessage {
  id: string;
  hash: string;
  parent?: TargetMessage;
  file?: { path: string; fingerprint: Fingerprint; snapshot: boolean };
}

/** One attempt at a stage, sent by structured clone. */
export interface TaskMessage {
  module: string;
  pipeline: string;
  stage: string;
  /** Names the output in errors. */
  output: string;
  lease: LeaseRef;
  id: string;
  attempt: number;
  scheduledFor: Date | null;
  idempotencyKey: string;
  input: unknown;
  outputs: Record<string, unknown>;
  target: TargetMessage;
  failed?: number;
  /** Null: the targets are no files. */
  artifacts: { folder: string; driver: DriverName } | null;
}

export interface Member {
  target: TargetMessage;
  output: unknown;
  outputs: Record<string, unknown>;
}

/** Requests of the child process. */
export interface Calls {
  load: { args: []; answer: unknown };
  save: { args: [unknown]; answer: void };
  artifact: {
    args: [name: string, data: Uint8Array | string | { path: string }];
    answer: { name: string; hash: string; size: number };
  };
  /** Empty: there are no more. */
  members: { args: []; answer: Member[] };
  targets: { args: [unknown[]]; answer: void };
  cost: { args: [Cost]; answer: void };
  progress: { args: [fraction: number, message: string | undefined]; answer: void };
  log: { args: [level: keyof Log, message: string, data: object | undefined]; answer: void };
}

export type ToChild =
  | { type: "run"; task: TaskMessage }
  | { type: "abort"; reason: { name: string; code: string; message: string; hint: string } }
  | { type: "answer"; call: number; value: unknown }
  | { type: "refusal"; call: number; error: JobError };

export type FromChild =
  | { type: "ready" }
  /** `call` null: the child does not wait for the answer. */
  | { type: "call"; call: number | null; name: keyof Calls; args: unknown[] }
  /** `isUnchanged`: the file still has the bytes that it was claimed with. */
  | { type: "returned"; output: string | Uint8Array | null; isUnchanged: boolean; followUps: NewJob[] }
  | { type: "threw"; outcome: Outcome };
