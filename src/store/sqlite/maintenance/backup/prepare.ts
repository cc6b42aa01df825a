import { randomUUID } from "node:crypto";
import type { Fence } from "../../../../core/text/ids.ts";
import type { OnProgress } from "../../../backups.ts";
import { RESTORED } from "../../../processes.ts";
import { Audit } from "../../../sql/audit.ts";
import { runSync } from "../../../sql/script.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, type Replayed, withoutRules } from "../changes/replay.ts";
import { DIALECT } from "../../dialect.ts";
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { Events } from "../../jobs/events.ts";
import { migrate } from "../../migrate.ts";
import { txOn } from "../../scripts.ts";
import { type Known, raiseEpoch } from "../epoch.ts";

export interface Preparation {
  driver: DriverName;
  /** The copy; nobody has it open. */
  path: string;
  now: number;
  /** Of the database whose place it takes, and of what else is remembered there. */
  known: Known;
  by: string;
  /** What is made again first, of what was done after the backup. */
  replay?: Replay;
  /** What is written down of it, and told. */
  audit: { action: string; name: string; after: object };
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
 * Makes a copy ready to be worked in, in one transaction. Whoever held anything in it is gone, and nothing that he still says
 * is taken for somebody else's: all fences, tokens and numbers from here on are beyond those that were ever given out. What
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
    // As whoever opens it wants it: to switch it then would leave a log of another kind behind, should he die of it.
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

/** What counts by itself goes on from there. */
function moveOn(db: Connection, table: string, by: number): void {
  const moved = db.prepare("update sqlite_sequence set seq = seq + ? where name = ?").run(by, table);
  if (moved === 0) db.prepare("insert into sqlite_sequence (name, seq) values (?, ?)").run(table, by);
}
