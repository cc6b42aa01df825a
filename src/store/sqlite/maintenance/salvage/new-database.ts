import { connect, type Connection, type DriverName, quoted, tablesOf, withoutGuard } from "../../driver.ts";
import { isOfDisk } from "../../faults.ts";
import { migrate } from "../../migrate.ts";
import { BACKUP, DAMAGED } from "./table-copy.ts";
import { readDamaged } from "./damaged-copy.ts";

/** How long it waits for others that read the same backup, in milliseconds. */
export const PATIENCE = 5_000;

export interface Definition {
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
