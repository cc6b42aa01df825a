import { hash } from "node:crypto";
import { HoldfastError } from "../core/text/errors.ts";

export const MANIFEST = "manifest.json";
export const CHECKSUMS = "checksums.txt";

/** Longest path in bytes. Some disks and programs accept no more. */
export const LONGEST = 1_000;

type Taken = Map<string, { path: string; isFolder: boolean }>;

/** The names in one export. They differ on every disk, also where upper and lower case or forms of accents are the same. */
export class ExportNames {
  readonly #taken: Taken = new Map();

  constructor() {
    for (const path of [MANIFEST, CHECKSUMS]) claim(this.#taken, path, this.#taken);
  }

  take(path: string): string[] {
    const fault = faultIn(path);
    if (fault !== null) throw invalidPath(path, fault);
    const before = claim(this.#taken, path, this.#taken);
    if (before !== null) {
      const own = before === MANIFEST || before === CHECKSUMS;
      throw new HoldfastError(
        "EXPORT_PATH_TAKEN",
        `The path ${JSON.stringify(path)} cannot be beside ${JSON.stringify(before)}${own ? ", which every export has" : ""}; nothing was exported.`,
        "Give each file another name. File systems may treat names that differ only in case or accents as one.",
      );
    }
    return path.split("/");
  }

  takeAll(paths: readonly string[]): boolean {
    const claimed: Taken = new Map();
    if (paths.some((path) => faultIn(path) !== null || claim(this.#taken, path, claimed) !== null)) return false;
    for (const [folded, one] of claimed) this.#taken.set(folded, one);
    return true;
  }
}

function claim(taken: Taken, path: string, claimed: Taken): string | null {
  for (let end = path.indexOf("/"); ; end = path.indexOf("/", end + 1)) {
    const isFolder = end !== -1;
    const own = isFolder ? path.slice(0, end) : path;
    const folded = own.normalize("NFC").toUpperCase().toLowerCase().normalize("NFC");
    const before = taken.get(folded) ?? claimed.get(folded);
    if (before === undefined) claimed.set(folded, { path: own, isFolder });
    else if (!isFolder || !before.isFolder) return before.path;
    if (!isFolder) return null;
  }
}

/** Checks an artifact's name, because it becomes a path in exports of its build. */
export function checkArtifactName(name: string): void {
  const fault = faultIn(name);
  if (fault === null) return;
  throw new HoldfastError(
    "EXPORT_PATH_INVALID",
    `The artifact's name ${JSON.stringify(name)} ${fault}, so it cannot be the path of an exported file.`,
    'Give a name that is a path inside a folder, with "/" between its parts, e.g. "page.html" or "images/1.png".',
  );
}

function faultIn(path: string): string | null {
  if (typeof path !== "string" || path === "") return "is not a name";
  if (!path.isWellFormed()) return "has half a character (a lone surrogate)";
  if (path.includes("\0")) return "has the character with the number zero in it";
  if (/^[/\\]/.test(path)) return "is absolute";
  if (Buffer.byteLength(path) > LONGEST) return `has more than ${LONGEST} bytes`;
  for (const part of path.split("/")) {
    if (part === "" || part === ".") return "has an empty part";
    if (/^[a-z]:/i.test(part)) return "has a drive letter";
    // A backslash separates folders on systems where the export may be copied to.
    if (part.split("\\").includes("..")) return "leads out of its folder";
    if (Buffer.byteLength(part) > 255) return "has a part of more than 255 bytes";
    const isOdd = /[\\:<>"|?*]|[. ]$/.test(part) || DEVICE.test(part);
    if (process.platform === "win32" && isOdd) return "is not a valid name on Windows";
  }
  return null;
}

export function invalidPath(path: unknown, why: string): HoldfastError {
  return new HoldfastError(
    "EXPORT_PATH_INVALID",
    `The path ${JSON.stringify(path) ?? String(path)} ${why}, so nothing was exported.`,
    'Give a path inside the folder, with "/" between its parts, e.g. "docs/a.json".',
  );
}

const UNSAFE = /[\p{Cc}\\:<>"|?*]/gu;

const DEVICE = /^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$/i;

const BEGINNING = 160;

export const LONGEST_APART = BEGINNING + 33;

/** Turns any text into a path that stays in its folder on every disk, by percent-encoding what could be misread. */
export function safePath(text: string): string {
  const edges = text.replace(/^\/+|\/{2,}|\/+$/g, (slashes) => "%2F".repeat(slashes.length));
  return edges.split("/").map(safePart).join("/");
}

/** Yields names for a text, best first: its path, a hash in its folder, a hash alone. */
export function* namesFor(text: string, identity = text): Iterable<string> {
  const path = safePath(text);
  yield path;
  const at = path.lastIndexOf("/") + 1;
  const tag = hash("sha256", identity);
  yield path.slice(0, at) + apart(path.slice(at), tag.slice(0, 16));
  yield apart(path.slice(at), tag.slice(0, 32));
  for (let n = 1; ; n++) yield apart(path.slice(at), hash("sha256", `${n}\n${identity}`).slice(0, 32));
}

function safePart(part: string): string {
  if (part === "." || part === "..") return "%2E".repeat(part.length);
  const encoded = part.replace(UNSAFE, percent).replace(/[. ]$/, percent);
  return DEVICE.test(encoded) ? percent(encoded.slice(0, 1)) + encoded.slice(1) : encoded;
}

function percent(letter: string): string {
  return [...Buffer.from(letter)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");
}

/** Shortens a name between characters, never inside an encoded one. */
function apart(name: string, tag: string): string {
  let beginning = "";
  let bytes = 0;
  for (const [letter] of name.matchAll(/%[0-9A-F]{2}|./gsu)) {
    bytes += Buffer.byteLength(letter);
    if (bytes > BEGINNING) break;
    beginning += letter;
  }
  return `${beginning}~${tag}`;
}
