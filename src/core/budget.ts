import { type Amount, checkCost, type Cost, down, larger, minus, NOTHING, plus, sayUnit, type Unit, UNITS } from "./cost.ts";
import { HoldfastError } from "./errors.ts";
import type { Outcome } from "./retry.ts";

/** How much may be spent; null: as much as it takes. */
export interface Budget {
  micros: number | null;
  tokens: number | null;
}

export const UNLIMITED: Budget = { micros: null, tokens: null };

/** A build's money: what may be spent, what was, and what is set aside for attempts in flight. */
export interface Ledger {
  budget: Budget;
  spent: Amount;
  reserved: Amount;
}

/** Rounds down, where costs round up: a limit is never more than was said. */
export function toBudget(cost: unknown, what: string): Budget {
  const { usd, tokens } = checkCost(cost, what);
  return {
    micros: usd === undefined ? null : down(usd, 1_000_000),
    tokens: tokens === undefined ? null : Math.floor(tokens),
  };
}

/** As people write it. */
export function fromBudget({ micros, tokens }: Budget): Cost {
  return { ...(micros === null ? {} : { usd: micros / 1_000_000 }), ...(tokens === null ? {} : { tokens }) };
}

/** What past attempts of a stage cost, all told. */
export interface CostHistory {
  attempts: number;
  spent: Amount;
}

/**
 * What an attempt is expected to cost: what the stage says; else the mean of what its attempts have cost so far, rounded
 * up; else nothing, because nothing is known.
 */
export function estimate(said: Amount | null, { attempts, spent }: CostHistory): Amount {
  if (said !== null) return said;
  if (attempts === 0) return NOTHING;
  return { micros: Math.ceil(spent.micros / attempts), tokens: Math.ceil(spent.tokens / attempts) };
}

export type Verdict =
  | { kind: "start" }
  /** There is no room as long as so much is set aside, but there may be when what runs has cost less. */
  | { kind: "wait" }
  /** There is no room, and there will be none. */
  | { kind: "pause"; reason: "budget_precheck_block" | "budget_exceeded"; unit: Unit };

/**
 * Whether an attempt of this estimate may start. Nothing starts that would not fit beside all that is spent and set
 * aside. What only has to wait for others does not pause the build: their estimates may have been too high.
 */
export function mayStart(ledger: Ledger, estimate: Amount): Verdict {
  const { budget, spent, reserved } = ledger;
  const over = UNITS.find((unit) => exceeds(spent[unit], budget[unit]));
  if (over !== undefined) return { kind: "pause", reason: "budget_exceeded", unit: over };
  const never = UNITS.find((unit) => exceeds(spent[unit] + estimate[unit], budget[unit]));
  if (never !== undefined) return { kind: "pause", reason: "budget_precheck_block", unit: never };
  const fits = UNITS.every((unit) => !exceeds(spent[unit] + reserved[unit] + estimate[unit], budget[unit]));
  return fits ? { kind: "start" } : { kind: "wait" };
}

/** How many of a batch may start, in its order; what the first of them take is gone for the next. */
export function howMany(ledger: Ledger, estimates: readonly Amount[]): { start: number; ledger: Ledger; next: Verdict } {
  let taken = ledger;
  for (const [start, estimate] of estimates.entries()) {
    const next = mayStart(taken, estimate);
    if (next.kind !== "start") return { start, ledger: taken, next };
    taken = reserve(taken, estimate);
  }
  return { start: estimates.length, ledger: taken, next: { kind: "start" } };
}

export function reserve(ledger: Ledger, estimate: Amount): Ledger {
  return { ...ledger, reserved: plus(ledger.reserved, estimate) };
}

/** An attempt has left `running`, in whichever way: what was set aside for it is free, what it is charged is spent. */
export function settle(ledger: Ledger, reserved: Amount, charge: Amount): Ledger {
  return { ...ledger, reserved: minus(ledger.reserved, reserved), spent: plus(ledger.spent, charge) };
}

/** Who says how an attempt ended. */
export type Teller =
  /** The holder, well or badly: it knows what it has paid. */
  | "holder"
  /** Somebody who found it left behind, or took it from one that had stalled: nobody knows what was paid since. */
  | "reclaimer"
  /** Its handler was never called. */
  | "unstarted";

/** Who can tell what an attempt has cost that ended so. A holder who says that it crashed (a process of its own did) does not know, either. */
export function tellerOf(outcome: Outcome, by: "holder" | "reclaimer"): Teller {
  if (outcome.kind === "released") return "unstarted";
  // Past its timeout it was given up in the middle: what it has begun to pay for may not have been said yet.
  if (outcome.kind === "error" && outcome.error.code === "TIMEOUT") return "reclaimer";
  return outcome.kind === "crashed" || outcome.kind === "stalled" ? "reclaimer" : by;
}

/**
 * Whether what an attempt has cost says what one costs: it has come to its end, and who ran it says what that took. One that was
 * left behind, given up, interrupted, or has failed before it had paid anything, says nothing.
 */
export function isTelling(outcome: Outcome, teller: Teller, reported: Amount): boolean {
  if (teller !== "holder") return false;
  if (outcome.kind === "succeeded") return true;
  return (outcome.kind === "error" || outcome.kind === "later") && reported.micros + reported.tokens > 0;
}

/** What an attempt is charged. Failed ones cost too; a crash costs no less than its estimate, or crash loops were free. */
export function charge(teller: Teller, attempt: { reported: Amount; estimate: Amount }): Amount {
  switch (teller) {
    case "holder":
      return attempt.reported;
    case "reclaimer":
      return larger(attempt.reported, attempt.estimate);
    case "unstarted":
      return NOTHING;
  }
}

/**
 * The budget that somebody approves: a new total, not an addition. What it does not name stays as it was. It must leave
 * room for the work that was refused, or the build would pause again at once.
 */
export function approve({ budget, spent }: Ledger, cost: unknown, refused: Amount): Budget {
  const said = toBudget(cost, "The new budget");
  if (said.micros === null && said.tokens === null) {
    throw new HoldfastError("BUDGET_INVALID", "The new budget is empty.", "Give the new total, such as { usd: 10 }.");
  }
  const next: Budget = { micros: said.micros ?? budget.micros, tokens: said.tokens ?? budget.tokens };
  for (const unit of UNITS) {
    const needed = spent[unit] + refused[unit];
    if (!exceeds(needed, next[unit])) continue;
    throw new HoldfastError(
      "BUDGET_TOO_SMALL",
      `A budget of ${sayUnit(unit, next[unit] ?? 0)} is used up already: ${sayUnit(unit, spent[unit])} of it are spent, ` +
        `and the next piece of work is estimated at ${sayUnit(unit, refused[unit])}.`,
      `Give a new total of at least ${sayUnit(unit, needed)}.`,
    );
  }
  return next;
}

function exceeds(amount: number, limit: number | null): boolean {
  return limit !== null && amount > limit;
}
