import { lstatSync, realpathSync, statSync } from "node:fs";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { COMPANIONS } from "./databases.ts";
import { isGone, missingFolder, missingFolders, missingRoot, unreadable } from "./fingerprint-file.ts";

/** Holdfast's own, and git's: never targets, wherever they lie. */
const NEVER = new Set([".git", ".holdfast"]);

/** The folder that a source lists, as it was when the listing began. */
export class Root {
  readonly path: string;
  readonly #real: string;
  readonly #identity: string;
  readonly #leading: LeadingFolders;
  /** Paths from the root, with "/". */
  readonly #skipped: ReadonlySet<string>;

  /** `leading`: the folders in it of which one has to be there. */
  constructor(path: string, skip: readonly string[], leading: readonly string[] = []) {
    this.path = path;
    this.#identity = identify(path);
    this.#leading = new LeadingFolders(path, leading);
    this.#real = realpathSync(path);
    const skipped = skip.flatMap((one) => ["", ...COMPANIONS].map((end) => this.#idOf(realpathOf(resolve(one)) + end)));
    this.#skipped = new Set(skipped.filter((id) => id !== null));
  }

  pathOf(id: string): string {
    return join(this.path, id);
  }

  /** Whether it is no target, and nothing below it is: by its name, or because it was said so. */
  skips(name: string, id: string): boolean {
    return NEVER.has(name) || this.#skipped.has(id);
  }

  /** Whether a link may be followed: what it leads to could be a target itself. Throws the system's error when there is nothing. */
  holds(link: string): boolean {
    const id = this.#idOf(realpathSync(link));
    if (id === null) return false;
    const names = id.split("/");
    return !names.some((name, i) => this.skips(name, names.slice(0, i + 1).join("/")));
  }

  /**
   * Something has gone: if it was the root itself (a disk that was unmounted), or a folder that a glob begins with, then
   * nothing is known about what is in it.
   */
  checkThere(): void {
    if (identify(this.path) !== this.#identity) throw missingRoot(this.path, "was replaced while it was listed");
    this.#leading.checkThere();
  }

  /** Null: it is the root itself, or not in it. */
  #idOf(real: string): string | null {
    const path = relative(this.#real, real);
    if (path === "" || path === ".." || path.startsWith(`..${sep}`) || resolve(path) === path) return null;
    return path.split(sep).join("/");
  }
}

function identify(path: string): string {
  let stat;
  try {
    stat = statSync(path, { bigint: true });
  } catch (error) {
    throw isGone(error) ? missingRoot(path, "is not there", error) : unreadable(path, error);
  }
  if (!stat.isDirectory()) throw missingRoot(path, "is no folder");
  return `${stat.dev}:${stat.ino}`;
}

/** Of something that may not be there yet. */
function realpathOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    const above = dirname(path);
    return above === path ? path : join(realpathOf(above), basename(path));
  }
}

/**
 * The folders that a source's globs begin with, as they were when the listing began. If none is there (a disk that was
 * unmounted), nothing is known about what is in them; where one is, the others may be missing.
 */
class LeadingFolders {
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
      identity = identityOf(join(this.#root, ...names.slice(0, i + 1)));
      if (identity === null) return null;
    }
    return identity;
  }
}

function identityOf(path: string): string | null {
  try {
    const stat = lstatSync(path, { bigint: true });
    return stat.isDirectory() ? `${stat.dev}:${stat.ino}` : null;
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
}
