import type { Readable } from "node:stream";
import { HoldfastError } from "../text/errors.ts";
import { fileGlobs, ignoreGlobs } from "../text/glob.ts";
import { checkBoolean, describeValue, refuseUnknown } from "../text/options.ts";
import { checkStorable } from "../text/text.ts";

/** One item that a pipeline works on. */
export interface Target {
  readonly id: string;
  /** Of its content. */
  readonly hash: string;
  /** What it was expanded from. */
  readonly parent?: Target;
}

export interface FileTarget extends Target {
  readonly path: string;
  readonly size: number;
  bytes(): Promise<Uint8Array>;
  stream(): Readable;
}

/** What finds targets. */
export interface Source<T extends Target, In> {
  readonly types?: { target: T; input: In };
}

/** A source as the engine reads it. */
export type SourceDefinition = FilesSource | ItemsSource;

export interface FilesSource {
  readonly kind: "files";
  readonly globs: readonly string[];
  /** Null: the folder in which the program runs. */
  readonly root: string | null;
  readonly ignore: readonly string[];
  readonly snapshot: boolean;
  /** Whether `*` and `**` match names that begin with a dot. */
  readonly dot: boolean;
}

export interface ItemsSource {
  readonly kind: "items";
  readonly list: (cursor?: string) => Iterable<unknown> | AsyncIterable<unknown>;
  readonly id: (value: unknown) => string;
  readonly version: ((value: unknown) => string) | null;
  readonly cursor: ((value: unknown) => string) | null;
}

/**
 * Files are targets; their ids are their paths from the root. A glob without wildcards is a file, or a folder with all that
 * is in it; `*` and `**` match no names that begin with a dot, unless `dot` is true. Files that a `.gitignore` or `.holdfastignore` names are left out.
 *
 * ```ts
 * pipeline("docs").source(files("docs/**\/*.md", { ignore: ["docs/drafts/**"] }))
 * ```
 */
export function files(
  globs: string | string[],
  options: { root?: string; ignore?: string[]; snapshot?: boolean; dot?: boolean } = {},
): Source<FileTarget, undefined> {
  refuseUnknown(options, ["root", "ignore", "snapshot", "dot"], "files()");
  const { root, ignore = [], snapshot = false, dot = false } = options;
  const given = typeof globs === "string" ? [globs] : globs;
  if (!Array.isArray(given) || given.length === 0) throw invalid("files() has no glob.", 'Give a glob such as "docs/**/*.md".');
  if (!Array.isArray(ignore))
    throw invalid("`ignore` of files() is no list.", 'Give a list of globs such as ["**/node_modules/**"].');
  checkBoolean(snapshot, "`snapshot` of files()");
  checkBoolean(dot, "`dot` of files()");
  fileGlobs(given, dot);
  ignoreGlobs(ignore);
  const source: FilesSource = Object.freeze({
    kind: "files",
    globs: Object.freeze([...given]),
    root: root === undefined ? null : checkRoot(root),
    ignore: Object.freeze([...ignore]),
    snapshot,
    dot,
  });
  return source as Source<FileTarget, undefined>;
}

/**
 * Anything that can be listed. `version` says whether an item has changed; without it, the whole item does. With `cursor`
 * a listing that was interrupted goes on after the last item that was written down.
 *
 * ```ts
 * pipeline("mails").source(items((after) => mailsSince(after), { id: (mail) => mail.id, cursor: (mail) => mail.receivedAt }))
 * ```
 */
export function items<V>(
  list: (cursor?: string) => Iterable<V> | AsyncIterable<V>,
  options: { id: (value: V) => string; version?: (value: V) => string; cursor?: (value: V) => string },
): Source<Target, V> {
  if (typeof list !== "function") throw invalid("items() has no list.", "Give a function that answers an iterable of items.");
  refuseUnknown(options, ["id", "version", "cursor"], "items()");
  const { id, version, cursor } = options;
  if (typeof id !== "function") throw invalid("items() has no `id`.", "Give a function of an item that answers its id.");
  for (const [name, given] of Object.entries({ version, cursor })) {
    if (given === undefined || typeof given === "function") continue;
    throw invalid(`\`${name}\` of items() is no function.`, "Give a function of an item that answers a text, or leave it out.");
  }
  const source = Object.freeze({ kind: "items", list, id, version: version ?? null, cursor: cursor ?? null });
  return source as Source<Target, V>;
}

/** The engine's view of what a user passed. */
export function sourceOf(source: unknown): SourceDefinition {
  const { kind } = (typeof source === "object" && source !== null ? source : {}) as { kind?: unknown };
  if (kind === "files" || kind === "items") return source as SourceDefinition;
  throw invalid("This is no source.", "Make one with files(globs) or items(list, { id }).");
}

function checkRoot(root: unknown): string {
  if (typeof root === "string" && root.trim() !== "") return checkStorable(root, "`root` of files()");
  throw invalid(`\`root\` of files() must be a path, got ${describeValue(root)}.`, "Give the path of a folder.");
}

function invalid(message: string, hint: string): HoldfastError {
  return new HoldfastError("SOURCE_INVALID", message, hint);
}
