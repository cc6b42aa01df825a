import { HoldfastError } from "../../core/errors.ts";
import { isProven } from "../../core/lease.ts";
import type { CrashedProcess } from "../../core/recovery-report.ts";
import type { RecoveryPreview } from "../../store/recoveries.ts";
import type { Store } from "../../store/store.ts";
import { bootId } from "../boot.ts";

/** What there is to recover, and what a recovery would do about it. */
export interface RecoveryPlan extends RecoveryPreview {
  crashed: CrashedProcess[];
  /** A recovery was killed itself, or left its report unended: it goes on with that. */
  goesOn: boolean;
}

/** Null: there is nothing to recover. Nothing is written. */
export async function previewOf(store: Store): Promise<RecoveryPlan | null> {
  const probed = await store.probe(bootId());
  const dead = probed.filter(({ life }) => isProven(life)).map(({ process }) => process);
  const [newest] = await store.recoveries.reports({ limit: 1, which: "all" });
  const others = (await store.processes()).filter(({ id }) => dead.every((one) => one.id !== id));
  const goesOn = newest?.state === "running" && others.every(({ id }) => id !== newest.owner);
  if (dead.length === 0 && !goesOn) return null;
  const crashed = dead.map(({ host, pid, program, startedAt }) => ({ host, pid, program, startedAt }));
  return { crashed, goesOn, ...(await store.recoveries.preview(dead.map(({ id }) => id))) };
}

export function recoveryPending(name: string): HoldfastError {
  return new HoldfastError(
    "RECOVERY_PENDING",
    `${name} was left behind by a crash, and is only read until somebody has it recovered.`,
    "Run `holdfast recover` to see what that would do, `holdfast recover --apply` to do it, and open it again.",
  );
}
