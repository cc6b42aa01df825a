import { hash } from "node:crypto";
import { HoldfastError } from "../core/text/errors.ts";

/** What an export writes itself, at its top. */
export const MANIFEST = "manifest.json";
export const CHECKSUMS = "checksums.txt";

/** There are disks and programs that take no more. In bytes. */
export const LONGEST = 1_000;

/** By what a disk without case makes of a path: how it was written first, and whether it is a folder. */
type Taken = Map<string, { path: string; isFolder: boolean }>;

/**
 * The names in one export. All of them must be inside, and the files different from each other on every disk that it may be
 * copied to: also where case and the way an accent is written make no difference. Folders may become one there.
 */
export class ExportNames {
  readonly #taken: Taken = new Map();

  constructor() {
    for (const path of [MANIFEST, CHECKSUMS]) claim(this.#taken, path, this.#taken);
  }

  /** The parts of a path that may be written, with `/` between them. */
  take(path: string): string[] {
    const parts = exportParts(path);
    const before = claim(this.#taken, path, this.#taken);
    if (before !== null) throw clash(path, before);
    return parts;
  }

  /** All of them together, or none: whether each is a path that may be written, beside all others. */
  takeAll(paths: readonly string[]): boolean {
    const claimed: Taken = new Map();
    if (paths.some((path) => faultIn(path) !== null || claim(this.#taken, path, claimed) !== null)) return false;
    for (const [folded, one] of claimed) this.#taken.set(folded, one);
    return true;
  }
}

/** With the folders that it is in. The answer is what it cannot be beside; null: there is nothing such. */
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

/** An artifact's name is a path in exports of its build to come: refused, where it could be none. */
export function checkArtifactName(name: string): void {
  const fault = faultIn(name);
  if (fault === null) return;
  throw new HoldfastError(
    "EXPORT_PATH_INVALID",
    `The artifact's name ${JSON.stringify(name)} ${fault}, so it cannot be the path of an exported file.`,
    'Give a name that is a path inside a folder, with "/" between its parts, e.g. "page.html" or "images/1.png".',
  );
}

/** Of a path inside of an export; refused, where it could lead anywhere else. */
function exportParts(path: string): string[] {
  const fault = faultIn(path);
  if (fault !== null) throw invalidPath(path, fault);
  return path.split("/");
}

/** The reason why the path cannot be used inside an export; null if it can. */
function faultIn(path: string): string | null {
  if (typeof path !== "string" || path === "") return "is not a name";
  if (!path.isWellFormed()) return "has half a character (a lone surrogate)";
  if (path.includes("\0")) return "has the character with the number zero in it";
  if (/^[/\\]/.test(path)) return "is absolute";
  if (Buffer.byteLength(path) > LONGEST) return `has more than ${LONGEST} bytes`;
  for (const part of path.split("/")) {
    if (part === "" || part === ".") return "has an empty part";
    if (/^[a-z]:/i.test(part)) return "has a drive letter";
    // A backslash is a letter like others here, but not where the folder may be copied to.
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

function clash(path: string, before: string): HoldfastError {
  const own = before === MANIFEST || before === CHECKSUMS;
  return new HoldfastError(
    "EXPORT_PATH_TAKEN",
    `The path ${JSON.stringify(path)} cannot be beside ${JSON.stringify(before)}${own ? ", which every export has" : ""}; nothing was exported.`,
    "Give each file another name. File systems may treat names that differ only in case or accents as one.",
  );
}

/** What a disk or a program somewhere takes for something else than a letter of a name. */
const UNSAFE = /[\p{Cc}\\:<>"|?*]/gu;

/** Devices on Windows, whatever comes behind a dot. */
const DEVICE = /^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$/i;

/** Bytes that are kept of a name that gets a hash to be unique. */
const BEGINNING = 160;

/** The longest name of one part with a hash: its beginning, `~`, and the hash. */
export const LONGEST_APART = BEGINNING + 33;

/**
 * Any text as a path that stays in its folder, on every disk: what could be misread is percent-encoded, a slash with
 * nothing before or behind it too. A path of plain names is itself.
 */
export function safePath(text: string): string {
  const edges = text.replace(/^\/+|\/{2,}|\/+$/g, (slashes) => "%2F".repeat(slashes.length));
  return edges.split("/").map(safePart).join("/");
}

/**
 * The names that a text may have in an export, the best first: itself as a path, then told apart by a hash in its folder,
 * then in no folder at all. There is always another; which is taken depends only on those that are taken before.
 */
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

/** No letter is cut, and nothing that stands for one. */
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
