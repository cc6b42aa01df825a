export type { PowerCutImage } from "../store/sqlite/maintenance/power-cut.ts";
export { call } from "./call.ts";
export { type TestClock, testClock } from "./clock.ts";
export { crashAt } from "./crash.ts";
export { drain } from "./drain.ts";
export { type Crash, type CrashOptions, simulateCrash } from "./simulate-crash.ts";
export { everyJob, type JobBefore, type RecoveryVerdict, validateRecovery } from "./validate-recovery.ts";
