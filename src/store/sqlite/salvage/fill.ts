import type { Connection, Value } from "../driver.ts";
import type { Datum } from "./cells.ts";
import type { Gathered } from "./gather.ts";
import type { Shape } from "./shape.ts";
import { quoted } from "../tables.ts";

/** The backup, under this name beside the new database. */
const OLD = "old";

/** A backup beside the new database, to take from it what could not be read. It is whole: it was checked before. */
export class Source implements Disposable {
  readonly #db: Connection;

  constructor(db: Connection, backup: { path: string; schema: number }) {
    this.#db = db;
    db.prepare(`attach database ? as ${OLD}`).run(backup.path);
  }

  /** The text by which a table was made there, of those that are not Holdfast's. */
  definitions(): { type: string; name: string; table: string; root: number; sql: string | null }[] {
    return this.#db.prepare(`select type, name, tbl_name as "table", rootpage as root, sql from ${OLD}.sqlite_schema`).all();
  }

  /** How many rows were taken of those that are lost; for jobs, which. */
  fill({ shape, lostRowids, lostKeys, bad }: Gathered, tell?: (key: number) => void): number {
    const columns = this.#common(shape);
    if (columns === null) return 0;
    const from = `from ${OLD}.${quoted(shape.table)}`;
    const into = `insert or ignore into main.${quoted(shape.table)} (${columns}) select ${columns} ${from}`;
    let filled = 0;
    const take = (where: string, params: Value[]) => {
      if (tell !== undefined) {
        const missing = `select rowid ${from} where ${where} and rowid not in (select rowid from main.${quoted(shape.table)})`;
        for (const [key] of this.#db.prepare(missing).rows(...params)) tell(key as number);
      }
      filled += this.#db.prepare(`${into} where ${where}`).run(...params);
    };
    const keys = shape.columns.slice(0, shape.keys ?? 0).map(({ name }) => quoted(name));
    const key = keys.length === 1 ? keys[0] : `(${keys.join(", ")})`;
    for (const { after, before } of lostRowids) {
      take(...between("rowid", after === null ? null : [after], before === null ? null : [before]));
    }
    for (const { after, before } of lostKeys) {
      if (shape.odd) take("true", []);
      else take(...between(key as string, after, before));
    }
    for (const one of bad) take(`${shape.keys === null ? "rowid" : key} = ${marks(one)}`, one as Value[]);
    return filled;
  }

  /** Null: there was no such table, or nothing of it can be taken. */
  #common({ table, columns, rowid }: Shape): string | null {
    const there = this.#db.prepare(`select name from pragma_table_xinfo(?, '${OLD}')`).rows(table);
    if (there.length === 0) return null;
    const names = new Set(there.map(([name]) => name));
    const common = columns.filter(({ name, insertable }) => insertable && names.has(name)).map(({ name }) => quoted(name));
    return [...(rowid === null ? [] : [rowid]), ...common].join(", ");
  }

  [Symbol.dispose](): void {
    this.#db.exec(`detach database ${OLD}`);
  }
}

function between(
  what: string,
  after: readonly Datum[] | null,
  before: readonly Datum[] | null,
): [where: string, params: Value[]] {
  const conditions = [
    ...(after === null ? [] : [`${what} > ${marks(after)}`]),
    ...(before === null ? [] : [`${what} < ${marks(before)}`]),
  ];
  return [conditions.length === 0 ? "true" : conditions.join(" and "), [...(after ?? []), ...(before ?? [])] as Value[]];
}

function marks(values: readonly unknown[]): string {
  return values.length === 1 ? "?" : `(${values.map(() => "?").join(", ")})`;
}
