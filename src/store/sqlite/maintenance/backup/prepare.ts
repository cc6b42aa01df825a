import type { EventType } from "../../../../core/jobs/event.ts";
import { randomUUID } from "node:crypto";
import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { Fence } from "../../../../core/text/ids.ts";
import { type BackupFacts, type Manifest, manifestPath, type OnProgress, parseManifest } from "../../../backups.ts";
import { RESTORED } from "../../../processes.ts";
import { Audit } from "../../../sql/audit.ts";
import { runSync } from "../../../sql/script.ts";
import { DIALECT, txOn } from "../../scripts.ts";
import { connect, type Connection, type DriverName, inTransaction, scalar } from "../../driver.ts";
import { fileSize } from "../../faults.ts";
import { Events } from "../../jobs/events.ts";
import { migrate, schemaVersion } from "../../migrate.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, type Replayed, withoutRules } from "../changes/replay.ts";
import { type Known, raiseEpoch } from "../epoch.ts";
import { clearStaging } from "./backups.ts";
import { runTask } from "./tasks.ts";

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

/** Added to sequences: more than can have been given out after the backup was made. */
const SKIPPED_EVENTS = 1_000_000_000;
const SKIPPED_PROCESSES = 1_000_000;
const SKIPPED_TRANSITIONS = 1_000_000;

/**
 * Makes a copy ready for use, in one transaction. All later fences, tokens and numbers are higher than any that were given out,
 * so that no write of a process from before matches. The next process that opens the database reclaims the running jobs.
 */
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
  // Switched here and not by the process that opens it: if that process died, it would leave a log of the other kind.
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

export interface VerifiedBackup {
  path: string;
  size: number;
  sha256: string;
  facts: BackupFacts;
  hashes: string[];
  /** Null: the backup has no manifest to compare it with. */
  manifest: Manifest | null;
}

export async function verifyBackup(backup: string, driver: DriverName, onProgress?: OnProgress): Promise<VerifiedBackup> {
  const path = resolve(backup);
  const manifest = readManifest(path, driver);
  refuseLive(path);
  const { size, sha256, survey } = await runTask("inspect", { driver, path, expected: manifest?.sha256 }, onProgress).catch(
    (error: unknown) => {
      const code = error instanceof HoldfastError ? error.code : null;
      if (code === "NOT_A_DATABASE") throw notHoldfast(path);
      throw code === "DAMAGED" ? damaged(path, "SQLite cannot read it") : error;
    },
  );
  if (manifest !== null && (manifest.size !== size || manifest.sha256 !== sha256)) {
    const difference = manifest.size === size ? "its bytes are others" : `it has ${size} bytes instead of ${manifest.size}`;
    // A process that opens a database registers itself in it, and leaves its lock's folder.
    if (!existsSync(`${path}-alive`)) throw damaged(path, `it differs from its manifest: ${difference}`);
    throw new HoldfastError(
      "BACKUP_CHANGED",
      `The backup ${path} differs from its manifest: ${difference}. A program opened it as a database after it was made.`,
      `Use another copy. To restore this one as it is, move its manifest away: ${basename(manifestPath(path))} away.`,
    );
  }
  if (survey === null) throw notHoldfast(path);
  const { facts, hashes } = survey;
  if (facts.findings.length > 0) throw damaged(path, facts.findings.join("; "));
  refuseNewer(path, facts.schema);
  return { path, size, sha256, facts, hashes, manifest };
}

function readManifest(path: string, driver: DriverName): Manifest | null {
  clearStaging(dirname(path), driver);
  if (!existsSync(path) || statSync(path).isDirectory()) {
    throw new HoldfastError(
      "NO_BACKUP",
      `There is no backup at ${path}.`,
      "Give the path of a file that `holdfast backup` or `hf.backup` wrote.",
    );
  }
  const beside = manifestPath(path);
  return existsSync(beside) ? parseManifest(readFileSync(beside, "utf8"), beside) : null;
}

function notHoldfast(path: string): HoldfastError {
  const hint = "Give the path of a file that `holdfast backup` wrote.";
  return new HoldfastError("NOT_A_DATABASE", `${path} is not a Holdfast database.`, hint);
}

/** A database with a log beside it may be in use; a backup is one file. */
function refuseLive(path: string): void {
  for (const end of ["-wal", "-journal"]) {
    if (fileSize(path + end) === 0) continue;
    throw new HoldfastError(
      "NOT_A_BACKUP",
      `${path} is a database with a log beside it (${basename(path)}${end}), not a backup.`,
      `Make a backup of it: holdfast backup --db ${path}.`,
    );
  }
}

export function refuseNewer(path: string, schema: number): void {
  if (schema <= schemaVersion()) return;
  throw new HoldfastError(
    "SCHEMA_NEWER",
    `${path} was written by a newer Holdfast (schema ${schema}; this one knows ${schemaVersion()}). It was not changed.`,
    "Update holdfast here to the version that made it.",
  );
}

export function damaged(path: string, why: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_DAMAGED",
    `The backup ${path} is damaged: ${why}.`,
    "Use another backup or another copy of this one. `holdfast salvage` reads what is left of it.",
  );
}
