import { randomUUID } from "node:crypto";
import { chmodSync, statSync } from "node:fs";
import { dirname } from "node:path";
import type { EventType } from "../../../../core/jobs/event.ts";
import type { Fence } from "../../../../core/text/ids.ts";
import type { OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { RESTORED } from "../../../processes.ts";
import { Audit } from "../../../sql/audit.ts";
import { runSync } from "../../../sql/script.ts";
import { DIALECT, txOn } from "../../scripts.ts";
import { connect, type Connection, type DriverName, inTransaction, scalar } from "../../driver.ts";
import { explaining } from "../../faults.ts";
import { Events } from "../../jobs/events.ts";
import { migrate } from "../../migrate.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, type Replayed, withoutRules } from "../changes/replay.ts";
import { type Known, raiseEpoch } from "../epoch.ts";
import { copyFileSynced, survey, type Survey, syncFile, syncFolder } from "./copy.ts";

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

/** Makes a verified backup ready for use under another name. */
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
    // A replay makes another database of the backup, which is checked like one.
    const surveyed = prepared.replayed === null ? null : survey(driver, path);
    syncFile(path);
    syncFolder(dirname(path));
    passStep("restore:prepared");
    return { ...prepared, survey: surveyed };
  });
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
