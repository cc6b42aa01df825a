import { createHash, hash } from "node:crypto";
import { Secret } from "./budget.ts";
import type { Difference } from "./build-view.ts";
import { HoldfastError } from "../text/errors.ts";
import { compareIds } from "../text/ids.ts";
import { canonicalJson, SECRET } from "../text/json.ts";
import { rejectSurplus } from "../text/options.ts";
import { pathText } from "./work.ts";

/**
 * `json:` and `bytes:` differ, so that a text never equals its bytes; `members:` is a gather's input or an expand's children.
 */
export type ValueHash = `${"json" | "bytes" | "members" | "item"}:${string}` | "none";

export function valueHash(stored: string | Uint8Array | null): ValueHash {
  if (stored === null) return "none";
  return `${typeof stored === "string" ? "json" : "bytes"}:${hash("sha256", stored)}`;
}

export interface ContextParts {
  stage: string;
  version: number;
  key: string | null;
  input: ValueHash;
  uses: Readonly<Record<string, ValueHash | null>>;
  target: { id: string; hash: string };
  /** `"bytes"`: the target's id does not count, so a renamed or copied file is free. */
  reuse: "target" | "bytes";
}

/** Content key of a result. Parts are elements of one JSON array, so that no two sets of parts have the same text. */
export function contextHash({ stage, version, key, input, uses, target, reuse }: ContextParts): string {
  const used = Object.keys(uses)
    .sort()
    .map((name) => [name, uses[name]]);
  const id = reuse === "bytes" ? null : target.id;
  return hash("sha256", JSON.stringify(["holdfast.context.1", stage, version, key, input, used, id, target.hash]));
}

/** Earlier outputs count too: else an equal output from other inputs would hide their change from the gather. */
export function memberHash(member: {
  target: string;
  output: ValueHash;
  outputs: Readonly<Record<string, ValueHash | null>>;
}): string {
  const outputs = Object.keys(member.outputs)
    .sort()
    .map((name) => [name, member.outputs[name]]);
  return hash("sha256", JSON.stringify(["holdfast.member.1", member.target, member.output, outputs]));
}

export class MembersHash {
  readonly #hash = createHash("sha256").update("holdfast.members.1\n");
  #last: Buffer | null = null;

  /** In the order of the ids' UTF-8 bytes, which is that of both databases. */
  add(id: string, member: string): void {
    const bytes = Buffer.from(id);
    if (this.#last !== null && Buffer.compare(this.#last, bytes) >= 0) {
      throw new Error(`member ${JSON.stringify(id)} came after ${JSON.stringify(this.#last.toString())}`);
    }
    this.#last = bytes;
    // JSON has no line break inside, so each member is a line.
    this.#hash.update(`${JSON.stringify([id, member])}\n`);
  }

  end(failed: number): ValueHash {
    return `members:${this.#hash.update(String(failed)).digest("hex")}`;
  }
}

/** Short hashes of a gather's members, by path: enough to say later what has changed. */
export interface Members {
  failed: number;
  members: Member[];
}

export type Member = readonly [path: string, output: string, all: string];

const SHOWN_HASH_LENGTH = 12;

export function toMember(path: string, output: ValueHash, all: string): Member {
  const [kind = "", hash] = output.split(":");
  return [path, hash === undefined ? kind : `${kind}:${hash.slice(0, SHOWN_HASH_LENGTH)}`, all.slice(0, SHOWN_HASH_LENGTH)];
}

export function changedMembers(before: Members, after: Members): Difference[] {
  const changes: (Difference & { path: string })[] = [];
  const were = new Map(before.members.map((member) => [member[0], member]));
  for (const [path, output, all] of after.members) {
    const was = were.get(path);
    were.delete(path);
    const part = `members[${JSON.stringify(pathText(path))}]`;
    if (was === undefined) changes.push({ path, part, before: undefined, after: output });
    else if (was[1] !== output) changes.push({ path, part, before: was[1], after: output });
    else if (was[2] !== all) changes.push({ path, part: `${part}.outputs`, before: was[2], after: all });
  }
  for (const [path, output] of were.values())
    changes.push({ path, part: `members[${JSON.stringify(pathText(path))}]`, before: output, after: undefined });
  changes.sort((a, b) => compareIds(a.path, b.path));
  const failed = before.failed === after.failed ? [] : [{ part: "members.failed", before: before.failed, after: after.failed }];
  return [...changes.map(({ part, before: was, after: is }) => ({ part, before: was, after: is })), ...failed];
}

/** Times are nanoseconds as text: a number cannot hold them. */
export interface FileStat {
  size: number;
  mtime: string;
  ctime: string;
  inode: string;
}

/** Which bytes a file had. Plain JSON: it is stored in the target's row. */
export interface Fingerprint extends FileStat {
  hash: string;
  hashedAt: number;
}

/** Coarsest clock of file systems: two writes within it may leave the same time. */
const FILE_TIME_TICK_MS = 2_000;

/** For a listing: a new time alone is no change, but a reason to read the bytes. */
export function needsHash(before: Fingerprint | null, now: FileStat): boolean {
  return before === null || before.size !== now.size || before.mtime !== now.mtime || isRacy(before);
}

/** For the check before a commit, which also sees a time that was set back, and a file that replaced another. */
export function mayHaveChanged(before: Fingerprint, now: FileStat): boolean {
  return !isSameStat(before, now) || isRacy(before);
}

export function isSameStat(a: FileStat, b: FileStat): boolean {
  return a.size === b.size && a.mtime === b.mtime && a.ctime === b.ctime && a.inode === b.inode;
}

export function toFingerprint({ size, mtime, ctime, inode }: FileStat, hash: string, hashedAt: number): Fingerprint {
  return { size, mtime, ctime, inode, hash, hashedAt };
}

/** Written so shortly before it was hashed, or in the future, that a later write may have left the same time. */
function isRacy({ mtime, hashedAt }: Fingerprint): boolean {
  return BigInt(mtime) >= BigInt(hashedAt - FILE_TIME_TICK_MS) * 1_000_000n;
}

/** A value between stages as it is stored: in the row, or, if large or bytes, in an artifact. */
export interface StoredValue {
  hash: ValueHash;
  text: string | null;
  artifact: string | null;
  size: number;
}

export const NO_VALUE: StoredValue = { hash: "none", text: null, artifact: null, size: 0 };

/** Longer JSON goes to an artifact. In UTF-16 units. */
export const MAX_INLINE_LENGTH = 16_384;

export function inlineValue(text: string): StoredValue {
  return { hash: valueHash(text), text, artifact: null, size: Buffer.byteLength(text) };
}

/** What a stage's result depends on besides its inputs: a model's name, a prompt, settings. */
export type Key = string | number | object;

export function keyText(key: unknown, what: string): string | null {
  if (key === undefined) return null;
  if (typeof key === "string" || typeof key === "number" || (typeof key === "object" && key !== null)) {
    if (key instanceof Promise) key.catch(() => {});
    return canonicalJson(key, what);
  }
  throw new HoldfastError(
    "KEY_INVALID",
    `${what} is ${key === null ? "null" : `a ${typeof key}`}, which cannot be a key.`,
    "Give a string, a number, a plain object or an array, or leave it out.",
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
  rejectSurplus(arguments, 1, "secret");
  return new Secret(hash("sha256", `holdfast.secret.1\n${canonicalJson(value, "secret")}`)) as T;
}

export function hideSecrets(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(hideSecrets);
  const secret: unknown = Object.hasOwn(value, SECRET) ? (value as Record<string, unknown>)[SECRET] : undefined;
  if (typeof secret === "string") return `[secret ${secret.slice(0, SHOWN_HASH_LENGTH)}]`;
  return Object.fromEntries(Object.entries(value).map(([name, child]) => [name, hideSecrets(child)]));
}
