import type { NewEvent } from "../../core/event.ts";
import type { ProcessId } from "../../core/ids.ts";
import type { Declaration } from "../../core/settings.ts";
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
}

export interface Settings {
  declare(tx: Tx, declaration: Declaration): Answer<unknown>;
  /** False if it is so already. */
  pause(tx: Tx, queue: string, paused: boolean): Answer<boolean>;
}

export interface Enqueue {
  run(tx: Tx, jobs: readonly NewJob[]): Answer<Enqueued[]>;
}
