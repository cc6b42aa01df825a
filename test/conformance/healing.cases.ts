import type { Check } from "./suite.ts";

export function healingCases(_check: Check): void {}
