import type { Check } from "./suite.ts";

export function leaseCases(_check: Check): void {}
