import { hash } from "node:crypto";
import { type Amount, checkCost, type Cost, down, larger, minus, NOTHING, plus, sayUnit, type Unit, UNITS } from "./cost.ts";
import { HoldfastError } from "../text/errors.ts";
import type { Outcome } from "../jobs/retry.ts";
import { type BuildState, hasEnded } from "./build.ts";

/** How much may be spent; null: as much as it takes. */
export interface Budget {
  micros: number | null;
  tokens: number | null;
}

export const UNLIMITED: Budget = { micros: null, tokens: null };

/** A build's money: what may be spent, what was, and what is reserved for attempts in flight. */
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

type Verdict =
  | { kind: "start" }
  /** There is no room as long as so much is reserved, but there may be when what runs has cost less. */
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

/** An attempt has left `running`, in whichever way: what was reserved for it is free, what it is charged is spent. */
export function settle(ledger: Ledger, reserved: Amount, charge: Amount): Ledger {
  return { ...ledger, reserved: minus(ledger.reserved, reserved), spent: plus(ledger.spent, charge) };
}

/** Who says how an attempt ended. */
type Teller =
  /** The holder, well or badly: it knows what it has paid. */
  | "holder"
  /** A process that reclaimed it from a dead or stalled holder; what was paid since is unknown. */
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
 * The budget that an operator approves: a new total, not an addition. What it does not name stays as it was. It must leave
 * room for the work that was refused, or the build would pause again at once.
 */
export function approve({ budget, spent }: Ledger, cost: unknown, refused: Amount): Budget {
  const said = toBudget(cost, "The new budget");
  if (said.micros === null && said.tokens === null) {
    throw new HoldfastError(
      "BUDGET_INVALID",
      "The new budget has neither `usd` nor `tokens`.",
      "Give the new total, such as { usd: 10 }.",
    );
  }
  const next: Budget = { micros: said.micros ?? budget.micros, tokens: said.tokens ?? budget.tokens };
  for (const unit of UNITS) {
    const needed = spent[unit] + refused[unit];
    if (!exceeds(needed, next[unit])) continue;
    throw new HoldfastError(
      "BUDGET_TOO_SMALL",
      `A budget of ${sayUnit(unit, next[unit] ?? 0)} is already used up: ${sayUnit(unit, spent[unit])} of it are spent, ` +
        `and the next work item is estimated at ${sayUnit(unit, refused[unit])}.`,
      `Give a new total of at least ${sayUnit(unit, needed)}.`,
    );
  }
  return next;
}

function exceeds(amount: number, limit: number | null): boolean {
  return limit !== null && amount > limit;
}

/** How long a token can be used. */
export const TOKEN_LIFE = 60 * 60_000;
/** Of randomness in a token. */
export const TOKEN_BYTES = 32;

const PREFIX = "hft_";
const WRITTEN = new RegExp(`^${PREFIX}[A-Za-z0-9_-]{${Math.ceil((TOKEN_BYTES * 4) / 3)}}$`);

/** What is kept of a token: enough to know it again, and nothing that could be used. */
export interface StoredToken {
  hash: string;
  build: string;
  /** The number of the transition that paused the build: a token is for that pause, and for no later one. */
  pause: number;
  mintedAt: number;
  expiresAt: number;
  usedAt: number | null;
  /** Another was minted since: only the newest counts. */
  replacedAt: number | null;
}

/** A new token, and what is stored of it. The bytes are random, and come from outside. */
export function mint(bytes: Uint8Array, build: PausedBuild, now: number): { token: string; stored: StoredToken } {
  if (bytes.length !== TOKEN_BYTES) throw new Error(`a token is made of ${TOKEN_BYTES} bytes, not of ${bytes.length}`);
  if (build.state !== "BUDGET_PAUSE") throw refusedToken({ code: "BUILD_NOT_PAUSED" }, build);
  const token = tokenOf(bytes);
  const stored = { hash: hashToken(token), build: build.id, pause: build.seq, mintedAt: now, expiresAt: now + TOKEN_LIFE };
  return { token, stored: { ...stored, usedAt: null, replacedAt: null } };
}

/** As it is handed out. */
export function tokenOf(bytes: Uint8Array): string {
  return PREFIX + Buffer.from(bytes).toString("base64url");
}

/** By which a token is stored and looked up. */
export function hashToken(token: string): string {
  return hash("sha256", `holdfast.token.1\n${token}`);
}

export interface PausedBuild {
  id: string;
  state: BuildState;
  /** The number of its last transition. */
  seq: number;
}

export interface Presented {
  /** What the caller passed as a token; may be anything. */
  presented: unknown;
  /** What is stored under its hash. */
  stored: StoredToken | null;
  build: PausedBuild;
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

/**
 * Whether this token allows this build to resume. If so, the store writes `used` in the transaction of the approval, if it
 * is still unused: no token is used twice, and a use that is rejected for another reason does not use it up.
 */
export function judgeToken({ presented, stored, build, now }: Presented): TokenVerdict {
  if (build.state !== "BUDGET_PAUSE") return refuse("BUILD_NOT_PAUSED");
  if (presented === undefined || presented === null || presented === "") return refuse("TOKEN_NEEDED");
  if (typeof presented !== "string" || !WRITTEN.test(presented)) return refuse("TOKEN_MALFORMED");
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

/** The refusal as the caller that presented the token gets it; the token itself is not in it. */
export function refusedToken({ code }: { code: TokenRefusal }, build: PausedBuild): HoldfastError {
  const [, message, hint] = explain(code, build);
  return new HoldfastError(code, `${message} Build ${build.id} is ${build.state}.`, hint);
}

/** Whether this error is a rejected use of a token: the token or the requested budget is invalid. */
export function isRefusedUse(code: string): boolean {
  return (
    code === "BUILD_NOT_PAUSED" || /^TOKEN_(?!NEEDED$)/.test(code) || code === "BUDGET_TOO_SMALL" || code === "BUDGET_INVALID"
  );
}

const ANOTHER = "Create another with builds.mintToken(id) or `holdfast builds token`.";

function explain(code: TokenRefusal, { state }: PausedBuild): [code: TokenRefusal, message: string, hint: string] {
  switch (code) {
    case "BUILD_NOT_PAUSED":
      return [
        "BUILD_NOT_PAUSED",
        "The build is not paused at its budget, so there is nothing to approve.",
        hasEnded(state)
          ? "The build has ended. Start a new one, which reuses all results."
          : state === "ACTIVE"
            ? "The build is running: do nothing."
            : "Resume it without a token.",
      ];
    case "TOKEN_NEEDED":
      return [
        "TOKEN_NEEDED",
        "The build is paused at its budget; resuming it needs a confirmation token.",
        `Give the token that was printed when the build paused, and a new budget. ${ANOTHER}`,
      ];
    case "TOKEN_MALFORMED":
      return [
        "TOKEN_MALFORMED",
        "This is not a confirmation token.",
        `Copy the whole token, from "${PREFIX}" to the end. ${ANOTHER}`,
      ];
    case "TOKEN_UNKNOWN":
      return [
        "TOKEN_UNKNOWN",
        "This confirmation token is unknown in this database.",
        `Check that this is the right database. ${ANOTHER}`,
      ];
    case "TOKEN_OF_ANOTHER_BUILD":
      return [
        "TOKEN_OF_ANOTHER_BUILD",
        "This confirmation token is for another build.",
        `Check that this is the right build. ${ANOTHER}`,
      ];
    case "TOKEN_USED":
      return ["TOKEN_USED", "This confirmation token was already used; each works once.", ANOTHER];
    case "TOKEN_REPLACED":
      return [
        "TOKEN_REPLACED",
        "This confirmation token is replaced: a newer one was made, or it belongs to an earlier pause.",
        ANOTHER,
      ];
    case "TOKEN_EXPIRED":
      return ["TOKEN_EXPIRED", "This confirmation token has expired: each is valid for an hour.", ANOTHER];
  }
}

/**
 * Stands for a value of which only the hash is known. The value itself is not kept, so that nothing can print it: not a
 * log, not an error, not a database.
 */
export class Secret {
  readonly hash: string;

  constructor(hash: string) {
    this.hash = hash;
  }

  toString(): string {
    return "[secret]";
  }

  toJSON(): string {
    return "[secret]";
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return "[secret]";
  }
}
