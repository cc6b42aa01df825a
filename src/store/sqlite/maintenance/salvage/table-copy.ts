import { connect, type Connection, type DriverName, quoted, tablesOf, type Value, withoutGuard } from "../../driver.ts";
import { isOfDamage, isOfDisk } from "../../faults.ts";
import { migrate } from "../../migrate.ts";
import { readDamaged } from "./salvage.ts";

/** The names under which the damaged database and the backup are attached to the new one. */
const DAMAGED = "damaged";
export const BACKUP = "backup";

/** A row's key: of a table without rowids the values of its primary key, of any other its rowid. */
export type Key = readonly (Value | bigint)[];

/** Rows between these keys could not be read; null: from the beginning, or to the end. */
export interface Gap {
  after: Key | null;
  before: Key | null;
}

type Direction = ">" | "<";

const CHUNK = 1_000;
const HIGHEST_ROWID = 2n ** 63n - 1n;

/**
 * Copies one table of the damaged database into the new one with SQLite's own statements, a thousand rows at a time. Where a
 * statement fails because a page is damaged, it is tried with fewer rows, and a row that cannot be read alone is skipped.
 */
export class TableCopy {
  readonly table: string;
  readonly hasRowids: boolean;
  readonly gaps: Gap[] = [];
  /** Keys of rows that break a rule of their table, or of which no more than the key could be read. */
  readonly refused: Key[] = [];
  saved = 0;
  readonly #db: Connection;
  readonly #key: readonly string[];
  readonly #columns: readonly string[];

  constructor(db: Connection, table: string) {
    this.#db = db;
    this.table = table;
    const columns = db.prepare("select name, pk, hidden, upper(type) from pragma_table_xinfo(?)").rows(table) as [
      name: string,
      pk: number,
      hidden: number,
      type: string,
    ][];
    const [withoutRowid] = db.prepare("select wr from pragma_table_list where schema = 'main' and name = ?").row(table) as [
      number,
    ];
    const names = new Set(columns.map(([name]) => name.toLowerCase()));
    const rowid = ["rowid", "_rowid_", "oid"].find((name) => !names.has(name));
    this.hasRowids = withoutRowid === 0 && rowid !== undefined;
    const primary = columns.filter(([, pk]) => pk > 0).sort(([, a], [, b]) => a - b);
    this.#key = this.hasRowids ? [rowid as string] : primary.map(([name]) => quoted(name));
    const own = columns.filter(([, , hidden]) => hidden === 0).map(([name]) => quoted(name));
    // A rowid that has no column of its own is copied, too.
    const isAlias = primary.length === 1 && primary[0]?.[3] === "INTEGER";
    this.#columns = this.hasRowids && !isAlias ? [rowid as string, ...own] : own;
  }

  run(): void {
    const end = this.#forward();
    if (end !== null && !this.hasRowids) this.#backward(end);
  }

  /** The answer is the key behind which nothing could be read any more; null: it has come to the end. */
  #forward(): { after: Key | null } | null {
    let after: Key | null = null;
    for (let size = CHUNK; ;) {
      const last = this.#lastOf(">", after, size);
      if (last === "done") return null;
      if (last !== "damaged" && this.#copy(">", after, last.rows)) {
        after = last.key;
        size = Math.min(CHUNK, size * 2);
      } else if (size > 1) {
        size = Math.floor(size / 8) || 1;
      } else if (this.hasRowids) {
        const next = this.#nextReadable((after?.[0] ?? 0n) as bigint);
        this.gaps.push({ after, before: next === null ? null : [next] });
        if (next === null) return null;
        after = [next - 1n];
      } else if (last !== "damaged") {
        // Its key can be read, the rest of the row cannot.
        this.refused.push(last.key);
        after = last.key;
      } else {
        return { after };
      }
    }
  }

  /** From the end towards the gap: keys that are no numbers cannot be guessed, so what lies between two damaged pages is lost. */
  #backward({ after }: { after: Key | null }): void {
    let before: Key | null = null;
    for (let size = CHUNK; ;) {
      const first = this.#lastOf("<", before, size);
      // Every row could be read from this side.
      if (first === "done") return;
      if (first !== "damaged" && this.#copy("<", before, first.rows)) before = first.key;
      else if (size > 1) size = Math.floor(size / 8) || 1;
      else break;
    }
    this.gaps.push({ after, before });
  }

  /** The last key of the next so many rows in this direction. */
  #lastOf(direction: Direction, from: Key | null, size: number): { key: Key; rows: number } | "done" | "damaged" {
    const { text, values } = this.#next(direction, from, size);
    const rows = this.#reading(
      `select ${this.#read()}, count(*) over () from (select ${this.#key.join(", ")} ${text})
       order by ${this.#order(direction === ">" ? "desc" : "asc")} limit 1`,
      values,
    );
    if (rows === null) return "damaged";
    const [row] = rows;
    if (row === undefined) return "done";
    const key = this.#toKey(row.slice(0, -1));
    // A damaged page may lead back to rows that came before.
    if (this.hasRowids && from !== null && (key[0] as bigint) <= (from[0] as bigint)) return "damaged";
    return { key, rows: row.at(-1) as number };
  }

  /** False when a page of these rows is damaged; then none is copied. */
  #copy(direction: Direction, from: Key | null, rows: number): boolean {
    const { text, values } = this.#next(direction, from, rows);
    const copied = this.#reading(() => this.#insert(DAMAGED, text, values));
    if (copied === null) return false;
    this.saved += copied;
    if (copied < rows) this.#collectRefused(text, values);
    return true;
  }

  #collectRefused(text: string, values: Value[]): void {
    const same = this.#key.map((name) => `one.${name} is own.${name}`).join(" and ");
    const missing = `select ${this.#read()} from (select ${this.#key.join(", ")} ${text}) as one
      where not exists (select 1 from main.${quoted(this.table)} as own where ${same})`;
    for (const row of this.#reading(missing, values) ?? []) this.refused.push(this.#toKey(row));
  }

  /** So many rows in this direction, without a step onto the page behind the last of them, nor back to the one before. */
  #next(direction: Direction, from: Key | null, size: number): { text: string; values: Value[] } {
    const source = `from ${DAMAGED}.${quoted(this.table)}${this.hasRowids ? " not indexed" : ""}`;
    const order = `order by ${this.#order(direction === ">" ? "asc" : "desc")} limit ${size}`;
    if (from === null) return { text: `${source} where true ${order}`, values: [] };
    const [rowid] = from;
    if (this.hasRowids)
      return { text: `${source} where ${this.#key[0]} >= ? ${order}`, values: [((rowid as bigint) + 1n) as never] };
    return { text: `${source} where ${this.#tuple()} ${direction} ${marks(from)} ${order}`, values: [...from] as Value[] };
  }

  #order(how: "asc" | "desc"): string {
    return this.#key.map((name) => `${name} ${how}`).join(", ");
  }

  /** The first rowid behind this one whose row can be read; null: there is none. */
  #nextReadable(after: bigint): bigint | null {
    // Each column is read: a page of garbage may still give back a rowid.
    const columns = this.#columns.map((name) => `quote(${name})`).join(" || ");
    const [rowid] = this.#key;
    const sql = `select cast(${rowid} as text), ${columns} from ${DAMAGED}.${quoted(this.table)} not indexed
      where ${rowid} >= ? order by ${rowid} limit 1`;
    const first = (from: bigint) => this.#reading(sql, [from]);
    let unreadable = after;
    let step = 1n;
    while (after + step < HIGHEST_ROWID && first(after + step) === null) {
      unreadable = after + step;
      step *= 2n;
    }
    if (after + step >= HIGHEST_ROWID) return null;
    let readable = after + step;
    while (readable - unreadable > 1n) {
      const middle = (readable + unreadable) / 2n;
      if (first(middle) === null) unreadable = middle;
      else readable = middle;
    }
    const found = first(readable)?.[0];
    return found === undefined ? null : (this.#toKey(found)[0] as bigint);
  }

  /** Takes rows of the gaps from the backup, or the rows with these keys; the answer is how many. */
  restore(keys: readonly Key[] = this.refused, gaps: readonly Gap[] = this.gaps): number {
    const isThere = this.#db.prepare(`select 1 from ${BACKUP}.sqlite_schema where type = 'table' and name = ?`);
    if (isThere.row(this.table) === undefined) return 0;
    const from = `from ${BACKUP}.${quoted(this.table)}`;
    let filled = 0;
    for (const { after, before } of gaps) {
      const given = [
        [">", after],
        ["<", before],
      ].filter((part): part is [string, Key] => part[1] !== null);
      const where = given.map(([operator, key]) => `${this.#tuple()} ${operator} ${marks(key)}`).join(" and ") || "true";
      filled += this.#insert(BACKUP, `${from} where ${where}`, given.flatMap(([, key]) => key) as Value[]);
    }
    for (const key of keys) filled += this.#insert(BACKUP, `${from} where ${this.#tuple()} = ${marks(key)}`, key as Value[]);
    return filled;
  }

  has(key: Key): boolean {
    const where = `${this.#tuple()} = ${marks(key)}`;
    return this.#db.prepare(`select 1 from main.${quoted(this.table)} where ${where}`).row(...(key as Value[])) !== undefined;
  }

  remove(key: Key): void {
    this.#db.prepare(`delete from main.${quoted(this.table)} where ${this.#tuple()} = ${marks(key)}`).run(...(key as Value[]));
  }

  /** Rowids of the new database inside a gap, in order. */
  rowidsIn({ after, before }: Gap): bigint[] {
    const [from, to] = [after?.[0] ?? 0n, before?.[0] ?? HIGHEST_ROWID];
    const [name] = this.#key;
    return this.#db
      .prepare(`select cast(${name} as text) from main.${quoted(this.table)} where ${name} > ? and ${name} < ? order by ${name}`)
      .rows(from as Value, to as Value)
      .map(([rowid]) => BigInt(rowid as string));
  }

  /** `text`: from which database, and which rows. */
  #insert(from: string, text: string, values: Value[]): number {
    const there = new Set(
      this.#db
        .prepare(`select name from pragma_table_xinfo(?, '${from}')`)
        .rows(this.table)
        .map(([name]) => quoted(name as string)),
    );
    const columns = this.#columns.filter((name) => name === this.#key[0] || there.has(name)).join(", ");
    const into = `insert or ignore into main.${quoted(this.table)} (${columns})`;
    return this.#db.prepare(`${into} select ${columns} ${text}`).run(...values);
  }

  /** Null: a page that it needs is damaged. */
  #reading(what: string, values: Key): Value[][] | null;
  #reading(what: () => number): number | null;
  #reading(what: string | (() => number), values: Key = []): Value[][] | number | null {
    try {
      return typeof what === "string" ? this.#db.prepare(what).rows(...(values as Value[])) : what();
    } catch (error) {
      if (!isOfDamage(error)) throw error;
      return null;
    }
  }

  #tuple(): string {
    return this.#key.length === 1 ? (this.#key[0] as string) : `(${this.#key.join(", ")})`;
  }

  /** Rowids may be beyond what a number can hold. */
  #read(): string {
    return this.hasRowids ? `cast(${this.#key[0]} as text)` : this.#key.join(", ");
  }

  #toKey(row: readonly Value[]): Key {
    return this.hasRowids ? [BigInt(row[0] as string)] : row;
  }
}

function marks(key: Key): string {
  return key.length === 1 ? "?" : `(${key.map(() => "?").join(", ")})`;
}

/** How long it waits for others that read the same backup, in milliseconds. */
const PATIENCE = 5_000;

interface Definition {
  type: string;
  name: string;
  sql: string | null;
}

const DEFINITIONS = "select type, name, sql from sqlite_schema where sql is not null";
/** What a new database takes over from the damaged one, before anything is in it. */
const SETTINGS = ["page_size", "encoding", "user_version", "application_id"];

/** The database that is made of what was saved. No other process knows of it, and it is removed if it is not finished. */
export class NewDatabase implements Disposable {
  readonly db: Connection;
  /** Whether the schema of the damaged database can be read; otherwise everything comes from the backup. */
  readonly hasDamaged: boolean;
  /** Made last: they would act on rows that were there already. */
  readonly #triggers: Definition[];
  #later: Definition[] = [];

  constructor(driver: DriverName, paths: { path: string; damaged: string; backup: string | null }, schema: number, now: number) {
    const { path, damaged, backup } = paths;
    this.db = connect(driver, path, { busyTimeout: PATIENCE });
    withoutGuard(driver, this.db);
    for (const name of SETTINGS) {
      const [[value]] = readDamaged(driver, damaged, (db) => db.prepare(`pragma ${name}`).rows() as [[string | number]]) ?? [
        [null],
      ];
      if (value !== null) this.db.exec(`pragma ${name} = ${typeof value === "string" ? quoted(value) : value}`);
    }
    // It is synced as a whole when it is done.
    this.db.exec("pragma journal_mode = memory");
    this.db.exec("pragma synchronous = off");
    this.db.exec("pragma foreign_keys = off");
    migrate(this.db, { path, now, actor: null, whenNew: () => {}, upTo: schema });
    this.#triggers = this.db.prepare("select type, name, sql from sqlite_schema where type = 'trigger'").all();
    for (const { name } of this.#triggers) this.db.exec(`drop trigger ${quoted(name)}`);
    for (const table of tablesOf(this.db)) if (table !== "holdfast_migrations") this.db.exec(`delete from ${quoted(table)}`);
    if (backup !== null) this.db.prepare(`attach database ? as ${BACKUP}`).run(backup);
    this.hasDamaged = this.#attach(damaged);
  }

  #attach(damaged: string): boolean {
    // Lets SQLite pass over a definition that it cannot read.
    this.db.exec("pragma writable_schema = on");
    try {
      return this.#try(() => {
        this.db.prepare(`attach database ? as ${DAMAGED}`).run(damaged);
        this.db.prepare(`select count(*) from ${DAMAGED}.sqlite_schema`).row();
      });
    } finally {
      this.db.exec("pragma writable_schema = off");
    }
  }

  /** Makes the tables that are not Holdfast's; the names of those that cannot be made. */
  define(hasBackup: boolean): string[] {
    const from = [...(this.hasDamaged ? [DAMAGED] : []), ...(hasBackup ? [BACKUP] : [])];
    const found = new Map<string, Definition>();
    for (const one of from.flatMap((name) =>
      this.db.prepare(DEFINITIONS.replace("sqlite_schema", `${name}.sqlite_schema`)).all<Definition>(),
    ))
      if (!one.name.startsWith("holdfast_") && !one.name.startsWith("sqlite_") && !found.has(one.name)) found.set(one.name, one);
    const all = [...found.values()];
    // A virtual table makes its own tables, which must not be made before.
    const tables = all.filter(({ type }) => type === "table").toSorted((a, b) => Number(isVirtual(b)) - Number(isVirtual(a)));
    this.#later = all.filter(({ type }) => type !== "table");
    const failed = tables.filter((one) => !this.#make(one)).map(({ name }) => name);
    const shadows = this.db.prepare("select name from pragma_table_list where schema = 'main' and type = 'shadow'").rows();
    for (const [name] of shadows) this.db.exec(`delete from ${quoted(name as string)}`);
    return failed;
  }

  /** Whether the damaged database has a table of this name. */
  has(table: string): boolean {
    if (!this.hasDamaged) return false;
    return this.db.prepare(`select 1 from ${DAMAGED}.sqlite_schema where type = 'table' and name = ?`).row(table) !== undefined;
  }

  detachDamaged(): void {
    this.#try(() => this.db.exec(`detach database ${DAMAGED}`));
  }

  /** The highest number that each table with `autoincrement` has given out. */
  sequences(): Map<string, number> {
    const read = () => this.db.prepare(`select name, seq from ${DAMAGED}.sqlite_sequence`).rows() as [string, number][];
    let rows: [string, number][] = [];
    if (this.hasDamaged) this.#try(() => void (rows = read()));
    return new Map(rows);
  }

  /** Makes indexes, views and triggers; the names of those that cannot be made. */
  finish(sequences: ReadonlyMap<string, number>): string[] {
    const order = ["index", "view", "trigger"];
    const failed = this.#later
      .toSorted((a, b) => order.indexOf(a.type) - order.indexOf(b.type))
      .filter((one) => !this.#make(one))
      .map(({ name }) => name);
    for (const { sql } of this.#triggers) this.db.exec(sql as string);
    for (const [table, given] of sequences) {
      const updated = this.db.prepare("update main.sqlite_sequence set seq = max(seq, ?) where name = ?").run(given, table);
      if (updated === 0 && isAutoincrement(this.db, table))
        this.db.prepare("insert into main.sqlite_sequence (name, seq) values (?, ?)").run(table, given);
    }
    return failed;
  }

  #make({ name, sql }: Definition): boolean {
    if (this.db.prepare("select 1 from main.sqlite_schema where name = ?").row(name) !== undefined) return true;
    return this.#try(() => this.db.exec(sql as string));
  }

  #try(what: () => void): boolean {
    try {
      what();
      return true;
    } catch (error) {
      if (isOfDisk(error)) throw error;
      return false;
    }
  }

  [Symbol.dispose](): void {
    this.db.close();
  }
}

function isAutoincrement(db: Connection, table: string): boolean {
  const sql = (db.prepare("select sql from main.sqlite_schema where name = ?").row(table)?.[0] ?? "") as string;
  return /\bautoincrement\b/i.test(sql);
}

function isVirtual({ sql }: Definition): boolean {
  return /^create\s+virtual\s/i.test(sql ?? "");
}
