import type { NewEvent } from "../../core/event.ts";
import type { ProcessId } from "../../core/ids.ts";
import type { Reclaimed } from "../../core/retry.ts";
import type { Act, NewAuditEntry } from "../audit.ts";
import type { Enqueued, NewJob } from "../store.ts";
import type { Tx } from "./access.ts";
import type { Answer } from "./script.ts";

/** What scripts use and each database still does in its own way. */
export interface Audit {
  readonly actor: string | null;
  add(tx: Tx, entry: NewAuditEntry): Answer<unknown>;
}

export interface Events {
  tell(tx: Tx, event: NewEvent): Answer<void>;
  act(tx: Tx, type: string, subject: string, data?: object, build?: string): Answer<void>;
  /** Something that no other event has. */
  unique(tx: Tx): Answer<string>;
}

export interface Acts {
  add(tx: Tx, act: Act, data?: object): Answer<void>;
}

export interface Healed {
  record(tx: Tx, cause: string, healed: Reclaimed & { locks: number }): Answer<void>;
}

export interface Processes {
  readonly self: ProcessId | null;
}

export interface Settings {
  pause(tx: Tx, queue: string, paused: boolean): Answer<boolean>;
}

export interface Enqueue {
  run(tx: Tx, jobs: readonly NewJob[]): Answer<Enqueued[]>;
}
