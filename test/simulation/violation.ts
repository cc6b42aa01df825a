import { isDeepStrictEqual, inspect } from "node:util";

/** The store did something that it has promised not to do. */
export class Violation extends Error {
  override name = "Violation";
}

export function must(condition: boolean, promise: string | (() => string)): asserts condition {
  if (!condition) throw new Violation(typeof promise === "string" ? promise : promise());
}

export function mustEqual(actual: unknown, expected: unknown, what: string): void {
  if (isDeepStrictEqual(actual, expected)) return;
  throw new Violation(`${what}: the store says ${say(actual)}, the model ${say(expected)}`);
}

export function say(value: unknown): string {
  return inspect(value, { depth: 6, breakLength: Infinity, compact: true, maxArrayLength: 40, maxStringLength: 60 });
}
