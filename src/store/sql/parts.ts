import type { NewEvent } from "../../core/jobs/event.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Next } from "../../core/jobs/retry.ts";
import type { Declaration } from "../../core/limits/settings.ts";
import type { Enqueued, NewJob } from "../store.ts";
import type { Tx } from "./access.ts";
import type { Answer } from "./script.ts";

/** What scripts use and each database still does in its own way. */
export interface Events {
  tell(tx: Tx, event: NewEvent): Answer<void>;
  act(tx: Tx, type: string, subject: string, data?: object, build?: string): Answer<void>;
  /** Something that no other event has. */
  unique(tx: Tx): Answer<string>;
}

export interface Processes {
  readonly self: ProcessId | null;
  /** Called before a process is unregistered; the result is called after that. */
  forgetting?(id: ProcessId): () => void;
  /** False if it still holds jobs, or is not registered. */
  remove(tx: Tx, id: ProcessId): Answer<boolean>;
}

export interface Settings {
  declare(tx: Tx, declaration: Declaration): Answer<unknown>;
  /** False if it is so already. */
  pause(tx: Tx, queue: string, paused: boolean): Answer<boolean>;
}

/** A lease that is ended on behalf of its holder, if it still ends at this instant. */
export interface ReclaimedLease extends LeaseRef {
  expiresAt: number;
  kind: "crashed" | "interrupted" | "stalled";
}

export interface Settle {
  /** What became of each job; null if its lease is another by now. */
  reclaim(tx: Tx, leases: readonly ReclaimedLease[]): Answer<(Next | null)[]>;
}

export interface Enqueue {
  run(tx: Tx, jobs: readonly NewJob[]): Answer<Enqueued[]>;
}
