import { fork } from "node:child_process";
import { once } from "node:events";
import { statSync } from "node:fs";
import { hostname } from "node:os";
import type { AuditHead } from "../../../../core/recovery/audit.ts";
import { logDamage, type Loss, lossOf } from "../../../../core/recovery/loss.ts";
import { HoldfastError, onlyRead, reopenCleared } from "../../../../core/text/errors.ts";
import type { Act } from "../../../audit.ts";
import type { Checked, DamageStore, Finding, NewFinding, Opening, Thoroughness } from "../../../maintenance.ts";
import { ownFile } from "../../../own-file.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { explain, faultOf } from "../../faults.ts";
import { Staging } from "../backup/backups.ts";
import { runTask, toThrown } from "../backup/tasks.ts";
import { epochIn, knownIn } from "../epoch.ts";
import type { DatabaseFiles, OwnLocks } from "../open-files.ts";
import { scanLog, walSize } from "../wal.ts";
import { mostSeen, readSlots } from "../witness.ts";
import type { CopyCheckAnswer, CopyCheckRequest } from "./check-process.ts";
import { checkDatabase, type CheckedPages, type CheckRequest } from "./check.ts";
import { Findings } from "./findings.ts";

/** A file of so many bytes takes some milliseconds to look through. */
const SMALL = 1024 * 1024;

interface DamageOptions {
  driver: DriverName;
  now: () => number;
  /** Who clears a finding, for the audit. */
  actor: string;
}

/** The store that damage is watched for. */
interface Watched {
  db: Connection;
  databaseId: string;
  /** What shows that other processes see its files and its locks. */
  files: DatabaseFiles | null;
  locks: OwnLocks | null;
  /** Writes an audit entry, unless its subject has one. */
  record: (act: Act) => Promise<void>;
}

/**
 * What is wrong with one file, as this process knows it. Once damage was found, by whomever, nothing is written any more:
 * what is there may be all that can be saved, and what is written on top of it may be lost with it.
 */
export class Damage implements DamageStore {
  opening: Opening | null = null;
  /** Whether a witness of the database was there when it was opened, or the database is new. */
  isWitnessed = false;
  readonly #path: string;
  readonly #options: DamageOptions;
  readonly #findings: Findings;
  readonly #listeners = new Set<(error: HoldfastError | null) => void>();
  readonly #seen: Finding[] = [];
  #watched: Watched | null = null;
  /** It was damaged when its connection was opened, which can therefore only read. */
  #isReadOnly = false;
  /** The second read of what a statement took for damage. */
  #confirming: Promise<void> = Promise.resolve();
  #isSuspected = false;
  /** A second read has found no damage once. An error of the same kind after that is believed at once. */
  #wasCleared = false;
  #what: string | null = null;
  /** Commits that were missing when this store was opened. */
  #lost: string | null = null;
  /** What every write is refused with; null: none is. */
  #error: HoldfastError | null = null;
  /** What every claim is refused with while other writes are not. */
  #unlocked: HoldfastError | null = null;

  constructor(path: string, options: DamageOptions) {
    this.#path = path;
    this.#options = options;
    this.#findings = new Findings(path);
    this.#lookAgain();
  }

  get damaged(): string | null {
    return this.#what;
  }

  get incomplete(): string | null {
    return this.#what ?? this.#lost;
  }

  /** From now on the store's connection can be made to refuse writes, too. */
  watch(watched: Watched): void {
    this.#watched = watched;
    this.#isReadOnly = this.#what !== null;
    // One that stands in no report yet: of this opening, or of one that recovered nothing.
    this.#lost = [...this.#findings.all(), ...this.#seen].find(({ severity }) => severity === "loss")?.what ?? null;
  }

  get #db(): Connection | null {
    return this.#watched?.db ?? null;
  }

  /** A refusal is looked up again: another process may have cleared the finding since. */
  refusal(of: "write" | "claim", again = false): HoldfastError | null {
    if (again || this.#error !== null) this.#lookAgain();
    return this.#error ?? (of === "claim" ? this.#unlocked : null);
  }

  /**
   * `DATABASE_GONE` when the path, or the log's, leads to another file than the one that is open here, and all writes of this
   * handle are refused from then on. Other processes may work in the files at the path, so nothing is recorded there.
   */
  replaced(maxAgeMs: number): HoldfastError | null {
    // A closed connection may have removed its own log; the next statement reports that it is closed.
    if (this.#db?.isOpen === false) return null;
    const error = this.#error ?? this.#watched?.files?.difference(maxAgeMs) ?? null;
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

  /** By a handle that only reads: it is reported, and left to be found by those that act on it. */
  saw(finding: NewFinding): void {
    this.#seen.push({ id: "", at: this.#options.now(), commitsMissing: null, ...finding });
  }

  /**
   * An error that this store has met: is it the file's? One bad read is no proof. This process stops writing at once, and the
   * finding is kept when a second read, in another process, finds damage too.
   */
  met(error: unknown): void {
    if (!isDamage(error) || this.#what !== null) return;
    const finding = { severity: "damage", what: `SQLite has met damage: ${(error as Error).message}.` } as const;
    if (this.#path === ":memory:" || this.#wasCleared) return this.found(finding);
    this.#suspect(finding);
  }

  #suspect(finding: NewFinding): void {
    this.#isSuspected = true;
    this.#stop(finding.what, onlyRead(this.#path, finding.what));
    // A finding that cannot be written down leaves this process stopped all the same.
    this.#confirming = this.#confirm(finding).catch(() => {});
  }

  async #confirm(finding: NewFinding): Promise<void> {
    // A check that fails says nothing, so the error is believed.
    const checked = await this.#examine("whole").catch(() => null);
    if (checked === null || !checked.isComplete || checked.findings.length > 0) this.found(finding);
    else this.#wasCleared = true;
    this.#isSuspected = false;
    this.#lookAgain();
  }

  /** Resolves when damage that a statement has met is confirmed, or found not to be there. */
  confirmed(): Promise<void> {
    return this.#confirming;
  }

  async check(how: Thoroughness): Promise<Checked> {
    const isMemory = this.#path === ":memory:";
    let checked =
      isMemory || (how === "quick" && this.#isSmall())
        ? checkDatabase(this.#db as Connection, this.#options.driver, how)
        : await this.#examine(how);
    if (checked.structural && !isMemory) checked = await this.#examine(how);
    const { structural, findings, references, artifacts, isComplete } = checked;
    const [first = "", ...others] = findings;
    const more = others.length === 0 ? "" : ` (and ${others.length} findings more)`;
    if (structural) this.found({ severity: "damage", what: `A check has found damage: ${first}${more}.` });
    return { findings, references, artifacts, isComplete };
  }

  /** On a connection of its own. */
  #examine(how: Thoroughness): Promise<CheckedPages> {
    const request = { driver: this.#options.driver, path: this.#path, how, damaged: this.#what !== null };
    return how === "quick" ? runTask("check", request) : checkCopy(request);
  }

  async clear(ids: readonly string[]): Promise<string | null> {
    if (this.isReplaced) return this.#what;
    const stays = this.#path === ":memory:" ? null : await this.#stillMissing();
    if (stays !== null) return stays;
    this.#findings.clear(ids, this.#options.actor, this.#options.now());
    this.#lookAgain();
    if (this.#what === null) await this.recordCleared();
    return null;
  }

  /** A database whose log is damaged is whole up to there, as far as its pages tell; its log and its witness tell more. */
  async #stillMissing(): Promise<string | null> {
    const bad = (await scanLog(this.#path))?.bad ?? null;
    const log = logDamage(bad, { durability: "power", rebooted: false });
    return log?.what ?? this.#loss()?.what ?? null;
  }

  /** What the witness has seen and is not there now. */
  #loss(): Loss | null {
    const { db, databaseId } = this.#watched as Watched;
    // First these, then the database: what stands in them was committed before.
    const slots = readSlots(this.#path);
    const seen = mostSeen(slots, databaseId) ?? mostSeen(slots);
    const strict = { durability: "power", rebooted: false, isExact: false, isNew: false, log: "there" } as const;
    return lossOf(seen, { databaseId, ...knownIn(db) }, strict);
  }

  /** Acknowledged commits that are not there, by the witness; null: there is no witness. */
  commitsMissing(): number | null {
    if (!this.isWitnessed || this.#watched === null) return null;
    try {
      return this.#loss()?.commitsMissing ?? 0;
    } catch (error) {
      if (isDamage(error)) return null;
      throw explain(error, this.#path);
    }
  }

  /** Writes the audit entries of cleared findings that have none yet. */
  async recordCleared(): Promise<void> {
    if (this.#what !== null) return;
    for (const { id, what, clearedBy, clearedAt } of this.#findings.cleared()) {
      const act = { action: "damage.cleared", name: id, before: { what }, after: { by: clearedBy, at: clearedAt } } as const;
      await this.#watched?.record(act);
      this.#findings.recorded(id);
    }
  }

  /** It is looked through sooner than a thread is started. */
  #isSmall(): boolean {
    return this.#db !== null && (statSync(this.#path, { throwIfNoEntry: false })?.size ?? 0) + walSize(this.#path) < SMALL;
  }

  async findings(): Promise<Finding[]> {
    return [...this.#findings.all(), ...this.#seen];
  }

  /** Forgets findings that a recovery report has recorded. */
  reported(ids: readonly string[]): void {
    this.#findings.remove(ids);
  }

  /** Heads of the audit that witnesses wrote down: what the database must hold. */
  auditHeads(): AuditHead[] {
    if (this.#path === ":memory:" || this.#db === null) return [];
    const epoch = this.#epochIn(this.#db);
    // What was written down before a restore is not what the database continues from.
    const seen = readSlots(this.#path).filter(
      (slot) => slot.seen.databaseId === this.#watched?.databaseId && slot.seen.epoch === epoch,
    );
    return seen.flatMap(({ seen: { audit, missed } }) => [audit ?? [], missed ?? []].flat());
  }

  #epochIn(db: Connection): number {
    try {
      return epochIn(db);
    } catch (error) {
      throw explain(error, this.#path);
    }
  }

  #lookAgain(): void {
    if (this.replaced(0) !== null || this.#isSuspected) return;
    const damage = this.#findings.all().find(({ severity }) => severity === "damage");
    if (damage !== undefined) this.#stop(damage.what, onlyRead(this.#path, damage.what));
    else if (this.#what !== null) this.#resume();
    else this.#checkLocks();
  }

  /** The finding that has stopped this store is gone. */
  #resume(): void {
    if (this.#isReadOnly) {
      this.#error = reopenCleared(this.#path);
      this.#what = this.#error.message;
      return;
    }
    this.#what = null;
    const gone = this.#watched?.files?.difference(0) ?? null;
    if (gone !== null) return this.#stop(gone.message, gone);
    this.#error = null;
    // A page that was read wrongly may still be in the connection's cache.
    this.#db?.exec("pragma query_only = off; pragma shrink_memory");
    for (const call of this.#listeners) call(null);
  }

  #checkLocks(): void {
    const vanished = this.#unlocked === null ? (this.#watched?.locks?.vanished() ?? []) : [];
    if (vanished.length === 0) return;
    this.#unlocked = locksLost(vanished);
    this.found({ severity: "unlocked", what: this.#unlocked.message });
    for (const call of this.#listeners) call(this.#unlocked);
  }

  onDamaged(call: (error: HoldfastError | null) => void): () => void {
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

/**
 * Everything about a copy of it, in a child process: no job waits, and the log can start anew while the copy is looked through.
 * What a killed one leaves is cleared away by the next, or by the next backup in that folder.
 */
async function checkCopy(request: CheckRequest): Promise<CheckedPages> {
  const staging = stage(request);
  try {
    return await inChild({ ...request, copy: staging.database });
  } finally {
    staging.discard();
  }
}

function stage({ path, driver }: CheckRequest): Staging {
  try {
    return new Staging(`${path}-checked`, driver);
  } catch (error) {
    throw explain(error, path);
  }
}

async function inChild(request: CopyCheckRequest): Promise<CheckedPages> {
  const file = ownFile({
    here: import.meta.url,
    name: "./check-process",
    runs: "the process that checks a copy of the database",
  });
  const child = fork(file, [], { execArgv: [], stdio: ["ignore", "ignore", "inherit", "ipc"] });
  // What it has said is read before its channel ends, and it may be over before that.
  const ended = Promise.all([once(child, "exit"), once(child, "disconnect")]).then(([[code, signal]]) => {
    throw new Error(`the process that checks a copy of the database ended (${signal ?? `code ${code}`}) without an answer`);
  });
  ended.catch(() => {});
  child.send(request);
  const [answer] = (await Promise.race([once(child, "message"), ended])) as [CopyCheckAnswer];
  // Before its place is removed: it has closed the copy by then.
  await ended.catch(() => {});
  if ("failure" in answer) throw toThrown(answer.failure);
  return answer.checked;
}
