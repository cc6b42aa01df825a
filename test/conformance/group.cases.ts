import type { Check } from "./suite.ts";

export function groupCases(_check: Check): void {}
