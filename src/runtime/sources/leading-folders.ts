import { lstatSync } from "node:fs";
import { join } from "node:path";
import { isGone, missingFolder, missingFolders, unreadable } from "./source-errors.ts";

/**
 * The folders that a source's globs begin with, as they were when the listing began. If none is there (a disk that was
 * unmounted), nothing is known about what is in them; where one is, the others may be missing.
 */
export class LeadingFolders {
  /** Of those that were there, by path from the root. */
  readonly #identities = new Map<string, string>();
  readonly #root: string;

  /** `ids`: paths from the root, which is "" itself. */
  constructor(root: string, ids: readonly string[]) {
    this.#root = root;
    for (const id of ids) {
      const identity = this.#identify(id);
      if (identity !== null) this.#identities.set(id, identity);
    }
    if (ids.length > 0 && this.#identities.size === 0) throw missingFolders(ids.map((id) => join(root, id)));
  }

  /** Whether all that were there still are, and are the same. */
  checkThere(): void {
    for (const [id, identity] of this.#identities) {
      const now = this.#identify(id);
      if (now !== identity) throw missingFolder(join(this.#root, id), now === null ? "went away" : "was replaced");
    }
  }

  /** Null: there is no such folder, or a link is on the way to it, which is not followed. */
  #identify(id: string): string | null {
    // Whoever lists the root looks after it, and may come to it by a link.
    if (id === "") return "";
    const names = id.split("/");
    let identity: string | null = null;
    for (const i of names.keys()) {
      identity = identify(join(this.#root, ...names.slice(0, i + 1)));
      if (identity === null) return null;
    }
    return identity;
  }
}

function identify(path: string): string | null {
  try {
    const stat = lstatSync(path, { bigint: true });
    return stat.isDirectory() ? `${stat.dev}:${stat.ino}` : null;
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
}
