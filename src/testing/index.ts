export { type TestClock, testClock } from "./clock.ts";
export { crashAt } from "./crash.ts";
