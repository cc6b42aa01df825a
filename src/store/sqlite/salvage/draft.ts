import { connect, type Connection, type DriverName, type Statement, type Value, withoutGuard } from "../driver.ts";
import { isOfDisk } from "../faults.ts";
import { migrate } from "../migrate.ts";
import { quoted, tablesOf } from "../tables.ts";
import type { Definition } from "./definitions.ts";
import { indexesOf, type IndexShape, type Shape, shapeOf } from "./shape.ts";
import type { FoundRow } from "./trees.ts";

export interface DraftOptions {
  driver: DriverName;
  path: string;
  now: number;
  /** The schema that the rows were written for. */
  schema: number;
  pageSize: number;
  encoding: "utf8" | "utf16le" | "utf16be";
  marks: { user: number; application: number };
}

/** Not for itself: whoever else reads a backup that was left with a log has it for himself for a moment, as he comes and goes. */
export const PATIENCE = 5_000;

const ENCODINGS = { utf8: "UTF-8", utf16le: "UTF-16le", utf16be: "UTF-16be" } as const;

/** The database that is made of what was saved. Nobody else knows of it yet, and if it is not finished it is thrown away. */
export class Draft implements Disposable {
  readonly db: Connection;
  readonly #shapes = new Map<string, Shape | null>();
  readonly #inserts = new Map<string, Statement>();
  /** Made last: they would act on rows that were there already. */
  readonly #triggers: { name: string; sql: string }[];
  readonly #later: Definition[] = [];

  constructor({ driver, path, now, schema, pageSize, encoding, marks }: DraftOptions) {
    this.db = connect(driver, path, { busyTimeout: PATIENCE });
    withoutGuard(driver, this.db);
    this.db.exec(`pragma page_size = ${pageSize}`);
    this.db.exec(`pragma encoding = '${ENCODINGS[encoding]}'`);
    this.db.exec(`pragma user_version = ${marks.user}`);
    this.db.exec(`pragma application_id = ${marks.application}`);
    // It is synced as a whole when it is done.
    this.db.exec("pragma journal_mode = memory");
    this.db.exec("pragma synchronous = off");
    this.db.exec("pragma foreign_keys = off");
    migrate(this.db, { path, now, actor: null, whenNew: () => {}, upTo: schema });
    this.#triggers = this.db.prepare("select name, sql from sqlite_schema where type = 'trigger'").all();
    for (const { name } of this.#triggers) this.db.exec(`drop trigger ${quoted(name)}`);
    for (const table of tablesOf(this.db)) {
      if (table !== "holdfast_migrations") this.db.exec(`delete from ${quoted(table)}`);
    }
  }

  /** From here on it is one transaction, until it is finished. An immediate one would lock the backup beside it, too. */
  begin(): void {
    this.db.exec("begin");
  }

  /** Adds what is not Holdfast's; the names of the tables that cannot be made. */
  define(definitions: readonly Definition[]): string[] {
    const theirs = definitions.filter(({ name, sql }) => sql !== null && !isOurs(name) && !name.startsWith("sqlite_"));
    // What only looks like a table makes others for itself, which are then there.
    const order = [...theirs.filter(isVirtual), ...theirs.filter((one) => one.type === "table" && !isVirtual(one))];
    this.#later.push(...theirs.filter(({ type }) => type !== "table"));
    const failed = order.filter((one) => !this.#has(one.name) && !this.#make(one)).map(({ name }) => name);
    // They begin with rows of their own.
    const parts = this.db.prepare("select name from pragma_table_list where schema = 'main' and type = 'shadow'").rows();
    for (const [name] of parts) this.db.exec(`delete from ${quoted(name as string)}`);
    return failed;
  }

  shape(table: string): Shape | null {
    let shape = this.#shapes.get(table);
    if (shape === undefined) this.#shapes.set(table, (shape = shapeOf(this.db, table)));
    return shape;
  }

  indexes(): IndexShape[] {
    return indexesOf(this.db);
  }

  /** False: there is one of its key already, or it breaks a rule of its table. */
  insert(shape: Shape, { rowid, values }: FoundRow): boolean {
    const given = values.map((value, i) => (i === shape.alias ? rowid : value));
    const params = given.filter((_, i) => shape.columns[i]?.insertable);
    const withRowid = rowid !== null && shape.rowid !== null;
    try {
      // Whole numbers are given as such, whatever the library makes of others.
      return this.#insertOf(shape, values.length).run(...((withRowid ? [rowid, ...params] : params) as Value[])) > 0;
    } catch (error) {
      if (isOfDisk(error)) throw error;
      return false;
    }
  }

  /** Indexes, views and triggers; what cannot be made is named. */
  finish(sequences: ReadonlyMap<string, number>): string[] {
    const byKind = (type: string) => this.#later.filter((one) => one.type === type);
    const failed = [...byKind("index"), ...byKind("view"), ...byKind("trigger")]
      .filter((one) => !this.#has(one.name) && !this.#make(one))
      .map(({ name }) => name);
    for (const { sql } of this.#triggers) this.db.exec(sql);
    this.#count(sequences);
    this.db.exec("commit");
    // Its own alone: the backup beside it stays as it is.
    this.db.exec("pragma main.journal_mode = delete");
    return failed;
  }

  /** A number that was given once is not given again. */
  #count(sequences: ReadonlyMap<string, number>): void {
    if (!this.#has("sqlite_sequence")) return;
    for (const table of tablesOf(this.db)) {
      const sql = (this.db.prepare("select sql from sqlite_schema where name = ?").row(table)?.[0] ?? "") as string;
      if (!/\bautoincrement\b/i.test(sql)) continue;
      const [most] = this.db.prepare(`select coalesce(max(rowid), 0) from ${quoted(table)}`).row() as [number];
      this.db.prepare("delete from sqlite_sequence where name = ?").run(table);
      this.db
        .prepare("insert into sqlite_sequence (name, seq) values (?, ?)")
        .run(table, Math.max(most, sequences.get(table) ?? 0));
    }
  }

  #make({ sql }: Definition): boolean {
    try {
      this.db.exec(sql as string);
      return true;
    } catch (error) {
      if (isOfDisk(error)) throw error;
      return false;
    }
  }

  #has(name: string): boolean {
    return this.db.prepare("select 1 from sqlite_schema where name = ?").row(name) !== undefined;
  }

  /** A row from before a column was added has fewer values; the column's default is the rest. */
  #insertOf({ table, columns, rowid }: Shape, length: number): Statement {
    const key = `${length} ${table}`;
    let statement = this.#inserts.get(key);
    if (statement === undefined) {
      const names = columns
        .slice(0, length)
        .filter(({ insertable }) => insertable)
        .map(({ name }) => quoted(name));
      const all = rowid === null ? names : [rowid, ...names];
      const verb = table === "holdfast_migrations" ? "replace" : "ignore";
      const sql = `insert or ${verb} into ${quoted(table)} (${all.join(", ")}) values (${all.map(() => "?").join(", ")})`;
      this.#inserts.set(key, (statement = this.db.prepare(sql)));
    }
    return statement;
  }

  [Symbol.dispose](): void {
    this.db.close();
  }
}

export function isOurs(name: string): boolean {
  return name.startsWith("holdfast_");
}

function isVirtual({ sql }: Definition): boolean {
  return /^create\s+virtual\s/i.test(sql ?? "");
}
