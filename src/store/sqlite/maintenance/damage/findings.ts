import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { Finding, NewFinding } from "../../../maintenance.ts";
import { createFolder, modeLike } from "../../faults.ts";
import { syncFolder, writeSynced } from "../backup/copy.ts";

/** The suffix of a file that says who cleared a finding, until the audit records it. */
const CLEARED = ".cleared";

export interface Cleared extends Finding {
  clearedBy: string;
  clearedAt: number;
}

/** Files beside the database, because a damaged database is not written; one a finding, so that processes need not coordinate. */
export class Findings {
  readonly #path: string;
  readonly #folder: string | null;
  readonly #kept = new Map<string, Finding>();
  readonly #cleared = new Map<string, Cleared>();

  constructor(path: string) {
    this.#path = path;
    this.#folder = path === ":memory:" ? null : findingsFolder(path);
  }

  all(): Finding[] {
    return this.#folder === null ? [...this.#kept.values()] : readAll(this.#folder);
  }

  /** Synced when it returns. An equal finding is stored once. */
  add(finding: NewFinding, at: number): Finding {
    const same = this.all().find(({ severity, what }) => severity === finding.severity && what === finding.what);
    if (same !== undefined) return same;
    const made: Finding = { id: `${at}-${randomBytes(4).toString("hex")}`, at, commitsMissing: null, ...finding };
    if (this.#folder === null) this.#kept.set(made.id, made);
    else write(this.#folder, made, modeLike(this.#path));
    return made;
  }

  /** Damage stays until a clean check clears it, or the database is replaced. */
  remove(ids: readonly string[]): void {
    const removable = new Set(ids);
    for (const { id } of this.all().filter(({ id, severity }) => severity !== "damage" && removable.has(id))) this.#drop(id);
  }

  #drop(id: string): void {
    this.#kept.delete(id);
    if (this.#folder !== null) rmSync(join(this.#folder, `${id}.json`), { force: true });
  }

  /**
   * Clears damage that a complete check has not found again. The record of the clearing is synced before the finding is removed:
   * if the process dies in between, the finding stays, and the next process that opens the database writes the audit entry.
   */
  clear(ids: readonly string[], by: string, at: number): void {
    const clearable = new Set(ids);
    for (const finding of this.all().filter(({ id }) => clearable.has(id))) {
      const cleared: Cleared = { ...finding, clearedBy: by, clearedAt: at };
      if (this.#folder === null) this.#cleared.set(finding.id, cleared);
      else writeSynced(join(this.#folder, `${finding.id}${CLEARED}`), JSON.stringify(cleared), modeLike(this.#path));
      this.#drop(finding.id);
    }
    if (this.#folder !== null && ids.length > 0) syncFolder(this.#folder);
  }

  cleared(): Cleared[] {
    if (this.#folder === null) return [...this.#cleared.values()];
    const standing = new Set(this.all().map(({ id }) => id));
    return clearedIn(this.#folder).filter(({ id }) => !standing.has(id));
  }

  recorded(id: string): void {
    this.#cleared.delete(id);
    if (this.#folder !== null) rmSync(join(this.#folder, `${id}${CLEARED}`), { force: true });
  }
}

function findingsFolder(path: string): string {
  return `${path}-findings`;
}

export function clearFindings(path: string): void {
  rmSync(findingsFolder(path), { recursive: true, force: true });
  syncFolder(dirname(path));
}

function write(folder: string, finding: Finding, mode: number): void {
  createFolder(folder, mode);
  writeSynced(join(folder, `${finding.id}.json`), `${JSON.stringify(finding, null, 2)}\n`, mode);
  syncFolder(dirname(folder));
}

function clearedIn(folder: string): Cleared[] {
  try {
    const names = readdirSync(folder).filter((name) => name.endsWith(CLEARED));
    return names.map((name) => JSON.parse(readFileSync(join(folder, name), "utf8")) as Cleared);
  } catch {
    return [];
  }
}

function readAll(folder: string): Finding[] {
  let names: string[];
  try {
    names = readdirSync(folder);
  } catch {
    return [];
  }
  const found = names.filter((name) => name.endsWith(".json")).map((name) => read(join(folder, name)));
  return found.filter((finding) => finding !== null).sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
}

/** Null: another process has just removed it. A finding that cannot be parsed still counts as damage. */
function read(file: string): Finding | null {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch {
    return null;
  }
  try {
    return JSON.parse(text) as Finding;
  } catch {
    const what = `Something was found, and ${file} that says what cannot be read.`;
    return { id: basename(file, ".json"), at: 0, severity: "damage", what, commitsMissing: null };
  }
}
