import { hash } from "node:crypto";
import { canonical, SECRET } from "./canonical.ts";
import { HoldfastError } from "./errors.ts";
import { Secret } from "./secret.ts";

/** What a stage's result depends on besides its inputs: a model's name, a prompt, settings. */
export type Key = string | number | object;

/** The canonical text of a key; null: there is none. `what` names it in errors. */
export function keyText(key: unknown, what: string): string | null {
  if (key === undefined) return null;
  if (typeof key === "string" || typeof key === "number" || (typeof key === "object" && key !== null)) {
    if (key instanceof Promise) key.catch(() => {});
    return canonical(key, what);
  }
  throw new HoldfastError(
    "KEY_INVALID",
    `${what} is ${key === null ? "null" : `a ${typeof key}`}, which is no key.`,
    "Give a text, a number, a plain object or an array, or leave it out.",
  );
}

/**
 * In a stage's `key`: the result depends on this value, and only its hash is stored and shown. It is for values that
 * cannot be guessed: of one among a thousand, the hash tells which.
 *
 * ```ts
 * .stage("fetch", { key: { account: secret(token) } }, async ({ target }) => download(target.id, token))
 * ```
 */
export function secret<T>(value: T): T {
  return new Secret(hash("sha256", `holdfast.secret.1\n${canonical(value, "secret")}`)) as T;
}

/** Enough of a hash to see that it is another. */
const TELLING = 12;

/** A key as it was read from its text, for people to see. */
export function hideSecrets(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(hideSecrets);
  const secret: unknown = Object.hasOwn(value, SECRET) ? (value as Record<string, unknown>)[SECRET] : undefined;
  if (typeof secret === "string") return `[secret ${secret.slice(0, TELLING)}]`;
  return Object.fromEntries(Object.entries(value).map(([name, child]) => [name, hideSecrets(child)]));
}
