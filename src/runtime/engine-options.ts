import { hostname } from "node:os";
import { actorText } from "../core/audit.ts";
import type { Clock } from "../core/clock.ts";
import type { Log } from "./log.ts";

export interface EngineOptions {
  clock: Clock;
  log: Log;
  program: string;
  /** Who has started it, where it was started by hand. */
  user?: string;
  /** "later": opening recovers nothing; whoever works does. "manual": where there is something to recover, it is only read. */
  recovery?: "auto" | "manual" | "later";
  onStop?: (drain: number) => void;
  /** The folder of artifacts; default: beside the file. */
  artifacts?: string;
  /** Whether a backup is made before the schema is changed; default true. */
  backsUp?: boolean;
  /** Whether a file is to have a journal of changes; left out: as it is. */
  journal?: boolean;
  /** How long a write to a file waits for another process's transaction; left out: the store's default. */
  writeWaitMs?: number;
  /** Only looks: it does not even say that it is there, so nothing is written. */
  looks?: boolean;
}

export function actorOf({ program, user }: EngineOptions): string {
  return actorText({ program, pid: process.pid, host: hostname(), ...(user === undefined ? {} : { user }) });
}
