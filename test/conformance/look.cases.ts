import type { Check } from "./suite.ts";

export function lookCases(_check: Check): void {}
