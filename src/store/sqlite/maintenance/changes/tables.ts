import { hash } from "node:crypto";
import type { Connection } from "../../driver.ts";
import { quoted } from "../tables.ts";

/** A table whose rows are journaled: by what a row is found, and what it holds. */
export interface Journaled {
  name: string;
  sql: string;
  /** Columns, or the rowid where no column is it. */
  key: string[];
  columns: string[];
  /** Those of them that hold whole numbers, or nothing, and never anything else. */
  integers: ReadonlySet<string>;
}

/** What the journal itself is made of. */
export const OWN = ["holdfast_changes", "holdfast_journal"];
const PREFIX = "holdfast_change_";

/** Every table, also those of others in the same file; `uncovered` are virtual ones, whose rows no trigger sees. */
export function journaled(db: Connection): { tables: Journaled[]; uncovered: string[] } {
  const rows = db
    .prepare(
      `select list.name, list.type, list.wr, entry.sql from pragma_table_list as list
         join sqlite_schema as entry on entry.name = list.name and entry.type = 'table'
       where list.schema = 'main' and list.name not like 'sqlite\\_%' escape '\\' order by list.name`,
    )
    .rows() as [string, string, number, string][];
  const ours = rows.filter(([name]) => !OWN.includes(name));
  return {
    tables: ours.filter(([, type]) => type === "table").map(([name, , wr, sql]) => describe(db, name, sql, wr === 1)),
    uncovered: ours.filter(([, type]) => type === "virtual").map(([name]) => name),
  };
}

function describe(db: Connection, name: string, sql: string, withoutRowid: boolean): Journaled {
  const info = db.prepare("select name, type, pk from pragma_table_xinfo(?) where hidden = 0 order by cid").rows(name) as [
    string,
    string,
    number,
  ][];
  const columns = info.map(([column]) => column);
  const primary = info.filter(([, , pk]) => pk > 0).toSorted((a, b) => a[2] - b[2]);
  const isAlias = primary.length === 1 && primary[0]?.[1].toUpperCase() === "INTEGER";
  const key = primary.map(([column]) => column);
  // What a user declares to be one may be anything.
  const declared = isOwn(name) ? info.filter(([, type]) => type.toUpperCase() === "INTEGER").map(([column]) => column) : [];
  if (withoutRowid) return { name, sql, columns, key, integers: new Set(declared) };
  if (isAlias) return { name, sql, columns, key, integers: new Set([...declared, ...key]) };
  const taken = new Set(columns.map((column) => column.toLowerCase()));
  const free = ["rowid", "oid", "_rowid_"].find((one) => !taken.has(one));
  const rowid = free ?? "rowid";
  return {
    name,
    sql,
    columns: [rowid, ...columns],
    key: [rowid],
    integers: new Set(free === undefined ? declared : [...declared, free]),
  };
}

function isOwn(table: string): boolean {
  return table.startsWith("holdfast_");
}

/** The same as long as no table has changed its shape, and nobody else's trigger was made, changed or removed. */
export function signatureOf(tables: readonly Journaled[], triggers: readonly string[]): string {
  return hash("sha256", JSON.stringify([tables.map(({ name, sql }) => [name, sql]), triggers]));
}

/** The triggers that there are, by their text: the journal's, and those of others. */
export function triggersIn(db: Connection): { ours: string[]; others: string[] } {
  const all = db.prepare("select name, sql from sqlite_schema where type = 'trigger' order by rowid").rows() as string[][];
  // SQLite writes the first words its own way.
  const text = (ours: boolean) =>
    all.flatMap(([name = "", sql = ""]) =>
      name.startsWith(PREFIX) === ours ? [sql.replace(/^create trigger/i, "create trigger")] : [],
    );
  return { ours: text(true), others: text(false) };
}

/** Each change of a row becomes a row of the journal, in the same commit: values as SQL writes them. */
export function triggersOf({ name, key, columns, integers }: Journaled): string[] {
  const [table, text] = [quoted(name), literal(name)];
  const write = isOwn(name) ? plainly : exactly;
  const value = (row: string, column: string) => {
    const one = `${row}.${quoted(column)}`;
    // `quote` costs most of all this.
    return integers.has(column) ? `coalesce(${one}, 'NULL')` : write(one);
  };
  const keyOf = (row: string) => joined(key.map((column) => value(row, column)));
  const changed = columns.map((column) => {
    const [now, before] = [`new.${quoted(column)}`, `old.${quoted(column)}`];
    return `iif(${now} is ${before}, '', ${literal(`,${quoted(column)}=`)} || ${value("new", column)})`;
  });
  const into = "insert into holdfast_changes (kind, name, key, row)";
  return [
    `create trigger ${quoted(`${PREFIX}put_${name}`)} after insert on ${table} begin
  ${into} values ('put', ${text}, null, ${joined(columns.map((column) => value("new", column)))});
end`,
    `create trigger ${quoted(`${PREFIX}set_${name}`)} after update on ${table} begin
  ${into} select 'set', ${text}, ${keyOf("old")}, substr(changed, 2) from (select ${joined(changed, "")} as changed) where changed <> '';
end`,
    `create trigger ${quoted(`${PREFIX}gone_${name}`)} after delete on ${table} begin
  ${into} values ('gone', ${text}, ${keyOf("old")}, null);
end`,
  ];
}

/** In one go, and not one by one, which would copy what is there for each. */
function joined(texts: readonly string[], by = ","): string {
  const [first, ...others] = Array.from({ length: Math.ceil(texts.length / ARGUMENTS) }, (_, i) => {
    return `concat_ws(${literal(by)}, ${texts.slice(i * ARGUMENTS, (i + 1) * ARGUMENTS).join(", ")})`;
  });
  return [first, ...others].join(` || ${literal(by)} || `);
}

/** A function takes no more of them everywhere. */
const ARGUMENTS = 100;

function plainly(value: string): string {
  return `quote(${value})`;
}

/**
 * `quote` ends a text at its first NUL, and a text that is none in its encoding would come back as another: but for plain
 * ASCII, texts are written as their bytes. None of Holdfast's own has such.
 */
function exactly(value: string): string {
  const odd = `typeof(${value}) = 'text' and (instr(${value}, char(0)) or ${value} glob '*[^' || char(1) || '-' || char(127) || ']*')`;
  return `iif(${odd}, 'cast(' || quote(cast(${value} as blob)) || ' as text)', quote(${value}))`;
}

export function dropTriggers(db: Connection): void {
  const names = db
    .prepare("select name from sqlite_schema where type = 'trigger' and substr(name, 1, ?) = ?")
    .rows(PREFIX.length, PREFIX);
  for (const [name] of names) db.exec(`drop trigger ${quoted(name as string)}`);
}

function literal(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}
