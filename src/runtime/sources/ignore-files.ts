import { readFileSync } from "node:fs";
import ignore, { type Ignore } from "ignore";
import { isGone, unreadable } from "./source-errors.ts";

/** Later ones count more. */
export const IGNORE_FILES = [".gitignore", ".holdfastignore"] as const;

/** What the ignore files from the root down to one folder say about what is in it. */
export class IgnoreFiles {
  static readonly none = new IgnoreFiles(null);
  readonly #rules: Ignore | null;

  private constructor(rules: Ignore | null) {
    this.#rules = rules;
  }

  /** Of a path from the root; a folder's ends with "/". Those above it are known not to be ignored. */
  ignores(id: string): boolean {
    return this.#rules?.ignores(id) ?? false;
  }

  /**
   * For a folder below, with its own ignore files. The rules are copied for each folder, since they remember all they were
   * ever asked about.
   */
  below(folder: string, paths: readonly string[]): IgnoreFiles {
    if (this.#rules === null && paths.length === 0) return this;
    const rules = ignore({ ignorecase: false });
    if (this.#rules !== null) rules.add(this.#rules);
    for (const path of paths) rules.add(readLines(path).map((line) => fromRoot(line, folder)));
    return new IgnoreFiles(rules);
  }
}

function readLines(path: string): string[] {
  try {
    return readFileSync(path, "utf8")
      .replace(/^\u{feff}/u, "")
      .split(/\r?\n/);
  } catch (error) {
    if (isGone(error)) return [];
    throw unreadable(path, error);
  }
}

/**
 * The rule of a file in a folder as if it stood in the root: `*.log` in `a/b` is `/a/b/**\/*.log`. So all rules are one list,
 * in which the last one that matches decides, as git has it.
 */
function fromRoot(line: string, folder: string): string {
  if (folder === "" || line.trim() === "" || line.startsWith("#")) return line;
  const [not, rule] = line.startsWith("!") ? ["!", line.slice(1)] : ["", line];
  // Only a first character needs that escape, and it is not the first any more.
  const body = /^\\[!#]/.test(rule) ? rule.slice(1) : rule;
  const anchored = body.trimEnd().slice(0, -1).includes("/");
  const where = folder.replace(/[\\*?[\]]/g, "\\$&");
  return `${not}/${where}/${anchored ? body.replace(/^\//, "") : `**/${body}`}`;
}
