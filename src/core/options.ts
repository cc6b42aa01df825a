import { HoldfastError } from "./errors.ts";
import { Nearest } from "./nearest.ts";

export function checkName(name: unknown, what: string): string {
  // A line break would end the name inside the store's name-and-key text.
  // oxlint-disable-next-line no-control-regex
  if (typeof name === "string" && name.length > 0 && name.length <= 200 && name.isWellFormed() && !/[\u0000-\u001f]/.test(name))
    return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} must be a string of 1 to 200 characters, got ${describeValue(name)}.`,
    "Give a string of 1 to 200 characters without control characters.",
  );
}

/** Rejects an option that is not in `known`: a misspelled option would be ignored without a word. */
export function refuseUnknown(options: unknown, known: readonly string[], what: string): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw invalidOption(`${what} must be an object, got ${describeValue(options)}.`, "Give an object, or leave it out.");
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    const nearest = new Nearest(name, 1);
    for (const one of known) nearest.look(one);
    const [meant] = nearest.found;
    throw invalidOption(
      `${what} has no option "${name}".`,
      `${meant === undefined ? "" : `Did you mean "${meant}"? `}Options: ${known.join(", ")}.`,
    );
  }
}

export function checkCount(value: unknown, what: string, least: number): number {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= least) return value;
  throw new HoldfastError(
    "NUMBER_INVALID",
    `${what} must be a whole number ≥ ${least}, got ${describeValue(value)}.`,
    `Give a whole number of at least ${least}.`,
  );
}

export function checkAtLeast(millis: number, least: number, what: string): number {
  if (millis >= least) return millis;
  throw new HoldfastError(
    "DURATION_INVALID",
    `${what} must be at least ${least} ms, got ${millis} ms.`,
    `Give at least ${least} ms.`,
  );
}

export function checkOneOf<T extends string>(value: T, allowed: readonly T[], what: string): T {
  if (allowed.includes(value)) return value;
  const choices = allowed.map((one) => `"${one}"`).join(", ");
  throw invalidOption(`${what} must be one of ${choices}, got ${describeValue(value)}.`, `Give one of ${choices}.`);
}

export function checkBoolean(value: unknown, what: string): boolean {
  if (typeof value === "boolean") return value;
  throw invalidOption(`${what} must be true or false, got ${describeValue(value)}.`, "Give true or false.");
}

export function checkFunction<F>(value: F, what: string): F {
  if (typeof value === "function") return value;
  throw invalidOption(`${what} must be a function, got ${describeValue(value)}.`, "Give a function, or leave it out.");
}

/** A string with at least one character, without a length limit. */
export function checkText(value: unknown, what: string): string {
  if (typeof value === "string" && value !== "") return value;
  throw invalidOption(
    `${what} must be a non-empty string, got ${describeValue(value)}.`,
    "Give a string with at least one character.",
  );
}

export function checkSignal(value: unknown, what: string): AbortSignal {
  if (value instanceof AbortSignal) return value;
  throw invalidOption(`${what} must be an AbortSignal, got ${describeValue(value)}.`, "Give the `signal` of an AbortController.");
}

export function invalidOption(message: string, hint: string): HoldfastError {
  return new HoldfastError("OPTION_INVALID", message, hint);
}

const LONGEST_DESCRIPTION = 100;

/** Describes a value in an error message. It never throws, whatever the value is. */
export function describeValue(value: unknown): string {
  switch (typeof value) {
    case "string":
      return value.length > LONGEST_DESCRIPTION ? `a string of ${value.length} characters` : JSON.stringify(value);
    case "bigint":
      return `the bigint ${value}n`;
    case "function":
      return "a function";
    case "object":
      if (value === null) return "null";
      return Array.isArray(value) ? "an array" : "an object";
    default:
      return String(value);
  }
}
