import { chmodSync, existsSync, mkdirSync, renameSync, rmSync, statSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { Alive } from "../../../alive.ts";
import type { BackupFacts, Manifest, OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { hasPlan, type Living, living, type Plan, reportPath, restoreFolder, Right, stagedPath } from "./right.ts";
import { runTask } from "./tasks.ts";
import { type Prepared, verifyBackup } from "./prepare.ts";
import { isCovered, stateOf } from "../changes/journal.ts";
import type { Replay, TailChange } from "../changes/replay.ts";
import { type Change, changesFolder, lastEpochIn } from "../changes/segments.ts";
import { clearFindings } from "../damage/findings.ts";
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { explain, faultOf, modeLike } from "../../faults.ts";
import { versionOf } from "../../migrate.ts";
import { canonicalPath, refuseNetwork } from "../../open.ts";
import { knownOutside, mostSeen, readSlots } from "../witness.ts";
import { type Known, knownIn } from "../epoch.ts";
import { syncFolder } from "./copy.ts";

export interface RestoreRequest {
  /** The database whose place it takes; there need be none. */
  path: string;
  backup: string;
  driver: DriverName;
  /** For the audit. */
  by: string;
  now: number;
  /** Go on from the backup, by the journal, to this instant. */
  at?: number;
  /** Also where another database is. */
  force: boolean;
  onProgress?: OnProgress;
}

export interface Restored extends Prepared {
  path: string;
  backup: string;
  /** Of the backup. */
  facts: BackupFacts;
  /** What is in the database that it has become. */
  counts: BackupFacts["counts"];
  /** Every artifact that it references. */
  hashes: string[];
  /** Null: there was none. */
  manifest: Manifest | null;
  /** What the database that was there is called now; null: there was none. */
  kept: string | null;
}

/** So long those are waited for who have seen the plan, and are about to step back. */
const STEPPING_BACK = 2_000;

/**
 * A backup takes the place of a database that no process has open. Before anything is changed, the backup is checked, copied and
 * made ready; then the files change their names. Killed before that is decided, everything is as before; after it, the process that
 * opens the database next brings it to its end.
 *
 * `before` is called when all is ready, and what it throws ends it.
 */
export async function restore(request: RestoreRequest, before: (found: Restored) => Promise<void>): Promise<Restored> {
  const path = canonicalPath(request.path);
  refuseNetwork(dirname(path));
  const { driver, onProgress } = request;
  refuseLiving(path, living(path, driver));
  if (resolve(request.backup) === path) throw itself(path);
  const { manifest, facts, path: backup, sha256, ...verified } = await verifyBackup(request.backup, driver, onProgress);
  using right = Right.take(path, driver);
  if (right === null) throw underWay(path);
  settleWith(right, path);
  const there = look(path, driver);
  if (!request.force && there.databaseId !== null && there.databaseId !== facts.databaseId) throw other(path, backup);
  const isThere = ["", "-wal", "-journal"].some((end) => existsSync(path + end));
  const kept = isThere ? keptName(path, request.now, "replaced") : null;
  const seen = knownOutside(path);
  const epoch = Math.max(there.known.epoch, seen.epoch, facts.epoch, right.epoch) + 1;
  // Of a restore that came to nothing there is only a number.
  const lived = Math.max(there.known.epoch, seen.epoch);
  right.remember(epoch);
  try {
    mkdirSync(restoreFolder(path), { mode: 0o700 });
    const to = stagedPath(path);
    const after = { takenAt: manifest?.takenAt ?? null, replaced: kept === null ? null : basename(kept) };
    const audit = { action: "database.restored", name: basename(backup), after } as const;
    const known: Known = {
      epoch: epoch - 1,
      commits: Math.max(there.known.commits, seen.commits),
      key: Math.max(there.known.key, seen.key),
    };
    const task = {
      ...(request.at === undefined ? {} : { replay: replayOf(path, driver, facts, request.at, manifest, lived) }),
      driver,
      from: backup,
      sha256,
      mode: modeOf(path, backup),
      path: to,
      known,
      now: request.now,
      by: request.by,
      audit,
    };
    const { survey, ...prepared } = await runTask("restore", task, onProgress);
    if (survey !== null && survey.facts.findings.length > 0) throw unfit(survey.facts.findings);
    const { counts } = survey?.facts ?? facts;
    const { hashes } = survey ?? verified;
    const restored: Restored = { ...prepared, path, backup, facts, counts, hashes, manifest, kept };
    await before(restored);
    const plan = { kept: kept ?? path, act: "restore" } as const;
    await decide(right, path, driver, plan);
    switchOver(path, plan);
    right.clear();
    passStep("restore:kept");
    return restored;
  } catch (error) {
    // What was decided is not taken back: it is as good as done.
    if (right.plan()?.phase !== "switching") right.clear();
    throw explain(error, path);
  }
}

/**
 * A process that opens the database shows that it lives, then looks for a plan; here it is the other way round. So of the two at
 * least one sees the other.
 */
export async function decide(right: Right, path: string, driver: DriverName, plan: Pick<Plan, "kept" | "act">): Promise<void> {
  right.write({ ...plan, phase: "ready" });
  passStep(`${plan.act}:planned`);
  const until = performance.now() + STEPPING_BACK;
  for (let there = living(path, driver); there.length > 0; there = living(path, driver)) {
    if (performance.now() > until) refuseLiving(path, there);
    await new Promise((resume) => setTimeout(resume, 20));
  }
  right.write({ ...plan, phase: "switching" });
  passStep(`${plan.act}:decided`);
}

/** The journal from the backup on: its files, and what is still in the database, if that can be read. */
function replayOf(
  path: string,
  driver: DriverName,
  facts: BackupFacts,
  at: number,
  manifest: Manifest | null,
  lived: number,
): Replay {
  const { databaseId, epoch, changes } = facts;
  if (changes === null) throw withoutJournal(path);
  if (manifest !== null && manifest.copiedAt > at) throw tooLate(manifest.copiedAt);
  const folder = changesFolder(path);
  const over = Math.max(lived, lastEpochIn(folder, databaseId)) > epoch;
  return { folder, databaseId, epoch, after: changes, at, over, ...leftIn(path, driver, databaseId, epoch) };
}

/** What the database that is there can still say of its journal. */
function leftIn(path: string, driver: DriverName, databaseId: string, epoch: number): Pick<Replay, "tail" | "newest"> {
  const nothing = { tail: [], newest: null };
  return reading<Pick<Replay, "tail" | "newest">>(path, driver, nothing, (db) => {
    const [id] = db.prepare("select database_id from holdfast_database where id = 1").row() as [string];
    if (id !== databaseId || knownIn(db).epoch !== epoch || stateOf(db) === null) return nothing;
    const rows = db.prepare("select seq, kind, name, key, row, at from holdfast_changes order by seq").all<Change>();
    const plain = rows.map(({ seq, kind, name, key, row, at }) => ({ seq, kind, name, key, row, at }));
    const row = db.prepare("select seq from sqlite_sequence where name = 'holdfast_changes'").row() as [number] | undefined;
    const newest = row?.[0] ?? null;
    return { tail: [...plain, endOf(newest ?? 0, isCovered(db))], newest };
  });
}

/** All of it is committed, and nothing came after it; or no process has looked yet since a table was changed. */
function endOf(seq: number, covered: boolean): TailChange {
  if (!covered) return { seq, kind: "unseen", at: null };
  return { seq, kind: "drained", name: null, key: null, row: null, at: Date.now() };
}

/** Which database is there, or was when it could last be read; null: it is not known. */
export function databaseAt(path: string, driver: DriverName): string | null {
  const at = canonicalPath(path);
  return look(at, driver).databaseId ?? mostSeen(readSlots(at))?.databaseId ?? null;
}

interface There {
  databaseId: string | null;
  known: Known;
}

/** What is known of the database that is there; it may be damaged, or none. */
function look(path: string, driver: DriverName): There {
  const nothing: There = { databaseId: null, known: { epoch: 0, commits: 0, key: 0 } };
  return reading(path, driver, nothing, (db) => {
    const [databaseId] = db.prepare("select database_id from holdfast_database where id = 1").row() as [string];
    const hasEpoch = db.prepare("select 1 from pragma_table_info('holdfast_database') where name = 'epoch'").row() !== undefined;
    return { databaseId, known: hasEpoch ? knownIn(db) : nothing.known };
  });
}

function reading<T>(path: string, driver: DriverName, otherwise: T, read: (db: Connection) => T): T {
  if (!existsSync(path) || statSync(path).size === 0) return otherwise;
  try {
    const db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    try {
      return versionOf(db) === 0 ? otherwise : read(db);
    } finally {
      db.close();
    }
  } catch (error) {
    if (["CORRUPT", "NOTADB", "IOERR", "CANTOPEN", "READONLY", "OTHER"].includes(faultOf(error) ?? "")) return otherwise;
    throw error;
  }
}

export function keptName(path: string, now: number, as: "replaced" | "damaged"): string {
  const name = `${path}.${as}-${new Date(now).toISOString().replaceAll(":", "-")}`;
  for (let i = 1; ; i++) {
    const free = i === 1 ? name : `${name}-${i}`;
    if (["", "-wal", "-journal"].every((end) => !existsSync(free + end))) return free;
  }
}

function modeOf(path: string, backup: string): number {
  return (statSync(path, { throwIfNoEntry: false }) ?? statSync(backup)).mode & 0o777;
}

export function refuseLiving(path: string, there: readonly Living[]): void {
  if (there.length === 0) return;
  const names = there.map(({ pid, program }) =>
    pid === null ? "a process" : `pid ${pid}${program === null ? "" : ` (${program})`}`,
  );
  throw new HoldfastError(
    "IN_USE",
    `${path} is open: ${names.join(", ")}. Nothing was changed.`,
    "Run `holdfast stop`, and close every other program that has the database open.",
  );
}

function withoutJournal(path: string): HoldfastError {
  return new HoldfastError(
    "JOURNAL_NEEDED",
    "The journal was off when that backup was made, so it cannot be continued to a later instant.",
    `Restore it without --at. To use --at in future, call open(${JSON.stringify(basename(path))}, { journal: true }) and make a backup after that.`,
  );
}

function tooLate(copiedAt: number): HoldfastError {
  return new HoldfastError(
    "JOURNAL_GAP",
    `The backup has all changes until ${new Date(copiedAt).toISOString()}, which is after the given instant. Nothing was changed.`,
    "Give an earlier backup, or a later instant.",
  );
}

function unfit(findings: readonly string[]): HoldfastError {
  return new HoldfastError(
    "JOURNAL_GAP",
    `The journal and the backup do not make a whole database: ${findings.join("; ")}. Nothing was changed.`,
    "Give another instant or an earlier backup, or restore the backup alone, without --at. Please report this.",
  );
}

export function underWay(path: string): HoldfastError {
  return new HoldfastError(
    "IN_USE",
    `${path} is being restored or salvaged by another process.`,
    "Try again when that process has ended.",
  );
}

function other(path: string, backup: string): HoldfastError {
  return new HoldfastError(
    "OTHER_DATABASE",
    `${backup} is a backup of another database than the one at ${path}. Nothing was changed.`,
    "Check both paths. To replace the database anyway, add --force; the old one is kept under another name.",
  );
}

function itself(path: string): HoldfastError {
  return new HoldfastError("USAGE", `${path} cannot be restored from itself.`, "Give the path of a backup.");
}

/**
 * The staged database takes the place of the one that is there, which is kept with its log. Each step can be done again:
 * the process that finds the plan of a dead one continues it. The old log is gone from its name before the new database has
 * its own: one beside the wrong database would be written into it. A database that was just being switched to a write-ahead
 * log has the other kind, too.
 */
export function switchOver(path: string, { kept, act }: Pick<Plan, "kept" | "act">): void {
  const folder = dirname(path);
  if (existsSync(stagedPath(path))) {
    // An empty log is no part of a database.
    if (sizeOf(`${path}-wal`) === 0) rmSync(`${path}-wal`, { force: true });
    if (existsSync(path)) chmodSync(stagedPath(path), modeLike(path));
    for (const end of ["-wal", "-journal", ""]) if (existsSync(path + end)) renameSync(path + end, kept + end);
    rmSync(`${path}-shm`, { force: true });
    syncFolder(folder);
    passStep(`${act}:aside`);
    renameSync(stagedPath(path), path);
    syncFolder(folder);
  }
  if (existsSync(reportPath(path))) renameSync(reportPath(path), `${kept}.report.json`);
  // What was found wrong was wrong with the other one.
  clearFindings(path);
  passStep(`${act}:installed`);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

/** What a dead process has left of a restore: brought to its end, or forgotten. One that lives is left alone. */
export function settleRestore(path: string, driver: DriverName): void {
  if (!existsSync(restoreFolder(path))) return;
  using right = Right.take(path, driver);
  if (right !== null) settleWith(right, path);
}

export function settleWith(right: Right, path: string): void {
  const plan = right.plan();
  if (plan?.phase === "switching") switchOver(path, plan);
  right.clear();
}

/** Of a living process that is about to change the files. */
export function isSwitching(path: string): boolean {
  return hasPlan(path);
}

/** How long a restore is waited for, in milliseconds: its files change their names in a moment. */
const PATIENCE = 5_000;

/**
 * Before a process opens a database it shows that it lives, and then looks whether the files are about to be replaced; who
 * replaces them looks the other way round. So no process is left with a file that has lost its name.
 */
export async function enter(path: string, driver: DriverName, alive: Alive): Promise<string> {
  for (;;) {
    const token = alive.hold();
    if (!isSwitching(path)) return token;
    alive.close();
    await untilRestored(path, driver);
  }
}

/** What a dead process has left of a restore is brought to its end first; one that lives is waited for. */
export async function untilRestored(path: string, driver: DriverName): Promise<void> {
  for (const since = performance.now(); ;) {
    settleRestore(path, driver);
    if (!isSwitching(path)) return;
    if (performance.now() - since > PATIENCE) throw restoring(path);
    await new Promise((resume) => setTimeout(resume, 20));
  }
}

function restoring(path: string): HoldfastError {
  return new HoldfastError("IN_USE", `${path} is being restored.`, "Try again when the restore has ended.");
}
