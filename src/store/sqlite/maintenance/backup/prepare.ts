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
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { Events } from "../../jobs/events.ts";
import { migrate, schemaVersion } from "../../migrate.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, type Replayed, withoutRules } from "../changes/replay.ts";
import { type Known, raiseEpoch } from "../epoch.ts";
import { clearWorkshop } from "./backups.ts";
import { runTask } from "./tasks.ts";

export interface Preparation {
  driver: DriverName;
  /** The copy; no process has it open. */
  path: string;
  now: number;
  /** Of the database whose place it takes, and of what else is remembered there. */
  known: Known;
  by: string;
  /** What is made again first, of what was done after the backup. */
  replay?: Replay;
  /** What is written down of it, and told. */
  audit: { action: EventType; name: string; after: object };
}

export interface Prepared {
  epoch: number;
  /** Jobs that ran when the backup was made: they run again. */
  running: number;
  /** What was made again; null: that was not asked for. */
  replayed: Replayed | null;
}

/** Numbers are moved on by this much: more than can have been counted in the time that is lost. */
const EVENTS = 1_000_000_000;
const PROCESSES = 1_000_000;
const TRANSITIONS = 1_000_000;

/**
 * Makes a copy ready to be worked in, in one transaction. The processes that held anything in it are gone, and nothing that they still write
 * is taken for another's: all fences, tokens and numbers from here on are beyond those that were ever given out. What
 * ran goes back by the same way as after a crash, when it is opened next, and is charged none.
 */
export function prepare(preparation: Preparation, onProgress: OnProgress = () => {}): Prepared {
  const db = connect(preparation.driver, preparation.path, { busyTimeout: 0, mustExist: true });
  try {
    db.exec("pragma synchronous = full");
    migrate(db, {
      path: preparation.path,
      now: preparation.now,
      actor: preparation.by,
      whenNew: () => {
        throw new Error("a backup without a schema");
      },
    });
    const { replay: asked } = preparation;
    if (asked !== undefined) withoutRules(db);
    db.exec("begin immediate");
    const replayed =
      asked === undefined ? null : replay(db, asked, (done, total) => onProgress({ step: "replaying", done, total }));
    const prepared = { ...startAnew(db, preparation, replayed), replayed };
    db.exec("commit");
    // As the process that opens it wants it: to switch it then would leave a log of another kind behind, should that process die.
    db.exec("pragma journal_mode = wal");
    return prepared;
  } finally {
    db.close();
  }
}

function startAnew(
  db: Connection,
  { now, known, by, audit }: Preparation,
  replayed: Replayed | null,
): Pick<Prepared, "epoch" | "running"> {
  const epoch = raiseEpoch(db, known);
  const fence = "(select commits from holdfast_counter where id = 1)";
  const running = db
    .prepare(`update holdfast_jobs set fence = ${fence}, expires_at = min(expires_at, ?) where state = 'running'`)
    .run(now);
  // Who had nothing in hand leaves nothing to recover.
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
  // Events tell a build's transition by its number: another one must not pass for what was told in the time that is lost.
  db.exec(`update holdfast_builds set seq = seq + ${TRANSITIONS} where state not in ('SUCCESS', 'FAILED', 'ABANDONED')`);
  moveOn(db, "holdfast_events", EVENTS);
  moveOn(db, "holdfast_processes", PROCESSES);
  // They were of the time before, and are in its files.
  if (stateOf(db) !== null) db.exec("delete from holdfast_changes");
  const reached = replayed === null ? {} : { reached: replayed.reached };
  tell(db, now, by, { ...audit, after: { epoch, ...audit.after, ...reached } });
  return { epoch, running };
}

/** An entry of the audit and an event, as of every act; this one's transaction is no other's. */
function tell(db: Connection, now: number, by: string, act: Preparation["audit"]): void {
  const [commit] = db.prepare("select commits from holdfast_counter where id = 1").row() as [Fence];
  runSync(new Audit(DIALECT, { actor: by, events: new Events(db) }).record(txOn(db, now, commit), act));
}

/** Counters continue from there. */
function moveOn(db: Connection, table: string, by: number): void {
  const moved = db.prepare("update sqlite_sequence set seq = seq + ? where name = ?").run(by, table);
  if (moved === 0) db.prepare("insert into sqlite_sequence (name, seq) values (?, ?)").run(table, by);
}

export interface VerifiedBackup {
  path: string;
  size: number;
  sha256: string;
  facts: BackupFacts;
  /** Every artifact that it references. */
  hashes: string[];
  /** Null: there is none, so it could be compared to nothing. */
  manifest: Manifest | null;
}

/** A backup as it was made: the same bytes, whole, and of a schema that is known here. Otherwise an error that says what is wrong. */
export async function verifyBackup(backup: string, driver: DriverName, tell?: OnProgress): Promise<VerifiedBackup> {
  const path = resolve(backup);
  const manifest = readManifest(path, driver);
  refuseLive(path);
  const { size, sha256, survey } = await runTask("inspect", { driver, path, expected: manifest?.sha256 }, tell).catch(
    (error: unknown) => {
      const code = error instanceof HoldfastError ? error.code : null;
      if (code === "NOT_A_DATABASE") throw none(path);
      throw code === "DAMAGED" ? damaged(path, "SQLite cannot read it") : error;
    },
  );
  if (manifest !== null && (manifest.size !== size || manifest.sha256 !== sha256)) {
    const said = manifest.size === size ? "its bytes are others" : `it has ${size} bytes instead of ${manifest.size}`;
    // A process that opens a database registers itself in it.
    if (existsSync(`${path}-alive`)) throw opened(path, said);
    throw damaged(path, `it differs from its manifest: ${said}`);
  }
  if (survey === null) throw none(path);
  const { facts, hashes } = survey;
  if (facts.findings.length > 0) throw damaged(path, facts.findings.join("; "));
  refuseNewer(path, facts.schema);
  return { path, size, sha256, facts, hashes, manifest };
}

/** After whatever a killed process had left to do. Null where there is none. */
function readManifest(path: string, driver: DriverName): Manifest | null {
  clearWorkshop(dirname(path), driver);
  if (!existsSync(path) || statSync(path).isDirectory()) {
    throw new HoldfastError(
      "NO_BACKUP",
      `There is no backup at ${path}.`,
      "Give the path of a file that `holdfast backup` or `hf.backup` wrote.",
    );
  }
  const beside = manifestPath(path);
  if (!existsSync(beside)) return null;
  const manifest = parseManifest(readFileSync(beside, "utf8"), beside);
  return manifest;
}

function none(path: string): HoldfastError {
  const hint = "Give the path of a file that `holdfast backup` wrote.";
  return new HoldfastError("NOT_A_DATABASE", `${path} is not a Holdfast database.`, hint);
}

function opened(path: string, said: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_CHANGED",
    `The backup ${path} differs from its manifest: ${said}. A program opened it as a database after it was made.`,
    `Use another copy. To restore this one as it is, move its manifest away: ${basename(manifestPath(path))} away.`,
  );
}

/** A backup is one file. What has a log beside it is a database that a process may work in. */
function refuseLive(path: string): void {
  for (const end of ["-wal", "-journal"]) {
    if ((statSync(path + end, { throwIfNoEntry: false })?.size ?? 0) === 0) continue;
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
