import { type Budget, fromBudget } from "./budget.ts";
import type { BuildReason, BuildState } from "./build.ts";
import type { JobState } from "./job.ts";

/** Who did it, where nobody did: what is found after a crash. */
export const RECOVERY = "recovery";
/** The same, where the journal of changes cannot go on. */
export const JOURNAL = "journal";
/** Who did it, where nobody has said who it is. */
export const UNNAMED = "somebody";

/** Whoever acts through a handle: the process, and the person who has started it, where it was started by hand. */
export interface Actor {
  program: string;
  pid: number;
  host: string;
  user?: string;
}

/** For the audit: `holdfast unlock (pid 4711 on here, by alice)`. */
export function actorText({ program, pid, host, user }: Actor): string {
  return `${program} (pid ${pid} on ${host}${user === undefined ? "" : `, by ${user}`})`;
}

/** What an act is about: that of `lock.broken` is `lock:NAME`. Builds are their ids, as they are. */
export function subjectOf(action: string, name: string): string {
  return `${action.slice(0, action.indexOf("."))}:${name}`;
}

/** What is kept of a build, before an act and after it: what may be different, and nothing that is secret. */
export function auditedBuild(build: AuditedBuild): object {
  const { state, reason, note, seq, budget, approved } = build;
  return { state, reason, note, seq, budget: fromBudget(budget), approved };
}

export interface AuditedBuild {
  state: BuildState;
  reason: BuildReason;
  note: string | null;
  seq: number;
  budget: Budget;
  approved: boolean;
}

/** The same of a job: its input, its output and its errors are its own business. */
export function auditedJob({ name, queue }: { name: string; queue: string }, state: JobState): object {
  return { name, queue, state };
}
