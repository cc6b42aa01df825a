import type { Check } from "./suite.ts";

export function noteCases(_check: Check): void {}
