import { dirname, join } from "node:path";
import { passStep } from "../../../points.ts";
import { isCovered, keepUp } from "./journal.ts";
import { type Change, changesFolder, SegmentWriter } from "./segments.ts";
import { connect, type Connection, type DriverName, type Statement } from "../../driver.ts";
import { explain, isBusy } from "../../faults.ts";
import { createFile, createFolder, modeLike } from "../../modes.ts";
import { syncFolder } from "../backup/files.ts";

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

  /** Somebody has made or changed a table, or a trigger: from here on it is seen. */
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

  /** One snapshot: so what is read ends with a commit, whoever has made it. */
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
