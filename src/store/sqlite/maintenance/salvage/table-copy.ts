import {
  column,
  connect,
  type Connection,
  type DriverName,
  quoted,
  scalar,
  tablesOf,
  type Value,
  withoutGuard,
} from "../../driver.ts";
import { isOfDamage, isOfDisk } from "../../faults.ts";
import { migrate } from "../../migrate.ts";
import { readDamaged } from "./salvage.ts";

const DAMAGED = "damaged";
export const BACKUP = "backup";

/** The rowid, or, in a table without rowids, the values of the primary key. */
export type Key = readonly (Value | bigint)[];

/** Unreadable rows lie between these keys; null: from the start, or to the end. */
export interface Gap {
  after: Key | null;
  before: Key | null;
}

type Direction = ">" | "<";

const CHUNK_ROWS = 1_000;
const HIGHEST_ROWID = 2n ** 63n - 1n;

// Copies a thousand rows at a time. Where a statement fails because of a damaged page, it is repeated with fewer rows; a row
// that cannot be read alone is skipped.
export class TableCopy {
  readonly table: string;
  readonly hasRowids: boolean;
  readonly gaps: Gap[] = [];
  /** Keys of rows that break a constraint, or of which only the key could be read. */
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
    const withoutRowid = scalar<number>(db, "select wr from pragma_table_list where schema = 'main' and name = ?", table);
    const names = new Set(columns.map(([name]) => name.toLowerCase()));
    const rowid = ["rowid", "_rowid_", "oid"].find((name) => !names.has(name));
    this.hasRowids = withoutRowid === 0 && rowid !== undefined;
    const primary = columns.filter(([, pk]) => pk > 0).sort(([, a], [, b]) => a - b);
    this.#key = this.hasRowids ? [rowid as string] : primary.map(([name]) => quoted(name));
    const own = columns.filter(([, , hidden]) => hidden === 0).map(([name]) => quoted(name));
    const isAlias = primary.length === 1 && primary[0]?.[3] === "INTEGER";
    this.#columns = this.hasRowids && !isAlias ? [rowid as string, ...own] : own;
  }

  run(): void {
    const end = this.#forward();
    if (end !== null && !this.hasRowids) this.#backward(end);
  }

  #forward(): { after: Key | null } | null {
    let after: Key | null = null;
    for (let size = CHUNK_ROWS; ;) {
      const last = this.#lastOf(">", after, size);
      if (last === "done") return null;
      if (last !== "damaged" && this.#copy(">", after, last.rows)) {
        after = last.key;
        size = Math.min(CHUNK_ROWS, size * 2);
      } else if (size > 1) {
        size = Math.floor(size / 8) || 1;
      } else if (this.hasRowids) {
        const next = this.#nextReadable((after?.[0] ?? 0n) as bigint);
        this.gaps.push({ after, before: next === null ? null : [next] });
        if (next === null) return null;
        after = [next - 1n];
      } else if (last !== "damaged") {
        this.refused.push(last.key);
        after = last.key;
      } else {
        return { after };
      }
    }
  }

  /** From the end towards the gap. Keys that are no numbers cannot be guessed: what lies between two damaged pages is lost. */
  #backward({ after }: { after: Key | null }): void {
    let before: Key | null = null;
    for (let size = CHUNK_ROWS; ;) {
      const first = this.#lastOf("<", before, size);
      if (first === "done") return;
      if (first !== "damaged" && this.#copy("<", before, first.rows)) before = first.key;
      else if (size > 1) size = Math.floor(size / 8) || 1;
      else break;
    }
    this.gaps.push({ after, before });
  }

  #lastOf(direction: Direction, from: Key | null, size: number): { key: Key; rows: number } | "done" | "damaged" {
    const { text, values } = this.#next(direction, from, size);
    const rows = this.#rows(
      `select ${this.#read()}, count(*) over () from (select ${this.#key.join(", ")} ${text})
       order by ${this.#order(direction === ">" ? "desc" : "asc")} limit 1`,
      values,
    );
    if (rows === null) return "damaged";
    const [row] = rows;
    if (row === undefined) return "done";
    const key = this.#toKey(row.slice(0, -1));
    // A damaged page may lead back to earlier rows.
    if (this.hasRowids && from !== null && (key[0] as bigint) <= (from[0] as bigint)) return "damaged";
    return { key, rows: row.at(-1) as number };
  }

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
    for (const row of this.#rows(missing, values) ?? []) this.refused.push(this.#toKey(row));
  }

  /** The next `size` rows in this direction, without a step onto the page behind the last of them or before the first. */
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

  #nextReadable(after: bigint): bigint | null {
    // Every column is read: a page of garbage may still give back a rowid.
    const columns = this.#columns.map((name) => `quote(${name})`).join(" || ");
    const [rowid] = this.#key;
    const sql = `select cast(${rowid} as text), ${columns} from ${DAMAGED}.${quoted(this.table)} not indexed
      where ${rowid} >= ? order by ${rowid} limit 1`;
    const first = (from: bigint) => this.#rows(sql, [from]);
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

  rowidsIn({ after, before }: Gap): bigint[] {
    const [from, to] = [after?.[0] ?? 0n, before?.[0] ?? HIGHEST_ROWID];
    const [name] = this.#key;
    const sql = `select cast(${name} as text) from main.${quoted(this.table)} where ${name} > ? and ${name} < ? order by ${name}`;
    return column<string>(this.#db, sql, from as Value, to as Value).map(BigInt);
  }

  #insert(from: string, text: string, values: Value[]): number {
    const names = column<string>(this.#db, `select name from pragma_table_xinfo(?, '${from}')`, this.table);
    const there = new Set(names.map(quoted));
    const columns = this.#columns.filter((name) => name === this.#key[0] || there.has(name)).join(", ");
    const into = `insert or ignore into main.${quoted(this.table)} (${columns})`;
    return this.#db.prepare(`${into} select ${columns} ${text}`).run(...values);
  }

  /** Null: a page that the statement needs is damaged. */
  #reading<T>(read: () => T): T | null {
    try {
      return read();
    } catch (error) {
      if (!isOfDamage(error)) throw error;
      return null;
    }
  }

  #rows(sql: string, values: Key): Value[][] | null {
    return this.#reading(() => this.#db.prepare(sql).rows(...(values as Value[])));
  }

  #tuple(): string {
    return this.#key.length === 1 ? (this.#key[0] as string) : `(${this.#key.join(", ")})`;
  }

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

const BUSY_TIMEOUT_MS = 5_000;

interface Definition {
  type: string;
  name: string;
  sql: string | null;
}

const DEFINITIONS = "select type, name, sql from sqlite_schema where sql is not null";
const SETTINGS = ["page_size", "encoding", "user_version", "application_id"];

export class NewDatabase implements Disposable {
  readonly db: Connection;
  /** Whether the schema of the damaged database can be read; otherwise everything comes from the backup. */
  readonly hasDamaged: boolean;
  /** Created last: triggers would act on rows that were there already. */
  readonly #triggers: Definition[];
  #later: Definition[] = [];

  constructor(driver: DriverName, paths: { path: string; damaged: string; backup: string | null }, schema: number, now: number) {
    const { path, damaged, backup } = paths;
    this.db = connect(driver, path, { busyTimeout: BUSY_TIMEOUT_MS });
    withoutGuard(driver, this.db);
    for (const name of SETTINGS) {
      const value = readDamaged(driver, damaged, (db) => scalar<string | number>(db, `pragma ${name}`));
      if (value !== null) this.db.exec(`pragma ${name} = ${typeof value === "string" ? quoted(value) : value}`);
    }
    // It is synced as a whole when it is complete.
    this.db.exec("pragma journal_mode = memory; pragma synchronous = off; pragma foreign_keys = off");
    migrate(this.db, { path, now, actor: null, whenNew: () => {}, upTo: schema });
    this.#triggers = this.db.prepare("select type, name, sql from sqlite_schema where type = 'trigger'").all();
    for (const { name } of this.#triggers) this.db.exec(`drop trigger ${quoted(name)}`);
    for (const table of tablesOf(this.db)) if (table !== "holdfast_migrations") this.db.exec(`delete from ${quoted(table)}`);
    if (backup !== null) this.db.prepare(`attach database ? as ${BACKUP}`).run(backup);
    this.hasDamaged = this.#attach(damaged);
  }

  #attach(damaged: string): boolean {
    // Lets SQLite skip a definition that it cannot read.
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

  define(hasBackup: boolean): string[] {
    const from = [...(this.hasDamaged ? [DAMAGED] : []), ...(hasBackup ? [BACKUP] : [])];
    const found = new Map<string, Definition>();
    for (const one of from.flatMap((name) =>
      this.db.prepare(DEFINITIONS.replace("sqlite_schema", `${name}.sqlite_schema`)).all<Definition>(),
    ))
      if (!one.name.startsWith("holdfast_") && !one.name.startsWith("sqlite_") && !found.has(one.name)) found.set(one.name, one);
    const all = [...found.values()];
    // A virtual table creates its shadow tables itself.
    const tables = all.filter(({ type }) => type === "table").toSorted((a, b) => Number(isVirtual(b)) - Number(isVirtual(a)));
    this.#later = all.filter(({ type }) => type !== "table");
    const failed = tables.filter((one) => !this.#create(one)).map(({ name }) => name);
    const shadows = column<string>(this.db, "select name from pragma_table_list where schema = 'main' and type = 'shadow'");
    for (const name of shadows) this.db.exec(`delete from ${quoted(name)}`);
    return failed;
  }

  has(table: string): boolean {
    if (!this.hasDamaged) return false;
    return scalar(this.db, `select 1 from ${DAMAGED}.sqlite_schema where type = 'table' and name = ?`, table) !== undefined;
  }

  detachDamaged(): void {
    this.#try(() => this.db.exec(`detach database ${DAMAGED}`));
  }

  sequences(): Map<string, number> {
    const read = () => this.db.prepare(`select name, seq from ${DAMAGED}.sqlite_sequence`).rows() as [string, number][];
    let rows: [string, number][] = [];
    if (this.hasDamaged) this.#try(() => void (rows = read()));
    return new Map(rows);
  }

  finish(sequences: ReadonlyMap<string, number>): string[] {
    const order = ["index", "view", "trigger"];
    const failed = this.#later
      .toSorted((a, b) => order.indexOf(a.type) - order.indexOf(b.type))
      .filter((one) => !this.#create(one))
      .map(({ name }) => name);
    for (const { sql } of this.#triggers) this.db.exec(sql as string);
    for (const [table, given] of sequences) {
      const updated = this.db.prepare("update main.sqlite_sequence set seq = max(seq, ?) where name = ?").run(given, table);
      if (updated === 0 && isAutoincrement(this.db, table))
        this.db.prepare("insert into main.sqlite_sequence (name, seq) values (?, ?)").run(table, given);
    }
    return failed;
  }

  #create({ name, sql }: Definition): boolean {
    if (scalar(this.db, "select 1 from main.sqlite_schema where name = ?", name) !== undefined) return true;
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
  const sql = scalar<string | undefined>(db, "select sql from main.sqlite_schema where name = ?", table);
  return /\bautoincrement\b/i.test(sql ?? "");
}

function isVirtual({ sql }: Definition): boolean {
  return /^create\s+virtual\s/i.test(sql ?? "");
}
