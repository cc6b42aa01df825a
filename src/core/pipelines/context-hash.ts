import { createHash, hash } from "node:crypto";
import type { Difference } from "./build-view.ts";
import { compareIds } from "../text/ids.ts";
import { sayPath } from "./work.ts";

/**
 * The hash of a value that goes from stage to stage: `json:` and `bytes:` with a sha-256, so that a text is never taken for
 * the bytes that spell it; `none` for `undefined`; `members:` for all that a gather reads, or an
 * expand yields; `item:` for an item of a source, with the hash of its version, or of what is in it however it is written.
 */
export type ValueHash = `${"json" | "bytes" | "members" | "item"}:${string}` | "none";

/** Of a value as it is stored: JSON text, bytes, or null for `undefined`. It is that of the artifact, if it is kept in one. */
export function valueHash(stored: string | Uint8Array | null): ValueHash {
  if (stored === null) return "none";
  return `${typeof stored === "string" ? "json" : "bytes"}:${hash("sha256", stored)}`;
}

/** Everything that a stage's result depends on, and nothing else. */
export interface ContextParts {
  stage: string;
  version: number;
  /** Canonical text; null: no key. */
  key: string | null;
  input: ValueHash;
  /** By stage; null: that stage let the target pass, so there is no output of it. */
  uses: Readonly<Record<string, ValueHash | null>>;
  target: { id: string; hash: string };
  /** `"bytes"`: the target's id is no part of it, so a renamed or copied file is free. */
  reuse: "target" | "bytes";
}

/**
 * The content key of a checkpoint. Each part is an element of one JSON array, so that no two sets of parts spell the same
 * text, and the first one says what is hashed, so that it is the hash of nothing else.
 */
export function contextHash({ stage, version, key, input, uses, target, reuse }: ContextParts): string {
  const used = Object.keys(uses)
    .sort()
    .map((name) => [name, uses[name]]);
  const id = reuse === "bytes" ? null : target.id;
  return hash("sha256", JSON.stringify(["holdfast.context.1", stage, version, key, input, used, id, target.hash]));
}

/**
 * All that a gather can see of one member: its target, its output, and the earlier outputs by name. Those are in it too:
 * a stage that comes out the same from other inputs would else hide from the gather that they are others.
 */
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

/** The input of a gather: its members in the order of their ids, one after the other, however many there are. */
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

  /** `failed`: how many members are missing; a gather with `partial` gets that number. */
  end(failed: number): ValueHash {
    return `members:${this.#hash.update(String(failed)).digest("hex")}`;
  }
}

/** What a gather was made of, as far as it takes to say later what has changed: short hashes, by the members' paths. */
export interface Members {
  /** How many members were missing; a gather with `partial` gets that number. */
  failed: number;
  members: Member[];
}

/** `output`: what the gather gets of it. `all`: that, and its earlier outputs. */
export type Member = readonly [path: string, output: string, all: string];

/** Enough of a hash to see that it is another. */
const TELLING = 12;

export function toMember(path: string, output: ValueHash, all: string): Member {
  const [kind = "", hash] = output.split(":");
  return [path, hash === undefined ? kind : `${kind}:${hash.slice(0, TELLING)}`, all.slice(0, TELLING)];
}

/** Which members came, went, or are others, in the order of their paths. */
export function changedMembers(before: Members, after: Members): Difference[] {
  const changes: (Difference & { path: string })[] = [];
  const were = new Map(before.members.map((member) => [member[0], member]));
  for (const [path, output, all] of after.members) {
    const was = were.get(path);
    were.delete(path);
    const part = `members[${JSON.stringify(sayPath(path))}]`;
    if (was === undefined) changes.push({ path, part, before: undefined, after: output });
    else if (was[1] !== output) changes.push({ path, part, before: was[1], after: output });
    else if (was[2] !== all) changes.push({ path, part: `${part}.outputs`, before: was[2], after: all });
  }
  for (const [path, output] of were.values())
    changes.push({ path, part: `members[${JSON.stringify(sayPath(path))}]`, before: output, after: undefined });
  changes.sort((a, b) => compareIds(a.path, b.path));
  const failed = before.failed === after.failed ? [] : [{ part: "members.failed", before: before.failed, after: after.failed }];
  return [...changes.map(({ part, before: was, after: is }) => ({ part, before: was, after: is })), ...failed];
}

/** What the system says of a file, without its bytes. Times are nanoseconds, which a number cannot hold; so they are text. */
export interface FileStat {
  size: number;
  mtime: string;
  ctime: string;
  inode: string;
}

/** Which bytes a file had, and how to see cheaply that it still has them. Plain JSON: it is kept in the target's row. */
export interface Fingerprint extends FileStat {
  /** The sha-256 of its bytes, in hexadecimal. */
  hash: string;
  /** Milliseconds on the clock just before they were read. */
  hashedAt: number;
}

/** How coarse the times of a file system can be: two writes within it may leave the same time. */
const TICK = 2_000;

/** For a listing: whether the bytes have to be read to know what they are. A new time alone is no change, but a reason to look. */
export function needsHash(before: Fingerprint | null, now: FileStat): boolean {
  return before === null || before.size !== now.size || before.mtime !== now.mtime || isRacy(before);
}

/**
 * For the last look before a commit: whether the bytes may be others than those of the fingerprint. It sees what a listing
 * passes over: a time that was set back, and a file that was put in the place of another.
 */
export function mayHaveChanged(before: Fingerprint, now: FileStat): boolean {
  return !isSameStat(before, now) || isRacy(before);
}

export function isSameStat(a: FileStat, b: FileStat): boolean {
  return a.size === b.size && a.mtime === b.mtime && a.ctime === b.ctime && a.inode === b.inode;
}

/** The fingerprint alone, of an object that may have more than that. */
export function toFingerprint({ size, mtime, ctime, inode }: FileStat, hash: string, hashedAt: number): Fingerprint {
  return { size, mtime, ctime, inode, hash, hashedAt };
}

/** Written so shortly before it was hashed that one more write may have left the same time. So is one from the future. */
function isRacy({ mtime, hashedAt }: Fingerprint): boolean {
  return BigInt(mtime) >= BigInt(hashedAt - TICK) * 1_000_000n;
}

/** A value that goes from stage to stage, as it is kept: in the row, or, where it is large or bytes, in an artifact. */
export interface KeptValue {
  hash: ValueHash;
  /** JSON, where it is in the row. */
  text: string | null;
  /** The artifact's sha-256, where it is in one. */
  artifact: string | null;
  size: number;
}

export const NO_VALUE: KeptValue = { hash: "none", text: null, artifact: null, size: 0 };

/** JSON up to here is kept in the row; what is larger goes to an artifact. In UTF-16 units. */
export const INLINE = 16_384;

/** A small JSON value. */
export function inlineValue(text: string): KeptValue {
  return { hash: valueHash(text), text, artifact: null, size: Buffer.byteLength(text) };
}
