import { setTimeout as pause } from "node:timers/promises";
import { HoldfastError } from "../../core/text/errors.ts";
import { isProven } from "../../core/jobs/lease.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { CrashedProcess } from "../../core/recovery/recovery-report.ts";
import type { RecoveryPreview } from "../../store/recoveries.ts";
import type { Store } from "../../store/store.ts";
import { bootId } from "../host.ts";
import type { Janitor } from "./janitor.ts";

/** How long, and how often, those who work are given the time to bury. In milliseconds. */
const PATIENCE = 5_000;
const PAUSE = 50;

/** What there is to recover, and what a recovery would do about it. */
export interface RecoveryPlan extends Omit<RecoveryPreview, "staleLocks"> {
  /** Of holders that are not proven dead: running jobs whose lease has expired, and names of locks that are over. */
  expired: { jobs: number; locks: string[] };
  crashed: CrashedProcess[];
  /** A recovery was killed itself, or left its report unended: it goes on with that. */
  goesOn: boolean;
}

/** Null: there is nothing to recover. Nothing is written. `janitor`: the one that would do it. */
export async function previewOf(store: Store, janitor: Pick<Janitor, "expired">): Promise<RecoveryPlan | null> {
  const leases = await janitor.expired();
  const { dead, ...crash } = await crashOf(store);
  const { staleLocks, ...plan } = await store.recoveries.preview(dead, leases);
  if (!isOfCrash(crash) && leases.length + staleLocks.length === 0) return null;
  return { ...crash, ...plan, expired: { jobs: leases.length, locks: staleLocks } };
}

/** Whether a process has crashed, or a recovery was not ended: more than leases and locks whose time is over. */
export function isOfCrash({ crashed, goesOn }: Pick<RecoveryPlan, "crashed" | "goesOn">): boolean {
  return crashed.length > 0 || goesOn;
}

async function crashOf(store: Store): Promise<Pick<RecoveryPlan, "crashed" | "goesOn"> & { dead: ProcessId[] }> {
  const probed = await store.processes.probe(bootId());
  const dead = probed.filter(({ life }) => isProven(life)).map(({ process }) => process);
  const [newest] = await store.recoveries.reports({ limit: 1, which: "all" });
  const others = (await store.processes.all()).filter(({ id }) => dead.every((one) => one.id !== id));
  const goesOn = newest?.state === "running" && others.every(({ id }) => id !== newest.owner);
  const crashed = dead.map(({ host, pid, program, startedAt }) => ({ host, pid, program, startedAt }));
  return { dead: dead.map(({ id }) => id), crashed, goesOn };
}

/**
 * Whether a crash has left something that waits for an operator. Whoever dies beside workers is buried by them, in a moment,
 * so that is waited for: a worker that is started again at once would else be refused for nothing.
 */
export async function isLeftBehind(store: Store): Promise<boolean> {
  for (let waited = 0; ; waited += PAUSE) {
    if (!isOfCrash(await crashOf(store))) return false;
    const others = await store.processes.probe(bootId());
    const works = others.some(({ process, life }) => life === "alive" && process.works.length > 0);
    if (!works || waited >= PATIENCE) return true;
    await pause(PAUSE);
  }
}

export function recoveryPending(name: string): HoldfastError {
  return new HoldfastError(
    "RECOVERY_PENDING",
    `${name} was left behind by a crash, and is only read until somebody has it recovered.`,
    "Run `holdfast recover` to see what that would do, `holdfast recover --apply` to do it, and open it again.",
  );
}
