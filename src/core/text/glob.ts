import picomatch from "picomatch";
import { describeValue } from "./options.ts";
import { checkStorable } from "./text.ts";
import { HoldfastError } from "./errors.ts";

/** Compiled globs. Ids are paths from the root with "/" between names, or whatever a source calls its items. */
export interface Glob {
  matches(id: string): boolean;
  mayMatchBelow(folder: string): boolean;
}

export interface GlobOptions {
  what: string;
  /** Whether `*` and `**` match names that begin with a dot; true for `ignore`, `match` and `only`. */
  hidden: boolean;
  paths: boolean;
  code: string;
}

export function fileGlobs(globs: readonly string[], dot = false): Glob {
  return compile(globs, { what: "A glob of files()", hidden: dot, paths: true, code: "SOURCE_INVALID" });
}

export function leadingFolders(globs: readonly string[]): string[] {
  return [...new Set(globs.map((glob) => leadingFolder(normalizePath(glob))))];
}

function leadingFolder(glob: string): string {
  const names = glob.split("/");
  const wild = names.findIndex((name) => !isPlain(name));
  return names.slice(0, wild === -1 ? -1 : wild).join("/");
}

export function ignoreGlobs(globs: readonly string[]): Glob {
  return compile(globs, { what: "A glob in `ignore` of files()", hidden: true, paths: true, code: "SOURCE_INVALID" });
}

export function matchGlob(glob: string, where: string): Glob {
  return compile([glob], { what: `\`match\` of ${where}`, hidden: true, paths: false, code: "OPTION_INVALID" });
}

export function onlyGlob(glob: string): Glob {
  return compile([glob], { what: "A glob in `only`", hidden: true, paths: false, code: "OPTION_INVALID" });
}

function compile(globs: readonly string[], options: GlobOptions): Glob {
  const each = globs.map((glob) => compileOne(glob, options));
  return {
    matches: (id) => each.some((glob) => glob.matches(id)),
    mayMatchBelow: (folder) => each.some((glob) => glob.mayMatchBelow(folder)),
  };
}

function compileOne(given: string, options: GlobOptions): Glob {
  const checked = check(given, options);
  const glob = options.paths ? normalizePath(checked) : checked;
  // A glob without wildcards is a file, or a folder with all its content.
  const spelled = isPlain(glob) ? [glob, `${glob}/**`] : [glob];
  const tests = spelled.map((one) => toTest(one, given, options));
  const matches = (id: string) => tests.some((test) => test(id));
  return { matches, mayMatchBelow: folderTest(glob, options) };
}

type Test = (text: string) => boolean;

function toTest(glob: string, given: string, { what, hidden, code }: GlobOptions): Test {
  try {
    // Match alike on every platform; "." matches line breaks, which names may contain; "!" does not negate.
    return picomatch(glob, { windows: false, dot: hidden, nonegate: true, strictBrackets: true, flags: "s" });
  } catch (cause) {
    const message = `${what} is ${JSON.stringify(given)}, which cannot be read: ${(cause as Error).message}.`;
    throw new HoldfastError(code, message, 'Close every bracket, or write "\\" before one that is meant as it is.', { cause });
  }
}

/** Returns a test for folders: a scan for "docs/*.md" opens neither "src" nor "docs/old", and one for "**" no ".cache". */
function folderTest(glob: string, options: GlobOptions): Glob["mayMatchBelow"] {
  if (!options.paths) return () => true;
  const names = glob.split("/");
  const odd = names.findIndex((name) => name.includes("**") || !isSimple(name));
  const open = odd !== -1 || isPlain(glob);
  const tests = (odd === -1 ? names : names.slice(0, odd)).map((name) => toTest(name, glob, options));
  const hidden = options.hidden || mayMatchHidden(names.slice(tests.length).join("/"));
  return (folder) => {
    const above = folder.split("/");
    if (!open && above.length >= tests.length) return false;
    return above.every((name, i) => (tests[i] === undefined ? hidden || !name.startsWith(".") : tests[i](name)));
  };
}

function isSimple(name: string): boolean {
  return /^[^\\[\](){}!+@|]*$/.test(name);
}

function isPlain(glob: string): boolean {
  return isSimple(glob) && !/[*?]/.test(glob);
}

function mayMatchHidden(glob: string): boolean {
  return /(?:^|[/{,])\.|[\\[\]()!+@|]/.test(glob);
}

function normalizePath(glob: string): string {
  const below = glob.replace(/\/{2,}/g, "/").replace(/^(?:\.\/)+/, "");
  if (below === "" || below === ".") return "**";
  return below.endsWith("/") ? `${below}**` : below;
}

function check(glob: unknown, { what, paths, code }: GlobOptions): string {
  const refused = (why: string, hint: string) => new HoldfastError(code, `${what} is ${JSON.stringify(glob)}${why}.`, hint);
  if (typeof glob !== "string" || glob.trim() === "") {
    throw new HoldfastError(code, `${what} must be a glob, got ${describeValue(glob)}.`, 'Give a glob such as "docs/**/*.md".');
  }
  checkStorable(glob, what);
  if (/^!(?!\()/.test(glob)) {
    const hint = paths
      ? "Name what is to be left out in `ignore` of files()."
      : "Give a function of target and input that returns true or false.";
    throw refused(", and globs do not negate", hint);
  }
  if (!paths) return glob;
  if (glob.startsWith("/") || /^[A-Za-z]:[\\/]/.test(glob) || glob.startsWith("\\\\")) {
    throw refused(", which is an absolute path", "Give `root`, and a glob that begins below it.");
  }
  if (glob.split(/[/\\{},()|]/).includes("..")) {
    throw refused(", which leads out of its root", "Give the upper folder as `root`, and a glob that begins below it.");
  }
  return glob;
}
