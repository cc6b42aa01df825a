import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { HoldfastError } from "../core/errors.ts";

const HASH = /^[0-9a-f]{64}$/;

/** Where everything is: `ab/cdef…` the artifacts; `tmp` what is being written; `doomed` what a sweep has put aside. */
export class Layout {
  readonly root: string;
  readonly temporary: string;
  readonly doomed: string;
  /** For the locks of those who write here. */
  readonly alive: string;
  /** Of the files in it; artifacts themselves are only read. */
  readonly mode: number;

  constructor(root: string, mode: number) {
    this.root = root;
    this.mode = mode;
    this.temporary = join(root, "tmp");
    this.doomed = join(root, "doomed");
    this.alive = join(root, "alive");
  }

  /** The folder of an artifact. There are 256, and none is ever removed: somebody may be about to put a file there. */
  shelfOf(hash: string): string {
    return join(this.root, checkHash(hash).slice(0, 2));
  }

  fileOf(hash: string): string {
    return join(this.shelfOf(hash), hash.slice(2));
  }
}

/** A hash becomes part of a path, so nothing else may pass. */
export function checkHash(hash: string): string {
  if (isHash(hash)) return hash;
  throw new HoldfastError(
    "ARTIFACT_HASH_INVALID",
    `${JSON.stringify(hash) ?? String(hash)} is not the hash of an artifact.`,
    "Give the hash that storing it answered: 64 digits from 0 to 9 and a to f.",
  );
}

export function isHash(hash: unknown): hash is string {
  return typeof hash === "string" && HASH.test(hash);
}

/** A name that nobody else takes, and that says whose it is. */
export function nameFor(token: string): string {
  return `${token}-${randomBytes(8).toString("hex")}`;
}

/** Whose it is; null when it is no such name. */
export function tokenOf(name: string): string | null {
  return /^([^-]+)-[0-9a-f]{16}(?:\.export)?$/.exec(name)?.[1] ?? null;
}
