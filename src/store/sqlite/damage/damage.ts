import { statSync } from "node:fs";
import type { AuditHead } from "../../../core/audit-chain.ts";
import { onlyRead } from "../../../core/errors.ts";
import type { Checked, DamageStore, Finding, NewFinding, Opening, Thoroughness } from "../../findings.ts";
import { runTask } from "../backup/tasks.ts";
import type { Connection, DriverName } from "../driver.ts";
import { epochIn } from "../epoch.ts";
import { explain, faultOf } from "../faults.ts";
import { walSize } from "../wal/size.ts";
import { readSlots } from "../witness/slots.ts";
import { checkDatabase } from "./check.ts";
import { checkCopy } from "./check-copy.ts";
import { Findings } from "./findings.ts";

/** A file of so many bytes takes some milliseconds to look through. */
const SMALL = 1024 * 1024;

export interface DamageOptions {
  driver: DriverName;
  now: () => number;
}

/**
 * What is wrong with one file, as this process knows it. Once damage was found, by whomever, nothing is written any more:
 * what is there may be all that can be saved, and what is written on top of it may be lost with it.
 */
export class Damage implements DamageStore {
  opening: Opening | null = null;
  readonly #path: string;
  readonly #options: DamageOptions;
  readonly #findings: Findings;
  readonly #listeners = new Set<(what: string) => void>();
  readonly #seen: Finding[] = [];
  #db: Connection | null = null;
  #databaseId = "";
  #what: string | null = null;

  constructor(path: string, options: DamageOptions) {
    this.#path = path;
    this.#options = options;
    this.#findings = new Findings(path);
    this.lookAgain();
  }

  get damaged(): string | null {
    return this.#what;
  }

  /** The connection of this store; from now on it can be made to refuse, too. */
  watch(db: Connection, databaseId: string): void {
    this.#db = db;
    this.#databaseId = databaseId;
  }

  /** Before anything is written. */
  refuse(): void {
    if (this.#what !== null) throw onlyRead(this.#path, this.#what);
  }

  /** The same, as a promise; null: go on. */
  refusal(): Promise<never> | null {
    return this.#what === null ? null : Promise.reject(onlyRead(this.#path, this.#what));
  }

  found(finding: NewFinding): void {
    const { severity, what } = this.#findings.add(finding, this.#options.now());
    if (severity === "damage") this.#stop(what);
  }

  /** By one who only looks: it is told, and left to be found by those who act on it. */
  saw(finding: NewFinding): void {
    this.#seen.push({ id: "", at: this.#options.now(), commitsMissing: null, ...finding });
  }

  /** An error that this store has met: is it the file's? */
  met(error: unknown): void {
    if (!isDamage(error) || this.#what !== null) return;
    this.found({ severity: "damage", what: `SQLite has met damage: ${(error as Error).message}.` });
  }

  async check(how: Thoroughness): Promise<Checked> {
    const { driver } = this.#options;
    const request = { driver, path: this.#path, how, damaged: this.#what !== null };
    const { structural, findings, artifacts } =
      this.#path === ":memory:" || (how === "quick" && this.#isSmall())
        ? checkDatabase(this.#db as Connection, driver, how)
        : await (how === "quick" ? runTask("check", request) : checkCopy(request));
    const [first = "", ...others] = findings;
    const more = others.length === 0 ? "" : ` (and ${others.length} findings more)`;
    if (structural) this.found({ severity: "damage", what: `A check has found damage: ${first}${more}.` });
    return { findings, artifacts };
  }

  /** It is looked through sooner than a thread is started. */
  #isSmall(): boolean {
    return this.#db !== null && (statSync(this.#path, { throwIfNoEntry: false })?.size ?? 0) + walSize(this.#path) < SMALL;
  }

  async findings(): Promise<Finding[]> {
    return [...this.#findings.all(), ...this.#seen];
  }

  async reported(ids: readonly string[]): Promise<void> {
    this.#findings.remove(ids);
  }

  async auditHeads(): Promise<AuditHead[]> {
    if (this.#path === ":memory:" || this.#db === null) return [];
    const epoch = this.#epochIn(this.#db);
    // What was written down before a restore is not what the database goes on from.
    const seen = readSlots(this.#path).filter((slot) => slot.seen.databaseId === this.#databaseId && slot.seen.epoch === epoch);
    return seen.flatMap(({ seen: { audit, missed } }) => [audit ?? [], missed ?? []].flat());
  }

  #epochIn(db: Connection): number {
    try {
      return epochIn(db);
    } catch (error) {
      throw explain(error, this.#path);
    }
  }

  lookAgain(): void {
    if (this.#what !== null) return;
    const damage = this.#findings.all().find(({ severity }) => severity === "damage");
    if (damage !== undefined) this.#stop(damage.what);
  }

  onDamaged(call: (what: string) => void): () => void {
    this.#listeners.add(call);
    return () => this.#listeners.delete(call);
  }

  #stop(what: string): void {
    if (this.#what !== null) return;
    this.#what = what;
    // Also for what users do with this connection.
    this.#db?.exec("pragma query_only = on");
    for (const call of this.#listeners) call(what);
  }
}

/** Whether SQLite says that the file is not what it should be. */
export function isDamage(error: unknown): boolean {
  const fault = faultOf(error);
  return fault === "CORRUPT" || fault === "NOTADB";
}
