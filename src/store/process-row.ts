import type { ProcessId } from "../core/ids.ts";
import type { Act } from "./audit.ts";
import { type Flag, isYes } from "./flag.ts";
import type { Life, ProcessView, Works } from "./processes.ts";

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

/** What the lock says of a process, and the boot: whoever is dead, and was started before the host was, went with the host. */
export function lifeOf(lock: "alive" | "dead" | "unknown", boots: { its: string; ours: string }): Life {
  // Of those before a restore none has the database open: nobody can restore it then.
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
