import { HoldfastError } from "./errors.ts";
import { type LimitRule, parseRate } from "./limit.ts";
import { checkCount, refuseUnknown } from "./options.ts";

/** Over all workers: how many run at once, and how many start in how long; for each key by itself, where there is one. */
export interface Limit<In = unknown> {
  key?: (input: In) => string;
  concurrency?: number;
  rate?: `${number}/${"s" | "m" | "h" | "d"}`;
}

/** A limit as it is decided by, and what makes a key of an input. */
export interface CheckedLimit {
  rule: LimitRule;
  key: ((input: unknown) => string) | undefined;
}

/** One limit, many or none, as they are written. */
export function checkLimits(given: unknown, of: LimitRule["of"], where: string): CheckedLimit[] {
  return list(given).map((one, i) => checkLimit(one, of, i, `limit ${i + 1} of ${where}`));
}

function checkLimit(given: unknown, of: LimitRule["of"], position: number, what: string): CheckedLimit {
  refuseUnknown(given, ["key", "concurrency", "rate"], what);
  const { key, concurrency, rate } = given as Limit;
  if (key !== undefined && typeof key !== "function") {
    throw new HoldfastError(
      "OPTION_INVALID",
      `The key of ${what} is no function.`,
      "Give a function of the input, or leave it out.",
    );
  }
  if (concurrency === undefined && rate === undefined) {
    throw new HoldfastError("OPTION_INVALID", `There is nothing that ${what} limits.`, "Give `concurrency`, `rate`, or both.");
  }
  const rule: LimitRule = {
    of,
    position,
    keyed: key !== undefined,
    concurrency: concurrency === undefined ? null : checkCount(concurrency, `The concurrency of ${what}`, 1),
    rate: rate === undefined ? null : parseRate(rate, `The rate of ${what}`),
  };
  return { rule, key };
}

function list(given: unknown): unknown[] {
  if (given === undefined) return [];
  return Array.isArray(given) ? given : [given];
}
