export { call } from "./call.ts";
export { type TestClock, testClock } from "./clock.ts";
export { crashAt } from "./crash.ts";
export { drain } from "./drain.ts";
