import { linkSync, readdirSync, renameSync, rmSync, statSync, utimesSync } from "node:fs";
import { join } from "node:path";
import { faultOf, isAbsent } from "./faults.ts";
import { syncFolderNow } from "./folder.ts";
import { isHash, type Layout, nameFor, tokenOf } from "./layout.ts";

/** A touch and a sweep in the same millisecond: the touch may have been later, and fractions of it are not kept. */
export function isOlder({ mtimeMs }: { mtimeMs: number }, cutoff: number): boolean {
  return Math.round(mtimeMs) < cutoff;
}

/** One artifact that a sweep has put aside, under a name that is no other sweep's. */
export interface DoomedName {
  name: string;
  hash: string;
  token: string;
}

/**
 * What a sweep is about to remove lies here for a moment. Only the sweep that put it here removes it, and only by this
 * name; anybody may bring it back. Whichever of the two comes first, the other finds nothing: there is no instant at which
 * an artifact that somebody has brought back can still be removed.
 *
 * All of it is synchronous. It is a handful of files, and a store asks inside its transaction.
 */
export class Doomed {
  readonly #layout: Layout;
  readonly #now: () => number;

  constructor(layout: Layout, now: () => number) {
    this.#layout = layout;
    this.#now = now;
  }

  /**
   * Puts one aside; null when it is not there, or was touched since `cutoff`. It is looked at after the rename: whoever
   * touches it by its own name either did so before, and that is seen here, or does not find it.
   */
  doom(hash: string, token: string, cutoff: number): DoomedName | null {
    const doomed = { name: `${hash}.${nameFor(token)}`, hash, token };
    try {
      renameSync(this.#layout.fileOf(hash), this.#fileOf(doomed));
    } catch (error) {
      if (isAbsent(error)) return null;
      throw error;
    }
    const found = statSync(this.#fileOf(doomed), { throwIfNoEntry: false });
    if (found !== undefined && isOlder(found, cutoff)) return doomed;
    this.restore(doomed);
    return null;
  }

  /** How many bytes that freed; null when somebody has brought it back. */
  remove(doomed: DoomedName): number | null {
    try {
      const { size } = statSync(this.#fileOf(doomed));
      rmSync(this.#fileOf(doomed));
      return size;
    } catch (error) {
      if (isAbsent(error)) return null;
      throw error;
    }
  }

  /** False when it is not here any more. */
  restore(doomed: DoomedName): boolean {
    const [from, to] = [this.#fileOf(doomed), this.#layout.fileOf(doomed.hash)];
    try {
      // A link takes nobody's place: there may be a newer one, and this one may be the reason why it was stored again.
      linkSync(from, to);
    } catch (error) {
      if (isAbsent(error)) return false;
      if (faultOf(error) !== "EEXIST" && !this.#move(from, to)) return false;
    }
    syncFolderNow(this.#layout.shelfOf(doomed.hash));
    rmSync(from, { force: true });
    return true;
  }

  /** Brings one back for somebody who needs it, and keeps it from the next sweep for a while. */
  rescue(hash: string): boolean {
    const found = this.list().filter((doomed) => doomed.hash === hash);
    // All of them: one that stays would outlive the sweep that has put it there.
    if (found.map((doomed) => this.restore(doomed)).every((restored) => !restored)) return false;
    try {
      const now = this.#now() / 1_000;
      utimesSync(this.#layout.fileOf(hash), now, now);
    } catch (error) {
      // Of another user; or put aside again, and then whoever asks looks again.
      if (!isAbsent(error) && faultOf(error) !== "EPERM") throw error;
    }
    return true;
  }

  list(): DoomedName[] {
    return readdirSync(this.#layout.doomed).flatMap((name) => {
      const hash = name.slice(0, 64);
      const token = name[64] === "." ? tokenOf(name.slice(65)) : null;
      return isHash(hash) && token !== null ? [{ name, hash, token }] : [];
    });
  }

  /** For file systems without links. */
  #move(from: string, to: string): boolean {
    try {
      renameSync(from, to);
      return true;
    } catch (error) {
      if (isAbsent(error)) return false;
      throw error;
    }
  }

  #fileOf({ name }: DoomedName): string {
    return join(this.#layout.doomed, name);
  }
}
