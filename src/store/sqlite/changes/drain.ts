import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { passStep } from "../../points.ts";
import { syncFolder } from "../backup/files.ts";
import { connect, type Connection, type DriverName, type Statement } from "../driver.ts";
import { isBusy } from "../faults.ts";
import { type Change, changesFolder, SegmentWriter } from "./segments.ts";

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
  readonly #folder: string;
  readonly #head: { databaseId: string; epoch: number };
  readonly #now: () => number;
  readonly #page: Statement;
  readonly #remove: Statement;
  #right: Connection | null = null;
  #writer: SegmentWriter | null = null;
  #next = 0;

  constructor(
    db: Connection,
    options: { path: string; driver: DriverName; databaseId: string; epoch: number; now: () => number },
  ) {
    const { path, driver, databaseId, epoch, now } = options;
    this.#db = db;
    this.#driver = driver;
    this.#folder = changesFolder(path);
    this.#head = { databaseId, epoch };
    this.#now = now;
    this.#page = db.prepare("select seq, kind, name, key, row, at from holdfast_changes where seq > ? order by seq limit ?");
    this.#remove = db.prepare("delete from holdfast_changes where seq <= ?");
  }

  run(): void {
    if (performance.now() < this.#next) return;
    this.#next = performance.now() + PAUSE;
    if (!this.#hold()) {
      this.#next = performance.now() + ASIDE;
      return;
    }
    const writer = (this.#writer ??= new SegmentWriter(this.#folder, this.#head));
    const before = writer.last;
    this.#write(writer);
    if (writer.last === before) return;
    passStep("drain:written");
    try {
      this.#remove.run(writer.last);
    } catch (error) {
      // They go with the next ones.
      if (!isBusy(error)) throw error;
    }
    passStep("drain:removed");
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
      for (;;) {
        const rows = this.#page.rows(writer.last, PAGE) as Row[];
        const first = rows[0]?.[0];
        if (first === undefined) return;
        const changes: Change[] = rows.map(([seq, kind, name, key, row, at]) => ({ seq, kind, name, key, row, at }));
        const last = changes.at(-1) as Change;
        if (rows.length < PAGE) changes.push({ ...last, kind: "drained", name: null, key: null, row: null, at: this.#now() });
        writer.append(changes, first - 1);
      }
    } finally {
      this.#db.exec("rollback");
    }
  }

  #hold(): boolean {
    if (this.#right !== null) return true;
    mkdirSync(this.#folder, { recursive: true });
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
