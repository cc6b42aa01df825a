import { hash } from "node:crypto";

/** What a disk or a program somewhere takes for something else than a letter of a name. */
const UNSAFE = /[\p{Cc}\\:<>"|?*]/gu;

/** Devices on Windows, whatever comes behind a dot. */
export const DEVICE = /^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$/i;

/** Bytes of the beginning of a name that is told apart by its hash. */
const BEGINNING = 160;

/** So long is a name of one part that is told apart, at most: its beginning, `~`, and a hash. */
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
