import { getEnvironmentData, setEnvironmentData } from "node:worker_threads";

/**
 * Named instants at which a test may kill the process, as a crash would: `settle:written` is after the statements of a
 * settle and before its commit, `settle:committed` after the commit and before anybody was told.
 */
export type Moment = "begun" | "written" | "committed";

/** Each is one transaction of the store; the last is no transaction, and has no commit. */
export const OPERATIONS = [
  "acknowledge",
  "advance",
  "announce",
  "audit",
  "beat",
  "begin",
  "build",
  "cancel",
  "checkpoint",
  "claim",
  "costs",
  "declare",
  "enqueue",
  "expire",
  "hold",
  "listed",
  "lock",
  "migrate",
  "pause",
  "progress",
  "prune",
  "reclaim",
  "recover",
  "register",
  "renew",
  "report",
  "retry",
  "schedule",
  "settle",
  "sink",
  "stop",
  "tick",
  "transaction",
  "trim",
  "unregister",
  "deliver",
] as const;
export type Operation = (typeof OPERATIONS)[number];

/** Steps of what takes more than a transaction: each is passed when it is done. */
export const STEPS = [
  // Its place is there; the copy is; it is synced; it is checked; its manifest is there; it has its name; all of it has.
  "backup:begun",
  "backup:copied",
  "backup:synced",
  "backup:checked",
  "backup:written",
  "backup:named",
  "backup:kept",
  // The backup is beside the database; it is made ready to be worked in; who opens the database waits; it will be done; the
  // old files have other names; the new one has its name; nothing else is left.
  "restore:copied",
  "restore:prepared",
  "restore:planned",
  "restore:decided",
  "restore:aside",
  "restore:installed",
  "restore:kept",
  // What can be read is in a new database; so is what the backup has of the rest; it is made ready to be worked in; then as
  // for a restore.
  "salvage:read",
  "salvage:filled",
  "salvage:prepared",
  "salvage:planned",
  "salvage:decided",
  "salvage:aside",
  "salvage:installed",
  "salvage:kept",
  // Changes are in the journal's file; they are no longer in the database.
  "drain:written",
  "drain:removed",
] as const;
export type Step = (typeof STEPS)[number];

/** Every point there is. */
export const POINTS: readonly string[] = OPERATIONS.flatMap((operation) =>
  (["begun", "written", "committed"] as const).map((moment) => `${operation}:${moment}`),
)
  .filter((point) => point !== "deliver:committed")
  .concat(STEPS);

const KEY = "holdfast.crash-point";

/** Threads started later inherit it, so the keeper's own renewals can be killed too. */
let armed = getEnvironmentData(KEY) as string | undefined;

export function armPoint(name: string): void {
  armed = name;
  setEnvironmentData(KEY, name);
}

export function passPoint(operation: Operation, moment: Moment): void {
  if (armed !== undefined && armed === `${operation}:${moment}`) process.kill(process.pid, "SIGKILL");
}

export function passStep(step: Step): void {
  if (armed !== undefined && armed === step) process.kill(process.pid, "SIGKILL");
}
