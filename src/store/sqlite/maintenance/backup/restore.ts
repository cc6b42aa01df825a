import { randomUUID } from "node:crypto";
import { chmodSync, existsSync, statSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";
import type { EventType } from "../../../../core/jobs/event.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { Fence } from "../../../../core/text/ids.ts";
import type { BackupFacts, Manifest, OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { RESTORED } from "../../../processes.ts";
import { Audit } from "../../../sql/audit.ts";
import { runSync } from "../../../sql/script.ts";
import { Events } from "../../jobs/events.ts";
import { DIALECT, txOn } from "../../scripts.ts";
import { isCovered, stateOf, unwrittenChanges } from "../changes/journal.ts";
import { type Replay, replay, type Replayed, type TailChange, withoutRules } from "../changes/replay.ts";
import { changesFolder, lastEpochIn } from "../changes/segments.ts";
import { connect, type Connection, type DriverName, inTransaction, scalar } from "../../driver.ts";
import { explaining, faultOf, fileSize } from "../../faults.ts";
import { migrate, versionOf } from "../../migrate.ts";
import { canonicalPath, refuseNetwork } from "../../open.ts";
import { knownOutside, mostSeen, readSlots } from "../witness.ts";
import { highestOf, type Known, knownIn, raiseEpoch } from "../epoch.ts";
import { knownOf, type VerifiedBackup, verifyBackup } from "./backups.ts";
import { copyFileSynced, survey, type Survey, syncFile, syncFolder } from "./copy.ts";
import { nameForKept, openProcesses, refuseInUse, replaceDatabase, stagedPath } from "./replace.ts";
import { runTask } from "./tasks.ts";

export interface RestoreRequest {
  path: string;
  backup: string;
  driver: DriverName;
  by: string;
  now: number;
  /** Instant up to which the journal is replayed after the backup. */
  at?: number;
  force: boolean;
  onProgress?: OnProgress;
}

export interface Restored extends Prepared {
  path: string;
  backup: string;
  facts: BackupFacts;
  /** Counts of the restored database, which differ from the backup's after a replay. */
  counts: BackupFacts["counts"];
  hashes: string[];
  manifest: Manifest | null;
  kept: string | null;
}

/** Restores a backup. It checks, copies and prepares it before it renames a file; an error of `before` cancels the restore. */
export async function restore(request: RestoreRequest, before: (found: Restored) => Promise<void>): Promise<Restored> {
  const path = canonicalPath(request.path);
  const { driver } = request;
  refuseNetwork(dirname(path));
  refuseInUse(path, openProcesses(path, driver));
  if (resolve(request.backup) === path)
    throw new HoldfastError("USAGE", `${path} cannot be restored from itself.`, "Give the path of a backup.");
  const verified = await verifyBackup(request.backup, driver, request.onProgress);
  return await replaceDatabase(path, driver, "restore", async () => {
    const restored = await stageRestored({ ...request, path }, verified);
    await before(restored);
    return restored;
  });
}

async function stageRestored(request: RestoreRequest, verified: VerifiedBackup): Promise<Restored> {
  const { path, driver, now, by, at, onProgress } = request;
  const { manifest, facts, path: backup, sha256 } = verified;
  const there = readIdentity(path, driver);
  if (!request.force && there.databaseId !== null && there.databaseId !== facts.databaseId)
    throw new HoldfastError(
      "OTHER_DATABASE",
      `${backup} is a backup of another database than the one at ${path}. Nothing was changed.`,
      "Check both paths. To replace the database anyway, add --force; the old one is kept under another name.",
    );
  const isThere = ["", "-wal", "-journal"].some((end) => existsSync(path + end));
  const kept = isThere ? nameForKept(path, now, "replaced") : null;
  const lived = highestOf([there.known, knownOutside(path)]);
  const known = highestOf([lived, knownOf(facts)]);
  const after = { takenAt: manifest?.takenAt ?? null, replaced: kept === null ? null : basename(kept) };
  const audit = { action: "database.restored", name: basename(backup), after } as const;
  const replay = at === undefined ? {} : { replay: replayOf(path, driver, facts, at, manifest, lived.epoch) };
  const preparation = { driver, path: stagedPath(path), now, known, by, audit, ...replay };
  const task = { ...preparation, from: backup, sha256, mode: modeOf(path, backup) };
  const { survey, ...prepared } = await runTask("restore", task, onProgress);
  const findings = survey?.facts.findings ?? [];
  if (findings.length > 0)
    throw new HoldfastError(
      "JOURNAL_GAP",
      `The journal and the backup do not make a whole database: ${findings.join("; ")}. Nothing was changed.`,
      "Give another instant or an earlier backup, or restore the backup alone, without --at. Please report this.",
    );
  const { counts } = survey?.facts ?? facts;
  const { hashes } = survey ?? verified;
  return { ...prepared, path, backup, facts, counts, hashes, manifest, kept };
}

function replayOf(
  path: string,
  driver: DriverName,
  facts: BackupFacts,
  at: number,
  manifest: Manifest | null,
  lived: number,
): Replay {
  const { databaseId, epoch, changes } = facts;
  if (changes === null)
    throw new HoldfastError(
      "JOURNAL_NEEDED",
      "The journal was off when that backup was made, so it cannot be continued to a later instant.",
      `Restore it without --at. To use --at in future, call open(${JSON.stringify(basename(path))}, { journal: true }) and make a backup after that.`,
    );
  if (manifest !== null && manifest.copiedAt > at)
    throw new HoldfastError(
      "JOURNAL_GAP",
      `The backup has all changes until ${new Date(manifest.copiedAt).toISOString()}, which is after the given instant. Nothing was changed.`,
      "Give an earlier backup, or a later instant.",
    );
  const folder = changesFolder(path);
  const over = Math.max(lived, lastEpochIn(folder, databaseId)) > epoch;
  return { folder, databaseId, epoch, after: changes, at, over, ...leftIn(path, driver, databaseId, epoch) };
}

function leftIn(path: string, driver: DriverName, databaseId: string, epoch: number): Pick<Replay, "tail" | "newest"> {
  const nothing = { tail: [], newest: null };
  return reading<Pick<Replay, "tail" | "newest">>(path, driver, nothing, (db) => {
    const id = scalar<string>(db, "select database_id from holdfast_database where id = 1");
    if (id !== databaseId || knownIn(db).epoch !== epoch || stateOf(db) === null) return nothing;
    const newest = scalar<number | undefined>(db, "select seq from sqlite_sequence where name = 'holdfast_changes'") ?? null;
    return { tail: [...unwrittenChanges(db), endOf(newest ?? 0, isCovered(db))], newest };
  });
}

/** Makes the last change. "drained": the journal has all changes. "unseen": a table was changed, and no process has seen it. */
function endOf(seq: number, covered: boolean): TailChange {
  if (!covered) return { seq, kind: "unseen", at: null };
  return { seq, kind: "drained", name: null, key: null, row: null, at: Date.now() };
}

/** Returns the id of the database at a path, or the last one that was recorded beside it. Null: it is unknown. */
export function databaseAt(path: string, driver: DriverName): string | null {
  const at = canonicalPath(path);
  return readIdentity(at, driver).databaseId ?? mostSeen(readSlots(at))?.databaseId ?? null;
}

function readIdentity(path: string, driver: DriverName): { databaseId: string | null; known: Known } {
  const nothing = { databaseId: null, known: { epoch: 0, commits: 0, key: 0 } };
  return reading<{ databaseId: string | null; known: Known }>(path, driver, nothing, (db) => {
    const databaseId = scalar<string>(db, "select database_id from holdfast_database where id = 1");
    return { databaseId, known: knownIn(db) };
  });
}

function reading<T>(path: string, driver: DriverName, otherwise: T, read: (db: Connection) => T): T {
  if (fileSize(path) === 0) return otherwise;
  try {
    using db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    return versionOf(db) === 0 ? otherwise : read(db);
  } catch (error) {
    if (["CORRUPT", "NOTADB", "IOERR", "CANTOPEN", "READONLY", "OTHER"].includes(faultOf(error) ?? "")) return otherwise;
    throw error;
  }
}

function modeOf(path: string, backup: string): number {
  return (statSync(path, { throwIfNoEntry: false }) ?? statSync(backup)).mode & 0o777;
}

export interface Preparation {
  driver: DriverName;
  path: string;
  now: number;
  known: Known;
  by: string;
  replay?: Replay;
  audit: { action: EventType; name: string; after: object };
}

export interface Prepared {
  epoch: number;
  running: number;
  replayed: Replayed | null;
}

export function restoreTo(
  { from, sha256, mode, ...preparation }: Preparation & { from: string; sha256: string; mode: number },
  onProgress: OnProgress,
): Prepared & { survey: Survey | null } {
  const { driver, path } = preparation;
  const total = statSync(from).size;
  return explaining(path, () => {
    const copied = copyFileSynced(from, path, (done) => onProgress({ step: "copying", done, total }));
    if (copied !== sha256) throw new Error(`${from} has changed while it was read`);
    chmodSync(path, mode);
    passStep("restore:copied");
    const prepared = prepare(preparation, onProgress);
    // A replay makes another database of the backup, so the result is checked like a backup.
    const surveyed = prepared.replayed === null ? null : survey(driver, path);
    syncFile(path);
    syncFolder(dirname(path));
    passStep("restore:prepared");
    return { ...prepared, survey: surveyed };
  });
}

/** Numbers to skip in sequences: more than can have been given out after the backup was made. */
const SKIPPED_EVENTS = 1_000_000_000;
const SKIPPED_PROCESSES = 1_000_000;
const SKIPPED_TRANSITIONS = 1_000_000;

/** Raises fences, tokens and numbers above all that were given out, so that no write of an earlier process matches. */
export function prepare(preparation: Preparation, onProgress: OnProgress = () => {}): Prepared {
  const { driver, path, now, by, replay: asked } = preparation;
  using db = connect(driver, path, { busyTimeout: 0, mustExist: true });
  db.exec("pragma synchronous = full");
  migrate(db, {
    path,
    now,
    actor: by,
    whenNew: () => {
      throw new Error("a backup without a schema");
    },
  });
  if (asked !== undefined) withoutRules(db);
  const prepared = inTransaction(db, () => {
    const replayed = asked && replay(db, asked, (done, total) => onProgress({ step: "replaying", done, total }));
    return { ...startAnew(db, preparation, replayed), replayed: replayed ?? null };
  });
  // Switch to WAL here: if the process that opens the database did it and died, it would leave a rollback journal.
  db.exec("pragma journal_mode = wal");
  return prepared;
}

function startAnew(
  db: Connection,
  { now, known, by, audit }: Preparation,
  replayed: Replayed | undefined,
): Pick<Prepared, "epoch" | "running"> {
  const epoch = raiseEpoch(db, known);
  const fence = "(select commits from holdfast_counter where id = 1)";
  const running = db
    .prepare(`update holdfast_jobs set fence = ${fence}, expires_at = min(expires_at, ?) where state = 'running'`)
    .run(now);
  db.exec(
    `delete from holdfast_processes
     where id not in (select holder from holdfast_jobs where state = 'running' and holder is not null)
       and id not in (select holder from holdfast_leads)`,
  );
  db.prepare("update holdfast_processes set boot = ?, works = null, stop = null").run(RESTORED);
  db.exec("delete from holdfast_locks");
  db.exec(`update holdfast_sinks set holder = null, expires_at = null, token = ${fence}`);
  for (const [pipeline] of db.prepare("select pipeline from holdfast_leads").rows()) {
    db.prepare("update holdfast_leads set token = ? where pipeline = ?").run(randomUUID(), pipeline as string);
  }
  // Events identify a build's transition by its number, which must not match one from after the backup.
  db.exec(`update holdfast_builds set seq = seq + ${SKIPPED_TRANSITIONS} where state not in ('SUCCESS', 'FAILED', 'ABANDONED')`);
  advanceSequence(db, "holdfast_events", SKIPPED_EVENTS);
  advanceSequence(db, "holdfast_processes", SKIPPED_PROCESSES);
  if (stateOf(db) !== null) db.exec("delete from holdfast_changes");
  const after = { epoch, ...audit.after, ...(replayed && { reached: replayed.reached }) };
  const commit = scalar<Fence>(db, "select commits from holdfast_counter where id = 1");
  runSync(new Audit(DIALECT, { actor: by, events: new Events(db) }).record(txOn(db, now, commit), { ...audit, after }));
  return { epoch, running };
}

function advanceSequence(db: Connection, table: string, by: number): void {
  const updated = db.prepare("update sqlite_sequence set seq = seq + ? where name = ?").run(by, table);
  if (updated === 0) db.prepare("insert into sqlite_sequence (name, seq) values (?, ?)").run(table, by);
}
