import { realpathSync, statSync } from "node:fs";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { COMPANIONS } from "./databases.ts";
import { LeadingFolders } from "./leading-folders.ts";
import { isGone, missingRoot, unreadable } from "./source-errors.ts";

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
