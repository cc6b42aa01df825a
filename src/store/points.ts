import { getEnvironmentData, setEnvironmentData } from "node:worker_threads";

/** Instants at which a test may kill the process: "written" is before the commit, "committed" before the caller's answer. */
export type Moment = "begun" | "written" | "committed";

/** Transactions of the store, except the last operation, which has no commit. */
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
  "minutes",
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

export const STEPS = [
  "backup:begun",
  "backup:copied",
  "backup:synced",
  "backup:checked",
  "backup:written",
  "backup:named",
  "backup:kept",
  "restore:copied",
  "restore:prepared",
  "restore:planned",
  "restore:decided",
  "restore:aside",
  "restore:installed",
  "restore:kept",
  "salvage:read",
  "salvage:filled",
  "salvage:prepared",
  "salvage:planned",
  "salvage:decided",
  "salvage:aside",
  "salvage:installed",
  "salvage:kept",
  "drain:written",
  "drain:removed",
] as const;
export type Step = (typeof STEPS)[number];

export const POINTS: readonly string[] = OPERATIONS.flatMap((operation) =>
  (["begun", "written", "committed"] as const).map((moment) => `${operation}:${moment}`),
)
  .filter((point) => point !== "deliver:committed")
  .concat(STEPS);

const KEY = "holdfast.crash-point";

/** Threads that are started later inherit it. */
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
