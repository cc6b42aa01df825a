import { HoldfastError } from "../core/errors.ts";

/** What an export writes itself, at its top. */
export const MANIFEST = "manifest.json";
export const CHECKSUMS = "checksums.txt";

/** There are disks and programs that take no more. */
const LONGEST = 1_000;

/** Devices, whatever comes behind a dot. */
const WINDOWS_DEVICE = /^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$/i;

/**
 * The names in one export. All of them must be inside, and different from each other on every disk that the folder may
 * be copied to: also where case and the way an accent is written make no difference.
 */
export class ExportNames {
  /** By what such a disk makes of it: how it was written first, and whether it is a folder. */
  readonly #taken = new Map<string, { path: string; isFolder: boolean }>();

  constructor() {
    this.#take(MANIFEST, false);
    this.#take(CHECKSUMS, false);
  }

  /** The parts of a path that may be written, with `/` between them. */
  take(path: string): string[] {
    const parts = exportParts(path);
    for (let i = 1; i < parts.length; i++) this.#take(parts.slice(0, i).join("/"), true);
    this.#take(path, false);
    return parts;
  }

  #take(path: string, isFolder: boolean): void {
    const folded = path.normalize("NFC").toUpperCase().toLowerCase().normalize("NFC");
    const before = this.#taken.get(folded);
    if (before === undefined) this.#taken.set(folded, { path, isFolder });
    else if (!isFolder || !before.isFolder || before.path !== path) throw clash(path, before.path);
  }
}

/** Of a path inside of an export; refused, where it could lead anywhere else. */
export function exportParts(path: string): string[] {
  if (typeof path !== "string" || path === "") throw invalidPath(path, "is no name");
  if (!path.isWellFormed()) throw invalidPath(path, "has half a character (a lone surrogate)");
  if (path.includes("\0")) throw invalidPath(path, "has the character with the number zero in it");
  if (/^[/\\]/.test(path)) throw invalidPath(path, "is absolute");
  if (Buffer.byteLength(path) > LONGEST) throw invalidPath(path, `has more than ${LONGEST} bytes`);
  const parts = path.split("/");
  for (const part of parts) {
    if (part === "" || part === ".") throw invalidPath(path, "has an empty part");
    if (/^[a-z]:/i.test(part)) throw invalidPath(path, "has a drive letter");
    // A backslash is a letter like others here, but not where the folder may be copied to.
    if (part.split("\\").includes("..")) throw invalidPath(path, "leads out of its folder");
    if (Buffer.byteLength(part) > 255) throw invalidPath(path, "has a part of more than 255 bytes");
    if (process.platform === "win32" && (/[\\:<>"|?*]|[. ]$/.test(part) || WINDOWS_DEVICE.test(part))) {
      throw invalidPath(path, "is no name on Windows");
    }
  }
  return parts;
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
    "Give each file a name of its own: where case or accents do not count, names that differ only by them are one file.",
  );
}
