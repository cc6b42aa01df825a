import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { Finding, NewFinding } from "../../../maintenance.ts";
import { createFolder, modeLike } from "../../faults.ts";
import { syncFolder, writeSynced } from "../backup/copy.ts";

/** A stored finding. One that a check has cleared stays until the audit records that. */
interface Stored extends Finding {
  clearedBy?: string;
  clearedAt?: number;
}

/** Stores findings beside the database, which is not written once it is damaged, and in one file each, to avoid conflicts. */
export class Findings {
  readonly #path: string;
  /** Findings of a database in memory. */
  readonly #kept = new Map<string, Stored>();

  constructor(path: string) {
    this.#path = path;
  }

  all(): Finding[] {
    return this.#stored().filter(({ clearedAt }) => clearedAt === undefined);
  }

  cleared(): Stored[] {
    return this.#stored().filter(({ clearedAt }) => clearedAt !== undefined);
  }

  /** Stores a finding, which is synced when it returns. An equal finding is stored once. */
  add(finding: NewFinding, at: number): Finding {
    const same = this.all().find(({ severity, what }) => severity === finding.severity && what === finding.what);
    if (same !== undefined) return same;
    const made: Finding = { id: `${at}-${randomBytes(4).toString("hex")}`, at, commitsMissing: null, ...finding };
    this.#store(made);
    return made;
  }

  /** Removes findings except damage, which stays until a clean check clears it or the database is replaced. */
  remove(ids: readonly string[]): void {
    for (const { id, severity } of this.all()) if (severity !== "damage" && ids.includes(id)) this.drop(id);
  }

  /** Clears damage that a complete check has not found again. */
  clear(ids: readonly string[], clearedBy: string, clearedAt: number): void {
    for (const finding of this.all()) if (ids.includes(finding.id)) this.#store({ ...finding, clearedBy, clearedAt });
  }

  drop(id: string): void {
    this.#kept.delete(id);
    if (this.#path !== ":memory:") rmSync(join(findingsFolder(this.#path), `${id}.json`), { force: true });
  }

  #stored(): Stored[] {
    const found = this.#path === ":memory:" ? [...this.#kept.values()] : readAll(findingsFolder(this.#path));
    return found.sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  }

  #store(finding: Stored): void {
    if (this.#path === ":memory:") return void this.#kept.set(finding.id, finding);
    const folder = findingsFolder(this.#path);
    createFolder(folder, modeLike(this.#path));
    writeSynced(join(folder, `${finding.id}.json`), `${JSON.stringify(finding, null, 2)}\n`, modeLike(this.#path));
    syncFolder(dirname(folder));
  }
}

function findingsFolder(path: string): string {
  return `${path}-findings`;
}

export function clearFindings(path: string): void {
  rmSync(findingsFolder(path), { recursive: true, force: true });
  syncFolder(dirname(path));
}

function readAll(folder: string): Stored[] {
  try {
    const names = readdirSync(folder).filter((name) => name.endsWith(".json"));
    return names.map((name) => read(join(folder, name))).filter((finding) => finding !== null);
  } catch {
    return [];
  }
}

/** Reads a finding. One that cannot be parsed still counts as damage. Null: another process has just removed it. */
function read(file: string): Stored | null {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch {
    return null;
  }
  try {
    return JSON.parse(text) as Stored;
  } catch {
    const what = `Something was found, and ${file} that says what cannot be read.`;
    return { id: basename(file, ".json"), at: 0, severity: "damage", what, commitsMissing: null };
  }
}
