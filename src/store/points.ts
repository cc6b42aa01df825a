import { getEnvironmentData, setEnvironmentData } from "node:worker_threads";

/**
 * Named instants at which a test may kill the process, as a crash would: `settle:written` is after the statements of a
 * settle and before its commit, `settle:committed` after the commit and before anybody was told.
 */
export type Moment = "begun" | "written" | "committed";

const KEY = "holdfast.crash-point";

/** Threads started later inherit it, so the keeper's own renewals can be killed too. */
let armed = getEnvironmentData(KEY) as string | undefined;

export function armPoint(name: string): void {
  armed = name;
  setEnvironmentData(KEY, name);
}

export function passPoint(operation: string, moment: Moment): void {
  if (armed !== undefined && armed === `${operation}:${moment}`) process.kill(process.pid, "SIGKILL");
}
