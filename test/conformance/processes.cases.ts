import type { Check } from "./suite.ts";

export function processCases(_check: Check): void {}
