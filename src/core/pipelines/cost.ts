import { HoldfastError } from "../text/errors.ts";
import { describeValue, didYouMean } from "../text/options.ts";
import { numberText } from "../text/text.ts";

/** What something costs, as people write it. */
export interface Cost {
  usd?: number;
  tokens?: number;
}

/** Whole millionths of a dollar, and whole tokens. */
export interface Amount {
  micros: number;
  tokens: number;
}

export const NO_COST: Amount = { micros: 0, tokens: 0 };

export const UNITS = ["micros", "tokens"] as const;
export type Unit = (typeof UNITS)[number];

const MICROS_PER_USD = 1_000_000;
/** Up to here a double in dollars holds each millionth. */
export const MAX_AMOUNT = 1_000_000_000_000_000;

/** Rounds up: rounded down, a million calls of a tenth of a millionth would be free. */
export function toAmount(cost: unknown, what: string): Amount {
  const { usd = 0, tokens = 0 } = checkCost(cost, what);
  return { micros: roundUp(usd, MICROS_PER_USD), tokens: Math.ceil(tokens) };
}

export function toCost({ micros, tokens }: Amount): Required<Cost> {
  return { usd: micros / MICROS_PER_USD, tokens };
}

export function amountText({ micros, tokens }: Amount): string {
  const parts: string[] = [];
  if (micros !== 0 || tokens === 0) parts.push(unitText("micros", micros));
  if (tokens !== 0) parts.push(unitText("tokens", tokens));
  return parts.join(" and ");
}

export function unitText(unit: Unit, amount: number): string {
  if (unit === "tokens") return `${amount} token${amount === 1 ? "" : "s"}`;
  const digits = (amount / MICROS_PER_USD).toFixed(6).replace(/0{1,4}$/, "");
  return `$${digits}`;
}

export function costText(cost: Cost): string {
  return amountText(toAmount(cost, "A cost"));
}

export function spentText(spent: Required<Cost>, budget: Cost): string {
  const parts: string[] = [];
  const usd = unitText("micros", toAmount({ usd: spent.usd }, "A cost").micros);
  if (budget.usd !== undefined) parts.push(`${usd} of ${costText({ usd: budget.usd })}`);
  else if (spent.usd > 0) parts.push(usd);
  if (budget.tokens !== undefined) parts.push(`${numberText(spent.tokens)} of ${numberText(budget.tokens)} tokens`);
  else if (spent.tokens > 0) parts.push(`${numberText(spent.tokens)} tokens`);
  return parts.join(", ");
}

/** Saturates: what was spent is spent, and a sum too large to count is still larger than every budget. */
export function plus(a: Amount, b: Amount): Amount {
  return { micros: addCapped(a.micros, b.micros), tokens: addCapped(a.tokens, b.tokens) };
}

export function minus(a: Amount, b: Amount): Amount {
  return { micros: Math.max(0, a.micros - b.micros), tokens: Math.max(0, a.tokens - b.tokens) };
}

export function larger(a: Amount, b: Amount): Amount {
  return { micros: Math.max(a.micros, b.micros), tokens: Math.max(a.tokens, b.tokens) };
}

export function checkCost(cost: unknown, what: string): Cost {
  if (cost instanceof Promise) {
    cost.catch(() => {});
    throw new HoldfastError("COST_INVALID", `${what} is a promise.`, "Return the cost itself: the function must be synchronous.");
  }
  if (typeof cost !== "object" || cost === null || Array.isArray(cost)) {
    throw new HoldfastError(
      "COST_INVALID",
      `${what} must be an object, got ${describeValue(cost)}.`,
      "Give an object such as { usd: 0.002, tokens: 1500 }.",
    );
  }
  for (const name of Object.keys(cost)) {
    if (name === "usd" || name === "tokens") continue;
    const meant = didYouMean(/dollar/i.test(name) ? "usd" : name, ["usd", "tokens"]);
    throw new HoldfastError(
      "COST_INVALID",
      `${what} has an unknown part "${name}".`,
      `${meant}Give \`usd\`, \`tokens\`, or both.`,
    );
  }
  const { usd, tokens } = cost as { usd?: unknown; tokens?: unknown };
  const checked: Cost = {};
  if (usd !== undefined) checked.usd = checkNumber(usd, MAX_AMOUNT / MICROS_PER_USD, `${what}.usd`);
  if (tokens !== undefined) checked.tokens = checkNumber(tokens, MAX_AMOUNT, `${what}.tokens`);
  return checked;
}

function checkNumber(value: unknown, most: number, what: string): number {
  // Adding 0 turns -0 into 0.
  if (typeof value === "number" && value >= 0 && value <= most) return value + 0;
  throw new HoldfastError(
    "COST_INVALID",
    `${what} must be a number from 0 to ${most}, got ${describeValue(value)}.`,
    `Give a number from 0 to ${most}.`,
  );
}

/** Rounds up in the shortest decimals of both: a product alone would make 1,100,001 of 1.1 × 1,000,000. */
function roundUp(value: number, parts: number): number {
  const near = Math.round(value * parts);
  return near / parts >= value ? near : near + 1;
}

export function roundDown(value: number, parts: number): number {
  const near = Math.round(value * parts);
  return near / parts <= value ? near : near - 1;
}

function addCapped(a: number, b: number): number {
  return Math.min(Number.MAX_SAFE_INTEGER, a + b);
}
