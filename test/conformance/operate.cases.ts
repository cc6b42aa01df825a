import type { Check } from "./suite.ts";

export function operateCases(_check: Check): void {}
