import { statSync } from "node:fs";
import { hostname } from "node:os";
import type { AuditHead } from "../../../core/audit-chain.ts";
import { HoldfastError, onlyRead } from "../../../core/errors.ts";
import type { Checked, DamageStore, Finding, NewFinding, Opening, Thoroughness } from "../../findings.ts";
import { runTask } from "../backup/tasks.ts";
import type { DatabaseFiles } from "../database-files.ts";
import type { Connection, DriverName } from "../driver.ts";
import { epochIn } from "../epoch.ts";
import { explain, faultOf } from "../faults.ts";
import type { OwnLocks } from "../own-locks.ts";
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
  readonly #listeners = new Set<(error: HoldfastError) => void>();
  readonly #seen: Finding[] = [];
  #db: Connection | null = null;
  #databaseId = "";
  #files: DatabaseFiles | null = null;
  #locks: OwnLocks | null = null;
  #what: string | null = null;
  /** What every write is refused with; null: none is. */
  #error: HoldfastError | null = null;
  /** What every claim is refused with while other writes are not. */
  #unlocked: HoldfastError | null = null;

  constructor(path: string, options: DamageOptions) {
    this.#path = path;
    this.#options = options;
    this.#findings = new Findings(path);
    this.lookAgain();
  }

  get damaged(): string | null {
    return this.#what;
  }

  /** The connection of this store, and what shows that other processes see its files and its locks. From now on it can be made to refuse, too. */
  watch(db: Connection, databaseId: string, files: DatabaseFiles | null, locks: OwnLocks | null): void {
    this.#db = db;
    this.#databaseId = databaseId;
    this.#files = files;
    this.#locks = locks;
  }

  /** Before anything is written. */
  refuse(): void {
    if (this.#error !== null) throw this.#error;
  }

  /** The same, as a promise; null: go on. */
  refusal(): Promise<never> | null {
    return this.#error === null ? null : Promise.reject(this.#error);
  }

  claimRefusal(): HoldfastError | null {
    return this.#error ?? this.#unlocked;
  }

  /**
   * `DATABASE_GONE` when the path, or the log's, leads to another file than the one that is open here, and all writes of this
   * handle are refused from then on. Other processes may work in the files at the path, so nothing is recorded there.
   */
  replaced(maxAgeMs: number): HoldfastError | null {
    const error = this.#error ?? this.#files?.difference(maxAgeMs) ?? null;
    if (error !== null && this.#error === null) this.#stop(error.message, error);
    return error?.code === GONE ? error : null;
  }

  /** Whether `replaced` has found other files. */
  get isReplaced(): boolean {
    return this.#error?.code === GONE;
  }

  found(finding: NewFinding): void {
    const { severity, what } = this.#findings.add(finding, this.#options.now());
    if (severity === "damage") this.#stop(what, onlyRead(this.#path, what));
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
    if (this.#what !== null || this.replaced(0) !== null) return;
    const damage = this.#findings.all().find(({ severity }) => severity === "damage");
    if (damage !== undefined) this.#stop(damage.what, onlyRead(this.#path, damage.what));
    else this.#checkLocks();
  }

  #checkLocks(): void {
    const vanished = this.#unlocked === null ? (this.#locks?.vanished() ?? []) : [];
    if (vanished.length === 0) return;
    this.#unlocked = locksLost(vanished);
    this.found({ severity: "unlocked", what: this.#unlocked.message });
    for (const call of this.#listeners) call(this.#unlocked);
  }

  onDamaged(call: (error: HoldfastError) => void): () => void {
    this.#listeners.add(call);
    return () => this.#listeners.delete(call);
  }

  #stop(what: string, error: HoldfastError): void {
    if (this.#what !== null) return;
    this.#what = what;
    this.#error = error;
    // Also for what users do with this connection.
    this.#db?.exec("pragma query_only = on");
    for (const call of this.#listeners) call(error);
  }
}

const GONE = "DATABASE_GONE";

function locksLost(files: readonly string[]): HoldfastError {
  return new HoldfastError(
    "LOCKS_LOST",
    `Process ${process.pid} on ${hostname()} has lost its locks on ${files.join(", ")}: code in this process opened and closed these files, which drops them. Other processes can take it for dead and remove its write-ahead log, so it claims no more jobs.`,
    "Restart this process, and change the code that reads the files of a live database; `holdfast backup` copies it.",
  );
}

/** Whether SQLite says that the file is not what it should be. */
export function isDamage(error: unknown): boolean {
  const fault = faultOf(error);
  return fault === "CORRUPT" || fault === "NOTADB";
}
