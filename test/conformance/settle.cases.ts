import type { Check } from "./suite.ts";

export function settleCases(_check: Check): void {}
