import { type Budget, fromBudget } from "./budget.ts";
import type { BuildReason, BuildState } from "./build.ts";

/** Who did it, where nobody did: what is found after a crash. */
export const RECOVERY = "recovery";

/** Who did it, where an orchestrator did. */
export function orchestrator({ program, pid, host }: { program: string; pid: number; host: string }): string {
  return `${program} (pid ${pid} on ${host})`;
}

/** What an act on the orchestrator's lock of a pipeline is about. */
export function leadSubject(pipeline: string): string {
  return `lead:${pipeline}`;
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
