import type { ProcessId } from "../core/ids.ts";

/** Who has the store open, and whether he lives. */
export interface ProcessStore {
  /** Enters this process, with a proof of life that ends with it. Its first commit: before it, it may claim and acknowledge nothing. */
  register(process: NewProcess): Promise<ProcessId>;
  /** Another handle of an entered process, in a thread of it. */
  actAs(id: ProcessId): void;
  /** Who of the others lives, as far as it can be proven from here. `boot`: of this host, by somebody who is not entered. */
  probe(boot?: string): Promise<{ process: ProcessView; life: Life }[]>;
  all(): Promise<ProcessView[]>;
  /** How many jobs each process runs now; those claimed by hand are under null. */
  running(): Promise<Map<ProcessId | null, number>>;
  /** What a process works on, for those who look whether anybody does. */
  announce(id: ProcessId, works: readonly Works[]): Promise<void>;
  /** Asks processes that heed it to stop, their running jobs within `drain`; the answer is who was asked. */
  askToStop(ids: readonly ProcessId[], drain: number): Promise<ProcessId[]>;
  /** Forgets a process that holds nothing any more. */
  unregister(id: ProcessId): Promise<boolean>;
}

/** "dead" is proven, "rebooted" too: its host was started anew since. */
export type Life = "alive" | "dead" | "rebooted" | "unknown";

export interface NewProcess {
  /** The same for the threads of one process and for no other. */
  identity?: string;
  pid: number;
  host: string;
  boot: string;
  program: string;
  /** It stops when `askToStop` says so. */
  stoppable?: boolean;
}

export interface ProcessView extends NewProcess {
  id: ProcessId;
  startedAt: number;
  works: readonly Works[];
  /** Asked to stop: how long its running jobs may go on. */
  stop: number | null;
}

/** Jobs of a queue, name and version. */
export interface Works {
  queue: string;
  name: string;
  version: number;
}
