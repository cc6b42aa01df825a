export type { PowerCutImage } from "../store/sqlite/maintenance/power-cut.ts";
export { type TestClock, testClock } from "./clock.ts";
export { call, drain } from "./call.ts";
export { type Crash, type CrashOptions, crashAt, simulateCrash } from "./simulate-crash.ts";
export { everyJob, type JobBefore, type RecoveryVerdict, validateRecovery } from "./validate-recovery.ts";
