import type { ProcessId } from "../core/text/ids.ts";
import type { Act } from "./audit.ts";
import { type Flag, isYes } from "./job-row.ts";

/** Who has the store open, and whether he lives. */
export interface ProcessStore {
  /** Enters this process, with a proof of life that ends with it. Its first commit: before it, it may claim and acknowledge nothing. */
  register(process: NewProcess): Promise<ProcessId>;
  /** Another handle of an entered process, in a thread of it. */
  actAs(id: ProcessId): void;
  /** Which of the others live, as far as it can be proven from here. `boot`: of this host, for a caller that is not registered. */
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

/** Processes that are proven dead or alive; of the others nothing is known. */
export interface KnownProcesses {
  dead: readonly ProcessId[];
  alive: readonly ProcessId[];
}

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

/** `alive` names the file whose lock proves life; "" where there is none. */
export type RegisteredProcess = ProcessView & { alive: string };

/** A process as it is read; `works` is JSON. */
export type ProcessRow = Omit<RegisteredProcess, "works" | "stoppable"> & { works: string | null; stoppable: Flag };

export function toProcess(row: ProcessRow): RegisteredProcess {
  const works = row.works === null ? [] : (JSON.parse(row.works) as Works[]);
  return Object.assign({}, row, { works, stoppable: isYes(row.stoppable) });
}

/** What an announcement is written as. */
export function worksText(works: readonly Works[]): string | null {
  return works.length === 0 ? null : JSON.stringify(works);
}

/** The boot of processes that are in a database because they were when its backup was made. */
export const RESTORED = "restored";

/** What the lock says of a process, and the boot: a dead process that was started before the host was, ended with the host. */
export function lifeOf(lock: "alive" | "dead" | "unknown", boots: { its: string; ours: string }): Life {
  // Of those before a restore none has the database open: a restore is refused then.
  if (boots.its === RESTORED) return "rebooted";
  return lock === "dead" && boots.its !== boots.ours ? "rebooted" : lock;
}

/** One that was asked to stop, for people. */
export type AskedProcess = Pick<ProcessView, "pid" | "host" | "program">;

/** What is written down of it, and told. */
export function stopAsked(id: ProcessId, { pid, host, program }: AskedProcess, drain: number): [act: Act, data: object] {
  const process = { pid, host, program };
  return [
    { action: "process.stop_asked", name: String(id), before: process, after: { ...process, drain } },
    { process: id, ...process, drain },
  ];
}
