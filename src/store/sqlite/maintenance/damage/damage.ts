import { hostname } from "node:os";
import type { AuditHead } from "../../../../core/recovery/audit.ts";
import { findLogDamage, type Loss, findLoss } from "../../../../core/recovery/loss.ts";
import { HoldfastError, damagedDatabase, damageCleared } from "../../../../core/text/errors.ts";
import type { Act } from "../../../audit.ts";
import type { Checked, Finding, NewFinding, Thoroughness } from "../../../maintenance.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { explain, explaining, fileSize, isDamage } from "../../faults.ts";
import { Staging } from "../backup/backups.ts";
import { runTask, runTaskApart } from "../backup/tasks.ts";
import { epochIn, knownIn } from "../epoch.ts";
import type { DatabaseFiles } from "../open-files.ts";
import { scanLog, walSize } from "../wal.ts";
import { mostSeen, readSlots } from "../witness.ts";
import { checkDatabase, type CheckedPages, type CheckRequest } from "./check.ts";
import { Findings } from "./findings.ts";
import type { DamageStore } from "../../../store.ts";

/** Checking a smaller database takes less time than starting a thread. */
const SMALL_BYTES = 1024 * 1024;

interface DamageOptions {
  driver: DriverName;
  now: () => number;
  actor: string;
}

interface Watched {
  db: Connection;
  databaseId: string;
  /** Shows, like `vanishedLocks`, whether other processes see the same files and locks. */
  files: DatabaseFiles | null;
  vanishedLocks: () => string[];
  record: (act: Act) => Promise<void>;
  onDamaged: (error: HoldfastError | null) => void;
}

/** Stops all writes after any process has found damage: what the files contain may be all that can be saved. */
export class Damage implements DamageStore {
  logAtOpening: { bytes: number; frames: number } | null = null;
  /** Whether the database is new, or had a witness when this process opened it. */
  isWitnessed = false;
  readonly #path: string;
  readonly #options: DamageOptions;
  readonly #findings: Findings;
  readonly #reported: Finding[] = [];
  #watched: Watched | null = null;
  /** The database was damaged when the connection was opened, so the connection is read-only. */
  #isReadOnly = false;
  #confirming: Promise<void> = Promise.resolve();
  #isSuspected = false;
  /** True once a second read has found no damage. The next such error counts as damage at once. */
  #wasCleared = false;
  #what: string | null = null;
  #lost: string | null = null;
  #error: HoldfastError | null = null;
  /** Error for claims, while other writes are accepted. */
  #unlocked: HoldfastError | null = null;

  constructor(path: string, options: DamageOptions) {
    this.#path = path;
    this.#options = options;
    this.#findings = new Findings(path);
    this.#refresh();
  }

  get damaged(): string | null {
    return this.#what;
  }

  get incomplete(): string | null {
    return this.#what ?? this.#lost;
  }

  watch(watched: Watched): void {
    this.#watched = watched;
    this.#isReadOnly = this.#what !== null;
    this.#lost = [...this.#findings.all(), ...this.#reported].find(({ severity }) => severity === "loss")?.what ?? null;
  }

  /** Returns the error for writes or claims. It first looks again, because another process may have cleared the finding. */
  refusal(of: "write" | "claim", again = false): HoldfastError | null {
    if (again || this.#error !== null) this.#refresh();
    return this.#error ?? (of === "claim" ? this.#unlocked : null);
  }

  /** Returns `DATABASE_GONE` if the path of database or log leads to another file. It records no finding beside that file. */
  replaced(maxAgeMs: number): HoldfastError | null {
    // Closing the connection may have removed the log.
    if (this.#watched?.db.isOpen === false) return null;
    const error = this.#error ?? this.#watched?.files?.difference(maxAgeMs) ?? null;
    if (error !== null && this.#error === null) this.#stop(error.message, error);
    return error?.code === GONE ? error : null;
  }

  get isReplaced(): boolean {
    return this.#error?.code === GONE;
  }

  found(finding: NewFinding): void {
    const { severity, what } = this.#findings.add(finding, this.#options.now());
    if (severity === "damage") this.#stop(what, damagedDatabase(this.#path, what));
  }

  /** Reports a finding of a read-only handle without storing it. A handle that may act on it will find it, too. */
  report(finding: NewFinding): void {
    this.#reported.push({ id: "", at: this.#options.now(), commitsMissing: null, ...finding });
  }

  /** Stops writes at once after an error of damage. One bad read is no proof, so another process reads again to confirm it. */
  met(thrown: unknown): void {
    if (!isDamage(thrown) || this.#what !== null) return;
    const finding = { severity: "damage", what: `SQLite has met damage: ${(thrown as Error).message}.` } as const;
    if (this.#path === ":memory:" || this.#wasCleared) return this.found(finding);
    this.#isSuspected = true;
    this.#stop(finding.what, damagedDatabase(this.#path, finding.what));
    this.#confirming = this.#confirm(finding).catch(() => {});
  }

  async #confirm(finding: NewFinding): Promise<void> {
    // If the check itself fails, the error counts as damage.
    const checked = await this.#examine("whole").catch(() => null);
    if (checked === null || !checked.isComplete || checked.findings.length > 0) this.found(finding);
    else this.#wasCleared = true;
    this.#isSuspected = false;
    this.#refresh();
  }

  confirmed(): Promise<void> {
    return this.#confirming;
  }

  async check(how: Thoroughness, clears?: readonly string[]): Promise<Checked> {
    const isMemory = this.#path === ":memory:";
    let checked =
      isMemory || (how === "quick" && this.#isSmall())
        ? checkDatabase((this.#watched as Watched).db, this.#options.driver, how)
        : await this.#examine(how);
    if (checked.structural && !isMemory) checked = await this.#examine(how);
    const { structural, findings, references, artifacts, isComplete } = checked;
    const [first = "", ...others] = findings;
    const more = others.length === 0 ? "" : ` (and ${others.length} findings more)`;
    if (structural) this.found({ severity: "damage", what: `A check has found damage: ${first}${more}.` });
    const isClean = isComplete && findings.length === 0;
    const cleared = isClean && clears !== undefined ? { stays: await this.#clear(clears) } : {};
    return { findings, references, artifacts, isComplete, ...cleared };
  }

  #examine(how: Thoroughness): Promise<CheckedPages> {
    const request = { driver: this.#options.driver, path: this.#path, how, damaged: this.#what !== null };
    return how === "quick" ? runTask("check", request) : checkApart(request);
  }

  async #clear(ids: readonly string[]): Promise<string | null> {
    if (this.isReplaced) return this.#what;
    const stays = this.#path === ":memory:" ? null : await this.#stillMissing();
    if (stays !== null) return stays;
    this.#findings.clear(ids, this.#options.actor, this.#options.now());
    this.#refresh();
    if (this.#what === null) await this.recordCleared();
    return null;
  }

  /** Returns why findings stay: pages do not show a damaged log or missing commits, but the log and the witness do. */
  async #stillMissing(): Promise<string | null> {
    const bad = (await scanLog(this.#path))?.bad ?? null;
    const log = findLogDamage(bad, { durability: "power", rebooted: false });
    return log?.what ?? this.#loss()?.what ?? null;
  }

  #loss(): Loss | null {
    const { db, databaseId } = this.#watched as Watched;
    // Read the witness files before the database: what they record was committed before.
    const slots = readSlots(this.#path);
    const seen = mostSeen(slots, databaseId) ?? mostSeen(slots);
    const strict = { durability: "power", rebooted: false, isExact: false, isNew: false, log: "there" } as const;
    return findLoss(seen, { databaseId, ...knownIn(db) }, strict);
  }

  commitsMissing(): number | null {
    if (!this.isWitnessed || this.#watched === null) return null;
    try {
      return this.#loss()?.commitsMissing ?? 0;
    } catch (error) {
      if (isDamage(error)) return null;
      throw explain(error, this.#path);
    }
  }

  async recordCleared(): Promise<void> {
    if (this.#what !== null) return;
    for (const { id, what, clearedBy, clearedAt } of this.#findings.cleared()) {
      const act = { action: "damage.cleared", name: id, before: { what }, after: { by: clearedBy, at: clearedAt } } as const;
      await this.#watched?.record(act);
      this.#findings.drop(id);
    }
  }

  #isSmall(): boolean {
    return this.#watched !== null && fileSize(this.#path) + walSize(this.#path) < SMALL_BYTES;
  }

  async findings(): Promise<Finding[]> {
    return [...this.#findings.all(), ...this.#reported];
  }

  reported(ids: readonly string[]): void {
    this.#findings.remove(ids);
  }

  /** Returns heads of the audit that witnesses recorded, which the database must contain. */
  auditHeads(): AuditHead[] {
    if (this.#path === ":memory:" || this.#watched === null) return [];
    const { db, databaseId } = this.#watched;
    const epoch = explaining(this.#path, () => epochIn(db));
    // A restored database does not continue from heads of an earlier epoch.
    const seen = readSlots(this.#path).filter((slot) => slot.seen.databaseId === databaseId && slot.seen.epoch === epoch);
    return seen.flatMap(({ seen: { audit, missed } }) => [audit ?? [], missed ?? []].flat());
  }

  #refresh(): void {
    if (this.replaced(0) !== null || this.#isSuspected) return;
    const damage = this.#findings.all().find(({ severity }) => severity === "damage");
    if (damage !== undefined) this.#stop(damage.what, damagedDatabase(this.#path, damage.what));
    else if (this.#what !== null) this.#resume();
    else this.#checkLocks();
  }

  #resume(): void {
    if (this.#isReadOnly) {
      this.#error = damageCleared(this.#path);
      this.#what = this.#error.message;
      return;
    }
    this.#what = null;
    const gone = this.#watched?.files?.difference(0) ?? null;
    if (gone !== null) return this.#stop(gone.message, gone);
    this.#error = null;
    // The connection's cache may hold a page that was read wrongly.
    this.#watched?.db.exec("pragma query_only = off; pragma shrink_memory");
    this.#watched?.onDamaged(null);
  }

  #checkLocks(): void {
    const vanished = this.#unlocked === null ? (this.#watched?.vanishedLocks() ?? []) : [];
    if (vanished.length === 0) return;
    this.#unlocked = new HoldfastError(
      "LOCKS_LOST",
      `Process ${process.pid} on ${hostname()} has lost its locks on ${vanished.join(", ")}: code in this process opened and closed these files, which drops them. Other processes can take it for dead and remove its write-ahead log, so it claims no more jobs.`,
      "Restart this process, and change the code that reads the files of a live database; `holdfast backup` copies it.",
    );
    this.found({ severity: "unlocked", what: this.#unlocked.message });
    this.#watched?.onDamaged(this.#unlocked);
  }

  #stop(what: string, error: HoldfastError): void {
    if (this.#what !== null) return;
    this.#what = what;
    this.#error = error;
    // Make the connection read-only, because users write with it, too.
    this.#watched?.db.exec("pragma query_only = on");
    this.#watched?.onDamaged(error);
  }
}

const GONE = "DATABASE_GONE";

/** Checks a copy in a child process. The next check, or backup in that folder, removes what a killed check leaves. */
async function checkApart(request: CheckRequest): Promise<CheckedPages> {
  const staging = explaining(request.path, () => new Staging(`${request.path}-checked`, request.driver));
  try {
    return await runTaskApart("checkCopy", { ...request, copy: staging.database });
  } finally {
    staging.discard();
  }
}
