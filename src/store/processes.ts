import type { ProcessId } from "../core/text/ids.ts";
import type { Act } from "./audit.ts";
import { type Flag, isYes } from "./job-row.ts";
import type { ProcessStore } from "./store.ts";

export interface ProbedProcesses {
  /** Null: it is not registered. */
  self: ProcessView | null;
  others: { process: ProcessView; life: Life }[];
}

export async function registeredProcesses(processes: Pick<ProcessStore, "probe">): Promise<ProcessView[]> {
  const { self, others } = await processes.probe();
  return [...(self === null ? [] : [self]), ...others.map(({ process }) => process)].sort((a, b) => a.id - b.id);
}

/** Whether a process lives. "dead" and "rebooted" are proven. */
export type Life = "alive" | "dead" | "rebooted" | "unknown";

/** Processes that are proven dead or alive. Nothing is known of the others. */
export interface KnownProcesses {
  dead: readonly ProcessId[];
  alive: readonly ProcessId[];
}

export interface NewProcess {
  /** Shared by the threads of one process. */
  identity?: string;
  pid: number;
  host: string;
  boot: string;
  program: string;
  stoppable?: boolean;
}

export interface ProcessView extends NewProcess {
  id: ProcessId;
  startedAt: number;
  works: readonly Works[];
  /** How long its running jobs may continue after an operator asked it to stop. Null: it was not asked. */
  stop: number | null;
}

export interface Works {
  queue: string;
  name: string;
  version: number;
}

/** A registered process. `alive` is the token of its lock; "": it has none. */
export type RegisteredProcess = ProcessView & { alive: string };

export type ProcessRow = Omit<RegisteredProcess, "works" | "stoppable"> & { works: string | null; stoppable: Flag };

export function toProcess(row: ProcessRow): RegisteredProcess {
  const works = row.works === null ? [] : (JSON.parse(row.works) as Works[]);
  return Object.assign({}, row, { works, stoppable: isYes(row.stoppable) });
}

export function worksText(works: readonly Works[]): string | null {
  return works.length === 0 ? null : JSON.stringify(works);
}

export const RESTORED = "restored";

/** Returns "rebooted" for a dead process of an earlier boot, because it ended with the host. */
export function lifeOf(lock: "alive" | "dead" | "unknown", boots: { its: string; ours: string }): Life {
  // No process of before a restore lives, because a restore is rejected while a process has the database open.
  if (boots.its === RESTORED) return "rebooted";
  return lock === "dead" && boots.its !== boots.ours ? "rebooted" : lock;
}

export type AskedProcess = Pick<ProcessView, "pid" | "host" | "program">;

export function stopAsked(id: ProcessId, { pid, host, program }: AskedProcess, drain: number): [act: Act, data: object] {
  const process = { pid, host, program };
  return [
    { action: "process.stop_asked", name: String(id), before: process, after: { ...process, drain } },
    { process: id, ...process, drain },
  ];
}
