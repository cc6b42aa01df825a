import { hash } from "node:crypto";
import { type BuildState, hasEnded } from "./build.ts";
import { HoldfastError } from "./errors.ts";

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
  /** What somebody gave, whatever it is. */
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

export type TokenVerdict = { ok: true; used: StoredToken } | { ok: false; code: TokenRefusal };

/**
 * Whether this token lets this build go on. If so, the store writes `used` in the transaction of the approval, where it is
 * still unused: then nobody uses it a second time, and one that is refused for another reason is not used up.
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

/** The refusal as whoever presented the token gets it; the token itself is not in it. */
export function refusedToken({ code }: { code: TokenRefusal }, build: PausedBuild): HoldfastError {
  return new HoldfastError(code, `${SAYS[code]} Build ${build.id} is ${build.state}.`, hintFor(code, build));
}

/** Whether somebody has presented a token in vain: it is no good, or what he asked for with it. */
export function isRefusedUse(code: string): boolean {
  return (code in SAYS && code !== "TOKEN_NEEDED") || code === "BUDGET_TOO_SMALL" || code === "BUDGET_INVALID";
}

const SAYS: Record<TokenRefusal, string> = {
  BUILD_NOT_PAUSED: "There is nothing to approve: the build is not paused for its budget.",
  TOKEN_NEEDED: "The build is paused for its budget, and goes on only with a confirmation token.",
  TOKEN_MALFORMED: "This is not a confirmation token.",
  TOKEN_UNKNOWN: "Nobody has made this confirmation token here.",
  TOKEN_OF_ANOTHER_BUILD: "This confirmation token is for another build.",
  TOKEN_USED: "This confirmation token has been used, and each can be used once.",
  TOKEN_REPLACED: "This confirmation token does not count any more: a newer one was made, or it is of an earlier pause.",
  TOKEN_EXPIRED: "This confirmation token has expired: one can be used for an hour.",
};

const ANOTHER = "Make another with builds.mintToken(id).";

function hintFor(code: TokenRefusal, { state }: PausedBuild): string {
  switch (code) {
    case "BUILD_NOT_PAUSED":
      if (hasEnded(state)) return "It has ended. Start a new build: all that succeeded is reused.";
      return state === "ACTIVE" ? "It is running; nothing needs to be done." : "Resume it without a token.";
    case "TOKEN_NEEDED":
      return `Give the token that the pause made known, and a new budget. ${ANOTHER}`;
    case "TOKEN_MALFORMED":
      return `Copy all of it, from "${PREFIX}" to the end. ${ANOTHER}`;
    case "TOKEN_UNKNOWN":
      return `Look whether this is the right database. ${ANOTHER}`;
    case "TOKEN_OF_ANOTHER_BUILD":
      return `Look whether this is the right build. ${ANOTHER}`;
    case "TOKEN_USED":
    case "TOKEN_REPLACED":
    case "TOKEN_EXPIRED":
      return ANOTHER;
  }
}
