import { HoldfastError } from "./errors.ts";

export function checkName(name: unknown, what: string): string {
  // A line break would end the name inside the store's name-and-key text.
  // oxlint-disable-next-line no-control-regex
  if (typeof name === "string" && name.length > 0 && name.length <= 200 && name.isWellFormed() && !/[\u0000-\u001f]/.test(name))
    return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} is ${JSON.stringify(name) ?? String(name)}.`,
    "Give a text of 1 to 200 characters without control characters.",
  );
}

/** An option that is passed over in silence is a promise broken in silence. */
export function refuseUnknown(options: unknown, known: readonly string[], what: string): void {
  if (typeof options !== "object" || options === null) {
    throw new HoldfastError(
      "OPTION_INVALID",
      `The options of ${what} are ${String(options)}.`,
      "Give an object, or leave them out.",
    );
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    throw new HoldfastError("OPTION_INVALID", `${what} knows no option "${name}".`, `Give some of ${known.join(", ")}.`);
  }
}

export function checkCount(value: number, what: string, least: number): number {
  if (Number.isSafeInteger(value) && value >= least) return value;
  throw new HoldfastError("NUMBER_INVALID", `${what} is ${String(value)}.`, `Give a whole number of at least ${least}.`);
}

export function checkAtLeast(millis: number, least: number, what: string): number {
  if (millis >= least) return millis;
  throw new HoldfastError("DURATION_INVALID", `${what} is ${millis} ms.`, `Give at least ${least} ms.`);
}

export function checkOneOf<T extends string>(value: T, allowed: readonly T[], what: string): T {
  if (allowed.includes(value)) return value;
  throw new HoldfastError(
    "OPTION_INVALID",
    `${what} is ${JSON.stringify(value)}.`,
    `Give one of ${allowed.map((one) => `"${one}"`).join(", ")}.`,
  );
}
