import { dirname, join } from "node:path";
import { change } from "../../../../core/jobs/event.ts";
import { type AuditHead, JOURNAL } from "../../../../core/recovery/audit.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { Fence } from "../../../../core/text/ids.ts";
import { passStep } from "../../../points.ts";
import { Audit } from "../../../sql/audit.ts";
import { runSync } from "../../../sql/script.ts";
import { DIALECT, txOn } from "../../scripts.ts";
import { connect, type Connection, type DriverName, type Statement } from "../../driver.ts";
import { createFile, createFolder, explain, isBusy, modeLike } from "../../faults.ts";
import { Events } from "../../jobs/events.ts";
import { wasUsed } from "../../migrate.ts";
import { syncFolder } from "../backup/copy.ts";
import { type Change, changesFolder, SegmentWriter } from "./segments.ts";
import { dropTriggers, journaled, signatureOf, triggersIn, triggersOf } from "./replay.ts";

const TABLES = `
-- What was done to rows since it was last written to the journal's files. 'put', 'set', 'gone': a row, as SQL writes its
-- values. 'commit': all before it and after the one before is one commit, made then. 'gap': something was done unseen.
create table if not exists holdfast_changes (
  seq   integer primary key autoincrement,
  kind  text not null,
  name  text,
  key   text,
  row   text,
  at    integer
);
create table if not exists holdfast_journal (
  id         integer primary key check (id = 1),
  active     integer not null,
  signature  text not null
);
`;

/** When it is switched, and by whom; null: that was not said. */
interface Switching {
  now: number;
  actor: string | null;
}

/** Switches the journal of a database on or off, or sees to it that it knows the tables as they are now. */
export function setJournal(db: Connection, wanted: boolean | undefined, by: Switching): boolean {
  const before = stateOf(db);
  const active = wanted ?? before?.active ?? false;
  if (!active && !before?.active) return false;
  inTransaction(db, () => (active ? keepOn(db, by) : switchOff(db, by)));
  return active;
}

/** While it is on: tables, or triggers of others, were made or changed. What no journal can see switches it off. */
export function keepUp(db: Connection, now: number): void {
  const by = { now, actor: JOURNAL };
  const uncovered = inTransaction(db, () => {
    if (isCovered(db)) return [];
    const { uncovered: unseen } = journaled(db);
    if (unseen.length === 0) keepOn(db, by);
    else switchOff(db, by, { tables: unseen });
    return unseen;
  });
  if (uncovered.length > 0) throw unsuitable(uncovered);
}

/** Whether all that is done is written down: every table has its triggers, and others' are as they were. */
export function isCovered(db: Connection): boolean {
  const state = stateOf(db);
  if (!state?.active) return true;
  const { tables, uncovered } = journaled(db);
  const { ours, others } = triggersIn(db);
  const there = new Set(ours);
  const isThere = tables.every((table) => triggersOf(table).every((trigger) => there.has(trigger)));
  return isThere && uncovered.length === 0 && state.signature === signatureOf(tables, others);
}

function inTransaction<T>(db: Connection, run: () => T): T {
  db.exec("begin immediate");
  try {
    const done = run();
    db.exec("commit");
    return done;
  } catch (error) {
    if (db.inTransaction) db.exec("rollback");
    throw error;
  }
}

/** Null: there never was one. */
export function stateOf(db: Connection): { active: boolean; signature: string } | null {
  if (db.prepare("select 1 from sqlite_schema where type = 'table' and name = 'holdfast_journal'").row() === undefined)
    return null;
  const row = db.prepare("select active, signature from holdfast_journal where id = 1").row() as [number, string] | undefined;
  return row === undefined ? null : { active: row[0] === 1, signature: row[1] };
}

function keepOn(db: Connection, by: Switching): void {
  const { tables, uncovered } = journaled(db);
  if (uncovered.length > 0) throw unsuitable(uncovered);
  const wasActive = stateOf(db)?.active ?? false;
  if (wasActive && isCovered(db)) return;
  db.exec(TABLES);
  // Made anew, they are the newest, and of several on a table SQLite runs the newest first: what others do comes after it.
  dropTriggers(db);
  if (!wasActive) tell(db, by, { active: true });
  for (const table of tables) for (const trigger of triggersOf(table)) db.exec(trigger);
  const signature = signatureOf(tables, triggersIn(db).others);
  db.prepare(
    `insert into holdfast_journal (id, active, signature) values (1, 1, ?)
     on conflict (id) do update set active = 1, signature = excluded.signature`,
  ).run(signature);
  // What was done before, or to a table as it was not known, is in no journal.
  db.prepare("insert into holdfast_changes (kind, at) values ('gap', ?)").run(by.now);
}

/** A database that is made of what was saved of another has a journal if that had one: the process that opens it next sees to it. */
export function leaveOn(db: Connection): void {
  db.exec(TABLES);
  db.exec("insert into holdfast_journal (id, active, signature) values (1, 1, '')");
}

/** What is done from here on is in no journal, so none leads to an instant after it. */
function switchOff(db: Connection, by: Switching, why: object = {}): void {
  if (!stateOf(db)?.active) return;
  dropTriggers(db);
  db.exec("update holdfast_journal set active = 0");
  db.prepare("insert into holdfast_changes (kind, at) values ('gap', ?)").run(by.now);
  tell(db, by, { active: false, ...why });
}

/** In the audit and as an event, in its transaction; not in the journal itself, which has no triggers then. */
function tell(db: Connection, { now, actor }: Switching, after: { active: boolean }): void {
  // That a database was made with one is no news.
  if (!wasUsed(db)) return;
  const type = after.active ? "journal.switched_on" : "journal.switched_off";
  const [commit] = db.prepare("select commits from holdfast_counter where id = 1").row() as [Fence];
  let entry = 0;
  const tx = { ...txOn(db, now, commit), audited: ({ seq }: AuditHead) => (entry = seq) };
  const events = new Events(db);
  const audit = new Audit(DIALECT, { actor, events });
  runSync(audit.add(tx, { action: type, subject: "journal", before: { active: !after.active }, after }));
  // The process that opens it is not registered yet, so that this commit has no number; the entry has one.
  events.add(tx, { type, transition: change(type, "journal", commit, entry), data: after });
}

/** At the end of each of this store's commits: up to here and no further, or to the next. */
export class CommitMarks {
  readonly #mark: Statement;

  constructor(db: Connection) {
    // Another process may have switched it off since.
    this.#mark = db.prepare(
      "insert into holdfast_changes (kind, at) select 'commit', ? from holdfast_journal where id = 1 and active = 1",
    );
  }

  add(now: number): void {
    this.#mark.run(now);
  }
}

function unsuitable(tables: readonly string[]): HoldfastError {
  return new HoldfastError(
    "JOURNAL_UNSUITABLE",
    `The database has virtual tables (${tables.join(", ")}), whose changes a journal cannot record.`,
    "Move them to another database, or leave `journal` out; backups include them.",
  );
}

/** Looked at this often, in milliseconds: what is not in a file yet is lost with the database. */
const PAUSE = 200;
/** While another process does it. */
const ASIDE = 2_000;
const PAGE = 5_000;

type Row = [seq: number, kind: Change["kind"], name: string | null, key: string | null, row: string | null, at: number | null];

/** Brings what the triggers have written to the journal's files, from a thread; of all processes one does. */
export class Drain {
  readonly #db: Connection;
  readonly #driver: DriverName;
  readonly #path: string;
  readonly #folder: string;
  readonly #head: { databaseId: string; epoch: number };
  readonly #now: () => number;
  readonly #page: Statement;
  readonly #first: Statement;
  readonly #remove: Statement;
  readonly #version: Statement;
  #right: Connection | null = null;
  #writer: SegmentWriter | null = null;
  #next = 0;
  /** The schema as it was when it was last looked at, and whether the journal sees all that is done to it. */
  #schema = { version: -1, covered: true };

  constructor(
    db: Connection,
    options: { path: string; driver: DriverName; databaseId: string; epoch: number; now: () => number },
  ) {
    const { path, driver, databaseId, epoch, now } = options;
    this.#db = db;
    this.#driver = driver;
    this.#path = path;
    this.#folder = changesFolder(path);
    this.#head = { databaseId, epoch };
    this.#now = now;
    this.#page = db.prepare("select seq, kind, name, key, row, at from holdfast_changes where seq > ? order by seq limit ?");
    this.#first = db.prepare("select min(seq) from holdfast_changes");
    this.#remove = db.prepare("delete from holdfast_changes where seq <= ?");
    this.#version = db.prepare("pragma schema_version");
  }

  run(): void {
    if (performance.now() < this.#next) return;
    this.#next = performance.now() + PAUSE;
    if (!this.#hold()) {
      this.#next = performance.now() + ASIDE;
      return;
    }
    const writer = this.#open();
    const before = writer.last;
    this.#write(writer);
    if (writer.last !== before) this.#forget(writer.last);
    if (!this.#schema.covered) this.#keepUp();
  }

  #forget(upTo: number): void {
    passStep("drain:written");
    this.#unlessBusy(() => this.#remove.run(upTo));
    passStep("drain:removed");
  }

  /** A program has made or changed a table, or a trigger: from here on it is seen. */
  #keepUp(): void {
    this.#unlessBusy(() => keepUp(this.#db, this.#now()));
  }

  /** It is done with the next round. */
  #unlessBusy(run: () => void): void {
    try {
      run();
    } catch (error) {
      if (!isBusy(error)) throw error;
    }
  }

  /** What is there still is brought along. */
  close(): void {
    this.#next = 0;
    try {
      this.run();
    } catch {
      // It is in the database, and the next one to open it brings it.
    }
    this.#right?.close();
    this.#right = null;
  }

  /** One snapshot: so what is read ends with a commit, whatever process made it. */
  #write(writer: SegmentWriter): void {
    this.#db.exec("begin");
    try {
      const before = writer.last;
      for (;;) {
        const rows = this.#page.rows(writer.last, PAGE) as Row[];
        const first = rows[0]?.[0];
        if (first === undefined) break;
        const changes: Change[] = rows.map(([seq, kind, name, key, row, at]) => ({ seq, kind, name, key, row, at }));
        this.#onDisk(() => writer.append(changes, first - 1));
      }
      const [version] = this.#version.row() as [number];
      if (version !== this.#schema.version) this.#schema = { version, covered: isCovered(this.#db) };
      if (writer.last === before || !this.#schema.covered) return;
      // All of it is committed, and up to here nothing was done unseen.
      const end: Change = { seq: writer.last, kind: "drained", name: null, key: null, row: null, at: this.#now() };
      this.#onDisk(() => writer.append([end], writer.last));
    } finally {
      this.#db.exec("rollback");
    }
  }

  #open(): SegmentWriter {
    const [kept] = this.#first.row() as [number | null];
    return (this.#writer ??= this.#onDisk(() => new SegmentWriter(this.#folder, this.#head, kept)));
  }

  /** After trouble, how far the files go is found out anew: the last line may be a part of one. */
  #onDisk<T>(run: () => T): T {
    try {
      return run();
    } catch (error) {
      this.#writer = null;
      throw explain(error, this.#folder);
    }
  }

  #hold(): boolean {
    if (this.#right !== null) return true;
    createFolder(this.#folder, modeLike(this.#path));
    createFile(join(this.#folder, "lock"), modeLike(this.#folder));
    syncFolder(dirname(this.#folder));
    const right = connect(this.#driver, join(this.#folder, "lock"), { busyTimeout: 0 });
    try {
      right.exec("begin immediate");
      this.#right = right;
      return true;
    } catch (error) {
      right.close();
      if (!isBusy(error)) throw error;
      return false;
    }
  }
}
