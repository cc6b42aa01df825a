import { dirname, join } from "node:path";
import { commitTransition } from "../../../../core/jobs/event.ts";
import { type AuditHead, JOURNAL_ACTOR } from "../../../../core/recovery/audit.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { Fence } from "../../../../core/text/ids.ts";
import { passStep } from "../../../points.ts";
import { Audit } from "../../../sql/audit.ts";
import { runSync } from "../../../sql/script.ts";
import { DIALECT, txOn } from "../../scripts.ts";
import { type Connection, type DriverName, inTransaction, lockFile, scalar } from "../../driver.ts";
import { createFolder, explain, isBusy, modeLike } from "../../faults.ts";
import { Events } from "../../jobs/events.ts";
import { wasUsed } from "../../migrate.ts";
import { syncFolder } from "../backup/copy.ts";
import { type Change, changesFolder, SegmentWriter } from "./segments.ts";
import { dropTriggers, journaled, signatureOf, triggersIn, triggersOf } from "./replay.ts";

const TABLES = `
-- Changes that are not in a file of the journal yet. 'put', 'set', 'gone': a row, its values as SQL literals. 'commit': ends
-- the changes of one commit, made then. 'gap': something was changed unseen.
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

interface Switching {
  now: number;
  actor: string | null;
}

export function setJournal(db: Connection, wanted: boolean | undefined, by: Switching): boolean {
  const before = stateOf(db);
  const active = wanted ?? before?.active ?? false;
  if (!active && !before?.active) return false;
  inTransaction(db, () => (active ? coverTables(db, by) : switchOff(db, by)));
  return active;
}

/** Makes new triggers after a user changed tables or triggers. A virtual table switches the journal off: no trigger sees it. */
export function keepUp(db: Connection, now: number): void {
  const by = { now, actor: JOURNAL_ACTOR };
  const uncovered = inTransaction(db, () => {
    if (isCovered(db)) return [];
    const { uncovered: virtual } = journaled(db);
    if (virtual.length === 0) coverTables(db, by);
    else switchOff(db, by, { tables: virtual });
    return virtual;
  });
  if (uncovered.length > 0) throw unsuitable(uncovered);
}

export function isCovered(db: Connection): boolean {
  const state = stateOf(db);
  if (!state?.active) return true;
  const { tables, uncovered } = journaled(db);
  const { ours, others } = triggersIn(db);
  const there = new Set(ours);
  const isThere = tables.every((table) => triggersOf(table).every((trigger) => there.has(trigger)));
  return isThere && uncovered.length === 0 && state.signature === signatureOf(tables, others);
}

export function stateOf(db: Connection): { active: boolean; signature: string } | null {
  if (scalar(db, "select 1 from sqlite_schema where type = 'table' and name = 'holdfast_journal'") === undefined) return null;
  const row = db.prepare("select active, signature from holdfast_journal where id = 1").row() as [number, string] | undefined;
  return row === undefined ? null : { active: row[0] === 1, signature: row[1] };
}

export function unwrittenChanges(db: Connection): Change[] {
  return db.prepare("select seq, kind, name, key, row, at from holdfast_changes order by seq").all<Change>();
}

function coverTables(db: Connection, by: Switching): void {
  const { tables, uncovered } = journaled(db);
  if (uncovered.length > 0) throw unsuitable(uncovered);
  const wasActive = stateOf(db)?.active ?? false;
  if (wasActive && isCovered(db)) return;
  db.exec(TABLES);
  // Make all triggers again: SQLite runs the newest first, so changes of a user's trigger are recorded after this one's.
  dropTriggers(db);
  if (!wasActive) audit(db, by, { active: true });
  for (const table of tables) for (const trigger of triggersOf(table)) db.exec(trigger);
  const signature = signatureOf(tables, triggersIn(db).others);
  db.prepare(
    `insert into holdfast_journal (id, active, signature) values (1, 1, ?)
     on conflict (id) do update set active = 1, signature = excluded.signature`,
  ).run(signature);
  // Record a gap, because earlier changes, or changes to a table of another shape, are in no journal.
  db.prepare("insert into holdfast_changes (kind, at) values ('gap', ?)").run(by.now);
}

/** Leaves a salvaged database as one whose journal is on: the next process that opens it creates the triggers. */
export function leaveOn(db: Connection): void {
  db.exec(TABLES);
  db.exec("insert into holdfast_journal (id, active, signature) values (1, 1, '')");
}

/** Switches the journal off, and records a gap: no journal leads to an instant after it. */
function switchOff(db: Connection, by: Switching, why: object = {}): void {
  if (!stateOf(db)?.active) return;
  dropTriggers(db);
  db.exec("update holdfast_journal set active = 0");
  db.prepare("insert into holdfast_changes (kind, at) values ('gap', ?)").run(by.now);
  audit(db, by, { active: false, ...why });
}

/** Writes audit entry and event in the same transaction. No journal contains them, because there are no triggers then. */
function audit(db: Connection, { now, actor }: Switching, after: { active: boolean }): void {
  if (!wasUsed(db)) return;
  const type = after.active ? "journal.switched_on" : "journal.switched_off";
  const commit = scalar<Fence>(db, "select commits from holdfast_counter where id = 1");
  let entry = 0;
  const tx = { ...txOn(db, now, commit), audited: ({ seq }: AuditHead) => (entry = seq) };
  const events = new Events(db);
  const log = new Audit(DIALECT, { actor, events });
  runSync(log.add(tx, { action: type, subject: "journal", before: { active: !after.active }, after }));
  // Identify the event by the audit entry: this commit has no number, because the process is not registered yet.
  events.record(tx, { type, transition: commitTransition(type, "journal", commit, entry), data: after });
}

/** Marks the end of each commit of this store, unless another process has switched the journal off. */
export function commitMarker(db: Connection): (now: number) => void {
  const mark = db.prepare(
    "insert into holdfast_changes (kind, at) select 'commit', ? from holdfast_journal where id = 1 and active = 1",
  );
  return (now) => void mark.run(now);
}

function unsuitable(tables: readonly string[]): HoldfastError {
  return new HoldfastError(
    "JOURNAL_UNSUITABLE",
    `The database has virtual tables (${tables.join(", ")}), whose changes a journal cannot record.`,
    "Move them to another database, or leave `journal` out; backups include them.",
  );
}

/** Interval of draining. Changes that are not in a file yet are lost with the database. */
const DRAIN_INTERVAL_MS = 200;
const STANDBY_INTERVAL_MS = 2_000;
const PAGE_ROWS = 5_000;

interface DrainOptions {
  path: string;
  driver: DriverName;
  databaseId: string;
  epoch: number;
  now: () => number;
}

/** Moves the changes that triggers recorded to the journal's files, from a thread, in one process at a time. */
export class Drain {
  readonly #db: Connection;
  readonly #options: DrainOptions;
  readonly #folder: string;
  readonly #sql;
  #right: Connection | null = null;
  #writer: SegmentWriter | null = null;
  #next = 0;
  #schema = { version: -1, covered: true };

  constructor(db: Connection, options: DrainOptions) {
    this.#db = db;
    this.#options = options;
    this.#folder = changesFolder(options.path);
    this.#sql = {
      page: db.prepare("select seq, kind, name, key, row, at from holdfast_changes where seq > ? order by seq limit ?"),
      first: db.prepare("select min(seq) from holdfast_changes"),
      remove: db.prepare("delete from holdfast_changes where seq <= ?"),
      version: db.prepare("pragma schema_version"),
    };
  }

  run(): void {
    if (performance.now() < this.#next) return;
    this.#next = performance.now() + DRAIN_INTERVAL_MS;
    if (!this.#hold()) {
      this.#next = performance.now() + STANDBY_INTERVAL_MS;
      return;
    }
    const writer = this.#open();
    const before = writer.last;
    this.#write(writer);
    if (writer.last !== before) {
      passStep("drain:written");
      this.#unlessBusy(() => this.#sql.remove.run(writer.last));
      passStep("drain:removed");
    }
    if (!this.#schema.covered) this.#unlessBusy(() => keepUp(this.#db, this.#options.now()));
  }
  #unlessBusy(run: () => void): void {
    try {
      run();
    } catch (error) {
      if (!isBusy(error)) throw error;
    }
  }

  close(): void {
    this.#next = 0;
    try {
      this.run();
    } catch {
      // The changes stay in the database, and the next process that opens it moves them.
    }
    this.#right?.close();
    this.#right = null;
  }

  /** Writes the changes of one snapshot, which ends with a commit. */
  #write(writer: SegmentWriter): void {
    this.#db.exec("begin");
    try {
      const before = writer.last;
      for (;;) {
        const changes = this.#sql.page.all<Change>(writer.last, PAGE_ROWS);
        const [first] = changes;
        if (first === undefined) break;
        this.#onDisk(() => writer.append(changes, first.seq - 1));
      }
      const [version] = this.#sql.version.row() as [number];
      if (version !== this.#schema.version) this.#schema = { version, covered: isCovered(this.#db) };
      if (writer.last === before || !this.#schema.covered) return;
      // Mark that everything up to here is committed, and nothing was changed unseen.
      const end: Change = { seq: writer.last, kind: "drained", name: null, key: null, row: null, at: this.#options.now() };
      this.#onDisk(() => writer.append([end], writer.last));
    } finally {
      this.#db.exec("rollback");
    }
  }

  #open(): SegmentWriter {
    const [kept] = this.#sql.first.row() as [number | null];
    return (this.#writer ??= this.#onDisk(() => new SegmentWriter(this.#folder, this.#options, kept)));
  }

  /** Drops the writer after an error: a new one finds out how far the files go, because the last line may be incomplete. */
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
    createFolder(this.#folder, modeLike(this.#options.path));
    syncFolder(dirname(this.#folder));
    this.#right = lockFile(this.#options.driver, join(this.#folder, "lock"), modeLike(this.#folder));
    return this.#right !== null;
  }
}
