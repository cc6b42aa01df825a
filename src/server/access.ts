import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { HoldfastError } from "../core/text/errors.ts";

/** `approve` includes `operate`, and `operate` includes `read`. */
export const ROLES = ["none", "read", "operate", "approve"] as const;
export type Role = (typeof ROLES)[number];

/** What a request may do, and which user sent it. */
export interface Access {
  role: Role;
  /** The user's name, which the audit log records with each change. */
  user?: string;
}

export function allows(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed);
}

/** Header of every write. A browser sends forms and images with cookies to any host, but not this header. */
export const WRITE_HEADER = "x-holdfast";

/** Refuses a write that a page of another site may have sent. */
export function refuseForeign(request: Request): void {
  const { headers } = request;
  const site = headers.get("sec-fetch-site");
  const origin = headers.get("origin");
  const host = headers.get("host") ?? new URL(request.url).host;
  const isForeign =
    (site !== null && site !== "same-origin" && site !== "none") ||
    (origin !== null && (URL.canParse(origin) ? new URL(origin).host : null) !== host);
  if (isForeign)
    throw new HoldfastError(
      "ORIGIN_REFUSED",
      `The request comes from ${origin ?? "another site"}, not from this server.`,
      "Send writes from the server's own pages, or from a program. A proxy must pass the header Host on as it came.",
    );
  if (headers.has(WRITE_HEADER) || headers.get("authorization")) return;
  throw new HoldfastError(
    "HEADER_MISSING",
    "A write needs a header that a form of another site cannot send.",
    `Send \`${WRITE_HEADER}: 1\`, or an Authorization header.`,
  );
}

const CODE_TTL_MS = 5 * 60_000;
const CODE_OVER =
  "The code in this address was used, has expired, or is from an earlier start of the server.\n" +
  "Press Enter in the terminal of `holdfast ui`, or start it again, and open the address that it prints.\n";
const PLAIN = { "content-type": "text/plain; charset=utf-8", "cache-control": "no-store" };
/** After this many wrong tokens within `FAILURE_WINDOW_MS`, further wrong tokens get 429. */
const MAX_FAILURES = 20;
const FAILURE_WINDOW_MS = 60_000;

/** Admits a Bearer header, or a cookie that a one-time code has set: no address has the token. Sessions end with the process. */
export class TokenAccess {
  readonly #token: string;
  readonly #now: () => number;
  readonly #codes = new Map<string, number>();
  readonly #sessions = new Set<string>();
  #failures: number[] = [];

  constructor(token: string, now: () => number = () => performance.now()) {
    this.#token = token;
    this.#now = now;
  }

  /** Creates a code for the address that is printed for a browser. It is valid once, for five minutes. */
  newCode(): string {
    const code = randomBytes(24).toString("base64url");
    this.#codes.set(code, this.#now() + CODE_TTL_MS);
    return code;
  }

  readonly authorize = (request: Request): Access => {
    const bearer = /^Bearer (.+)$/i.exec(request.headers.get("authorization") ?? "")?.[1];
    if (bearer !== undefined) return { role: this.#isToken(bearer) ? "approve" : "none" };
    const session = cookieOf(request);
    return { role: session !== null && this.#sessions.has(session) ? "approve" : "none" };
  };

  /** Answers an address with a one-time code. Returns null if the request has no code. */
  login(request: Request): Response | null {
    const url = new URL(request.url);
    const code = url.searchParams.get("code");
    if (code === null) return null;
    const validUntil = this.#codes.get(code) ?? 0;
    this.#codes.delete(code);
    url.searchParams.delete("code");
    // Two slashes would begin the address of another host.
    const path = `/${url.pathname.replace(/^\/+/, "")}`;
    const headers = new Headers({ location: `${path}${url.search}`, "cache-control": "no-store" });
    const isValid = this.#now() < validUntil;
    // A browser that is logged in may load its address again.
    if (!isValid && !this.#sessions.has(cookieOf(request) ?? "")) return new Response(CODE_OVER, { status: 403, headers: PLAIN });
    if (isValid) {
      const session = randomBytes(32).toString("base64url");
      this.#sessions.add(session);
      headers.set("set-cookie", `${cookieName(request)}=${session}; Path=/; HttpOnly; SameSite=Strict`);
    }
    return new Response(null, { status: 303, headers });
  }

  #isToken(given: string): boolean {
    const now = this.#now();
    this.#failures = this.#failures.filter((at) => at > now - FAILURE_WINDOW_MS);
    // The comparison needs equal lengths, so it gets hashes. The right token always passes, or strangers could lock it out.
    if (timingSafeEqual(digest(given), digest(this.#token))) return true;
    if (this.#failures.length >= MAX_FAILURES)
      throw new HoldfastError(
        "TOO_MANY_REQUESTS",
        `${MAX_FAILURES} wrong tokens were sent within a minute.`,
        "Wait a minute, then send the token that the server printed.",
      );
    this.#failures.push(now);
    return false;
  }
}

function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}

function cookieOf(request: Request): string | null {
  const all = request.headers.get("cookie") ?? "";
  return all.match(new RegExp(`(?:^|; )${cookieName(request)}=([\\w-]+)`))?.[1] ?? null;
}

/** Returns a name that contains the port, because browsers share cookies over all ports of a host. */
function cookieName(request: Request): string {
  return `holdfast-session-${new URL(request.url).port || "default"}`;
}

const PER_SECOND = 2_000;
const BURST = 4_000;
/** If more users than this send requests, those idle longest lose their bucket and start with a full one. */
const MAX_USERS = 1_000;

/** A token bucket for each user, so that one client cannot use up the server. */
export class RateLimit {
  readonly #buckets = new Map<string, { left: number; at: number }>();

  take(user: string): void {
    const now = performance.now();
    const bucket = this.#buckets.get(user) ?? { left: BURST, at: now };
    bucket.left = Math.min(BURST, bucket.left + ((now - bucket.at) / 1_000) * PER_SECOND) - 1;
    bucket.at = now;
    // The map keeps the order of insertion, so the first user is the one that was idle longest.
    this.#buckets.delete(user);
    this.#buckets.set(user, bucket);
    if (this.#buckets.size > MAX_USERS) this.#buckets.delete(this.#buckets.keys().next().value as string);
    if (bucket.left >= 0) return;
    bucket.left = 0;
    throw new HoldfastError(
      "TOO_MANY_REQUESTS",
      `More than ${PER_SECOND} requests a second were sent.`,
      "Send fewer requests, or claim several jobs at once.",
    );
  }
}
