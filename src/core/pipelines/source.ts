import { checkBoolean, describeValue, Nearest, refuseUnknown, rejectSurplus } from "../text/options.ts";
import type { Readable } from "node:stream";
import { HoldfastError } from "../text/errors.ts";
import { fileGlobs, type Glob, ignoreGlobs, onlyGlob } from "../text/glob.ts";
import { checkStorable } from "../text/text.ts";

/** One item that a pipeline works on. */
export interface Target {
  readonly id: string;
  readonly hash: string;
  /** Target that this one was expanded from. */
  readonly parent?: Target;
}

export interface FileTarget extends Target {
  readonly path: string;
  readonly size: number;
  bytes(): Promise<Uint8Array>;
  stream(): Readable;
}

/** Finds the targets of a pipeline. */
export interface Source<T extends Target, In> {
  readonly types?: { target: T; input: In };
}

export type SourceDefinition = FilesSource | ItemsSource;

export interface FilesSource {
  readonly kind: "files";
  readonly globs: readonly string[];
  readonly root: string | null;
  readonly ignore: readonly string[];
  readonly snapshot: boolean;
  readonly dot: boolean;
}

export interface ItemsSource {
  readonly kind: "items";
  readonly list: (cursor?: string) => Iterable<unknown> | AsyncIterable<unknown>;
  readonly id: (value: unknown) => string;
  readonly version: ((value: unknown) => string) | null;
  readonly cursor: ((value: unknown) => string) | null;
}

export interface FilesOptions {
  /** Folder that globs and ids are relative to. Default: the working directory. */
  root?: string;
  /** Globs of files to leave out. */
  ignore?: string[];
  /** True: copy the bytes into the artifacts when listing, so that workers on other hosts can read them. Default: false. */
  snapshot?: boolean;
  /** True: `*` and `**` also match names that begin with a dot. Default: false. */
  dot?: boolean;
}

/**
 * Finds files as targets, with their paths from the root as ids. A glob without wildcards is a file, or a folder with its
 * content. `*` and `**` skip names with a leading dot, unless `dot` is true. `.gitignore` and `.holdfastignore` leave files out.
 *
 * ```ts
 * pipeline("docs").source(files("docs/**\/*.md", { ignore: ["docs/drafts/**"] }))
 * ```
 */
export function files(globs: string | string[], options: FilesOptions = {}): Source<FileTarget, undefined> {
  rejectSurplus(arguments, 2, "files");
  refuseUnknown(options, ["root", "ignore", "snapshot", "dot"], "files()");
  const { root, ignore = [], snapshot = false, dot = false } = options;
  const given = typeof globs === "string" ? [globs] : globs;
  if (!Array.isArray(given) || given.length === 0) throw invalid("files() needs a glob.", 'Give a glob such as "docs/**/*.md".');
  if (!Array.isArray(ignore))
    throw invalid("`ignore` of files() must be an array.", 'Give an array of globs such as ["**/node_modules/**"].');
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

export interface ItemsOptions<V> {
  /** Id of an item. */
  id: (value: V) => string;
  /** Text that differs when the item has changed. Default: a hash of the whole item. */
  version?: (value: V) => string;
  /** Position of an item in the listing; an interrupted listing continues after the last stored one. Default: it starts again. */
  cursor?: (value: V) => string;
}

/**
 * Finds items of any kind as targets. `version` says whether an item has changed; without it, the whole item counts. With
 * `cursor`, an interrupted listing continues after the last item that was stored.
 *
 * ```ts
 * pipeline("mails").source(items((after) => mailsSince(after), { id: (mail) => mail.id, cursor: (mail) => mail.receivedAt }))
 * ```
 */
export function items<V>(list: (cursor?: string) => Iterable<V> | AsyncIterable<V>, options: ItemsOptions<V>): Source<Target, V> {
  if (typeof list !== "function")
    throw invalid("The first argument of items() must be a function.", "Give a function that returns an iterable of items.");
  rejectSurplus(arguments, 2, "items");
  refuseUnknown(options, ["id", "version", "cursor"], "items()");
  const { id, version, cursor } = options;
  if (typeof id !== "function")
    throw invalid("`id` of items() must be a function.", "Give a function that takes an item and returns its id.");
  for (const [name, given] of Object.entries({ version, cursor })) {
    if (given === undefined || typeof given === "function") continue;
    throw invalid(
      `\`${name}\` of items() must be a function.`,
      "Give a function that takes an item and returns a string, or leave it out.",
    );
  }
  const source = Object.freeze({ kind: "items", list, id, version: version ?? null, cursor: cursor ?? null });
  return source as Source<Target, V>;
}

export function sourceOf(source: unknown): SourceDefinition {
  const { kind } = (typeof source === "object" && source !== null ? source : {}) as { kind?: unknown };
  if (kind === "files" || kind === "items") return source as SourceDefinition;
  throw invalid("This is not a source.", "Create one with files(globs) or items(list, { id }).");
}

function checkRoot(root: unknown): string {
  if (typeof root === "string" && root.trim() !== "") return checkStorable(root, "`root` of files()");
  throw invalid(`\`root\` of files() must be a path, got ${describeValue(root)}.`, "Give the path of a folder.");
}

function invalid(message: string, hint: string): HoldfastError {
  return new HoldfastError("SOURCE_INVALID", message, hint);
}

interface Wanted {
  given: string;
  glob: Glob;
  isMet: boolean;
  /** Set for the first few only, because the search takes time. */
  nearest: Nearest | null;
}

const MAX_HINTED = 10;

/** The targets that `only` names, by ids or globs. Each must exist, because a missing one was mistyped. */
export class OnlyTargets {
  readonly #wanted: Wanted[];
  #missing: number;

  constructor(given: readonly string[], stages: readonly string[] = []) {
    this.#wanted = given.map((one, i) => ({
      given: one,
      glob: onlyGlob(one),
      isMet: false,
      nearest: i < MAX_HINTED ? new Nearest(one) : null,
    }));
    this.#missing = given.length;
    for (const { nearest } of this.#wanted) for (const stage of stages) nearest?.offer(stage);
  }

  get isAll(): boolean {
    return this.#wanted.length === 0;
  }

  get isMet(): boolean {
    return this.#missing === 0;
  }

  includes(id: string): boolean {
    let taken = this.isAll;
    for (const wanted of this.#wanted) {
      if (taken && wanted.isMet) continue;
      // An id may look like a glob that does not match the id.
      if (wanted.given === id || wanted.glob.matches(id)) {
        taken = true;
        this.#markMet(wanted);
      } else if (!wanted.isMet) {
        wanted.nearest?.offer(id);
      }
    }
    return taken;
  }

  markAllMet(): void {
    for (const wanted of this.#wanted) this.#markMet(wanted);
  }

  rejectMissing(): void {
    const missing = this.#wanted.filter(({ isMet }) => !isMet);
    if (missing.length === 0) return;
    const names = missing.map(({ given }) => JSON.stringify(given)).join(", ");
    const near = [...new Set(missing.flatMap(({ nearest }) => nearest?.found ?? []))].map((one) => JSON.stringify(one));
    const [is, no] = missing.length === 1 ? ["is", "no target and no stage"] : ["are", "no targets and no stages"];
    throw new HoldfastError(
      "TARGET_UNKNOWN",
      `${names} in \`only\` ${is} ${no} of this pipeline, so nothing was done.${near.length === 0 ? "" : ` Did you mean ${near.join(" or ")}?`}`,
      "Give ids that the source lists, globs of them, or names of stages.",
    );
  }

  #markMet(wanted: Wanted): void {
    if (wanted.isMet) return;
    wanted.isMet = true;
    this.#missing--;
  }
}
