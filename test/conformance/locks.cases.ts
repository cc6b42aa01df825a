import type { Check } from "./suite.ts";

export function lockCases(_check: Check): void {}
