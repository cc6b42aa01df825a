import { hash } from "node:crypto";
import { HoldfastError } from "../text/errors.ts";
import type { Outcome } from "../jobs/retry.ts";
import { hasEnded, type MovingBuild } from "./build.ts";
import { describeValue, didYouMean } from "../text/options.ts";
import { numberText } from "../text/text.ts";

export interface Budget {
  micros: number | null;
  tokens: number | null;
}

export const UNLIMITED: Budget = { micros: null, tokens: null };

export interface Ledger {
  budget: Budget;
  spent: Amount;
  reserved: Amount;
}

export function toBudget(cost: unknown, what: string): Budget {
  const { usd, tokens } = checkCost(cost, what);
  return {
    micros: usd === undefined ? null : roundDown(usd, MICROS_PER_USD),
    tokens: tokens === undefined ? null : Math.floor(tokens),
  };
}

export function fromBudget({ micros, tokens }: Budget): Cost {
  return { ...(micros === null ? {} : { usd: micros / MICROS_PER_USD }), ...(tokens === null ? {} : { tokens }) };
}

export interface CostHistory {
  attempts: number;
  spent: Amount;
}

export function meanCost({ attempts, spent }: CostHistory): Amount | null {
  if (attempts === 0) return null;
  return { micros: Math.ceil(spent.micros / attempts), tokens: Math.ceil(spent.tokens / attempts) };
}

type BudgetVerdict =
  | { kind: "start" }
  /** There is no room beside the reservations, but attempts in flight may cost less than estimated. */
  | { kind: "wait" }
  | { kind: "pause"; reason: "budget_precheck_block" | "budget_exceeded"; unit: Unit };

/** Judges whether an attempt may start. Reservations alone pause no build, because they may cost less. */
export function judgeStart(ledger: Ledger, estimate: Amount): BudgetVerdict {
  const { budget, spent, reserved } = ledger;
  const over = UNITS.find((unit) => exceeds(spent[unit], budget[unit]));
  if (over !== undefined) return { kind: "pause", reason: "budget_exceeded", unit: over };
  const never = UNITS.find((unit) => exceeds(spent[unit] + estimate[unit], budget[unit]));
  if (never !== undefined) return { kind: "pause", reason: "budget_precheck_block", unit: never };
  const fits = UNITS.every((unit) => !exceeds(spent[unit] + reserved[unit] + estimate[unit], budget[unit]));
  return fits ? { kind: "start" } : { kind: "wait" };
}

export function reserveBatch(
  ledger: Ledger,
  estimates: readonly Amount[],
): { start: number; ledger: Ledger; next: BudgetVerdict } {
  let taken = ledger;
  for (const [start, estimate] of estimates.entries()) {
    const next = judgeStart(taken, estimate);
    if (next.kind !== "start") return { start, ledger: taken, next };
    taken = reserve(taken, estimate);
  }
  return { start: estimates.length, ledger: taken, next: { kind: "start" } };
}

export function reserve(ledger: Ledger, estimate: Amount): Ledger {
  return { ...ledger, reserved: plus(ledger.reserved, estimate) };
}

export function settleReservation(ledger: Ledger, reserved: Amount, charge: Amount): Ledger {
  return { ...ledger, reserved: minus(ledger.reserved, reserved), spent: plus(ledger.spent, charge) };
}

type CostReporter =
  | "holder"
  /** A process that reclaimed the attempt. It does not know what was paid since the last report. */
  | "reclaimer"
  | "unstarted";

/** Returns whose report of the cost counts. A holder that reports a crash of its child process does not know the cost either. */
export function costReporterOf(outcome: Outcome, by: "holder" | "reclaimer"): CostReporter {
  if (outcome.kind === "released") return "unstarted";
  // The attempt was given up at its timeout and may not have reported a cost that it caused.
  if (outcome.kind === "error" && outcome.error.code === "TIMEOUT") return "reclaimer";
  return outcome.kind === "crashed" || outcome.kind === "stalled" ? "reclaimer" : by;
}

/** Whether an attempt counts for the mean cost: not if it was reclaimed, interrupted, or failed before it cost anything. */
export function countsForMean(outcome: Outcome, reporter: CostReporter, reported: Amount): boolean {
  if (reporter !== "holder") return false;
  if (outcome.kind === "succeeded") return true;
  return (outcome.kind === "error" || outcome.kind === "later") && reported.micros + reported.tokens > 0;
}

/** Returns an attempt's charge. Failed attempts cost, too; a crash costs at least its estimate, or crash loops would be free. */
export function chargeOf(reporter: CostReporter, attempt: { reported: Amount; estimate: Amount }): Amount {
  switch (reporter) {
    case "holder":
      return attempt.reported;
    case "reclaimer":
      return larger(attempt.reported, attempt.estimate);
    case "unstarted":
      return NO_COST;
  }
}

/** Returns a new total; an absent part stays. It must have room for the refused work, or the build would pause again at once. */
export function approveBudget({ budget, spent }: Ledger, cost: unknown, refused: Amount): Budget {
  const given = toBudget(cost, "The new budget");
  if (given.micros === null && given.tokens === null) {
    throw new HoldfastError(
      "BUDGET_INVALID",
      "The new budget has neither `usd` nor `tokens`.",
      "Give the new total, such as { usd: 10 }.",
    );
  }
  const next: Budget = { micros: given.micros ?? budget.micros, tokens: given.tokens ?? budget.tokens };
  for (const unit of UNITS) {
    const needed = spent[unit] + refused[unit];
    if (!exceeds(needed, next[unit])) continue;
    throw new HoldfastError(
      "BUDGET_TOO_SMALL",
      `A budget of ${unitText(unit, next[unit] ?? 0)} is too small: ${unitText(unit, spent[unit])} is already spent, ` +
        `and the next work item is estimated at ${unitText(unit, refused[unit])}.`,
      `Give a new total of at least ${unitText(unit, needed)}.`,
    );
  }
  return next;
}

function exceeds(amount: number, limit: number | null): boolean {
  return limit !== null && amount > limit;
}

export const TOKEN_LIFETIME_MS = 60 * 60_000;
export const TOKEN_BYTES = 32;

const TOKEN_PREFIX = "hft_";
const TOKEN_PATTERN = new RegExp(`^${TOKEN_PREFIX}[A-Za-z0-9_-]{${Math.ceil((TOKEN_BYTES * 4) / 3)}}$`);

/** What is stored of a token: enough to recognize it, and nothing that could be used as one. */
export interface StoredToken {
  hash: string;
  build: string;
  /** Number of the transition that paused the build, because the token is for that pause only. */
  pause: number;
  mintedAt: number;
  expiresAt: number;
  usedAt: number | null;
  replacedAt: number | null;
}

export function mintToken(bytes: Uint8Array, build: MovingBuild, now: number): { token: string; stored: StoredToken } {
  if (bytes.length !== TOKEN_BYTES) throw new Error(`a token is made of ${TOKEN_BYTES} bytes, not of ${bytes.length}`);
  if (build.state !== "BUDGET_PAUSE") throw refusedToken("BUILD_NOT_PAUSED", build);
  const token = tokenOf(bytes);
  const stored = { hash: hashToken(token), build: build.id, pause: build.seq, mintedAt: now, expiresAt: now + TOKEN_LIFETIME_MS };
  return { token, stored: { ...stored, usedAt: null, replacedAt: null } };
}

export function tokenOf(bytes: Uint8Array): string {
  return TOKEN_PREFIX + Buffer.from(bytes).toString("base64url");
}

export function hashToken(token: string): string {
  return hash("sha256", `holdfast.token.1\n${token}`);
}

export interface PresentedToken {
  presented: unknown;
  stored: StoredToken | null;
  build: MovingBuild;
  now: number;
}

export type TokenRefusal =
  | "BUILD_NOT_PAUSED"
  | "TOKEN_NEEDED"
  | "TOKEN_MALFORMED"
  | "TOKEN_UNKNOWN"
  | "TOKEN_OF_ANOTHER_BUILD"
  | "TOKEN_USED"
  | "TOKEN_REPLACED"
  | "TOKEN_EXPIRED";

type TokenVerdict = { ok: true; used: StoredToken } | { ok: false; code: TokenRefusal };

/** Judges a token. The store writes `used` with the approval, so no token is used twice, or by a rejected approval. */
export function judgeToken({ presented, stored, build, now }: PresentedToken): TokenVerdict {
  if (build.state !== "BUDGET_PAUSE") return refuse("BUILD_NOT_PAUSED");
  if (presented === undefined || presented === null || presented === "") return refuse("TOKEN_NEEDED");
  if (typeof presented !== "string" || !TOKEN_PATTERN.test(presented)) return refuse("TOKEN_MALFORMED");
  if (stored === null || stored.hash !== hashToken(presented)) return refuse("TOKEN_UNKNOWN");
  if (stored.build !== build.id) return refuse("TOKEN_OF_ANOTHER_BUILD");
  if (stored.usedAt !== null) return refuse("TOKEN_USED");
  if (stored.replacedAt !== null || stored.pause !== build.seq) return refuse("TOKEN_REPLACED");
  if (now >= stored.expiresAt) return refuse("TOKEN_EXPIRED");
  return { ok: true, used: { ...stored, usedAt: now } };
}

function refuse(code: TokenRefusal): TokenVerdict {
  return { ok: false, code };
}

export function isRefusedUse(code: string): boolean {
  return (
    code === "BUILD_NOT_PAUSED" || /^TOKEN_(?!NEEDED$)/.test(code) || code === "BUDGET_TOO_SMALL" || code === "BUDGET_INVALID"
  );
}

const MINT_HINT = "Create another with builds.mintToken(id) or `holdfast builds token`.";

export function refusedToken(refusal: TokenRefusal, { id, state }: MovingBuild): HoldfastError {
  switch (refusal) {
    case "BUILD_NOT_PAUSED":
      return new HoldfastError(
        "BUILD_NOT_PAUSED",
        `The build is not paused at its budget, so there is nothing to approve. Build ${id} is ${state}.`,
        hasEnded(state)
          ? "The build has ended. Start a new one, which reuses all results."
          : state === "ACTIVE"
            ? "The build is running: do nothing."
            : "Resume it without a token.",
      );
    case "TOKEN_NEEDED":
      return new HoldfastError(
        "TOKEN_NEEDED",
        "The build is paused at its budget; resuming it needs a confirmation token.",
        `Give { token, budget }: the token of the paused build, which build.done() returned, and a new total. ${MINT_HINT}`,
      );
    case "TOKEN_MALFORMED":
      return new HoldfastError(
        "TOKEN_MALFORMED",
        "This is not a confirmation token.",
        `Copy the whole token, from "${TOKEN_PREFIX}" to the end. ${MINT_HINT}`,
      );
    case "TOKEN_UNKNOWN":
      return new HoldfastError(
        "TOKEN_UNKNOWN",
        "This confirmation token is unknown in this database.",
        `Check that this is the right database. ${MINT_HINT}`,
      );
    case "TOKEN_OF_ANOTHER_BUILD":
      return new HoldfastError(
        "TOKEN_OF_ANOTHER_BUILD",
        "This confirmation token is for another build.",
        `Check that this is the right build. ${MINT_HINT}`,
      );
    case "TOKEN_USED":
      return new HoldfastError("TOKEN_USED", "This confirmation token was already used; each works once.", MINT_HINT);
    case "TOKEN_REPLACED":
      return new HoldfastError(
        "TOKEN_REPLACED",
        "This confirmation token is replaced: a newer one was made, or it belongs to an earlier pause.",
        MINT_HINT,
      );
    case "TOKEN_EXPIRED":
      return new HoldfastError("TOKEN_EXPIRED", "This confirmation token has expired: each is valid for an hour.", MINT_HINT);
  }
}

/** What something costs, as people write it. */
export interface Cost {
  usd?: number;
  tokens?: number;
}

/** A cost in whole millionths of a dollar and whole tokens. */
export interface Amount {
  micros: number;
  tokens: number;
}

export const NO_COST: Amount = { micros: 0, tokens: 0 };

export const UNITS = ["micros", "tokens"] as const;
type Unit = (typeof UNITS)[number];

const MICROS_PER_USD = 1_000_000;
/** The largest amount at which a double in dollars holds each millionth. */
export const MAX_AMOUNT = 1_000_000_000_000_000;

/** Converts a cost and rounds it up: rounded down, a million calls of a tenth of a millionth would be free. */
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

/** Adds and saturates: what was spent is spent, and a sum too large to count is still larger than every budget. */
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

/** Rounds up in the shortest decimals of both, because a product alone would make 1,100,001 of 1.1 × 1,000,000. */
function roundUp(value: number, parts: number): number {
  const near = Math.round(value * parts);
  return near / parts >= value ? near : near + 1;
}

function roundDown(value: number, parts: number): number {
  const near = Math.round(value * parts);
  return near / parts <= value ? near : near - 1;
}

function addCapped(a: number, b: number): number {
  return Math.min(Number.MAX_SAFE_INTEGER, a + b);
}
