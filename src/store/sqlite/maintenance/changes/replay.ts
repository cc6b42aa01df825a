import { hash } from "node:crypto";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { column, type Connection, quoted } from "../../driver.ts";
import { type Change, readSegment, segmentsIn } from "./segments.ts";

/** A change at the end of a database's own journal. "unseen": something was changed that the journal does not contain. */
export type TailChange = Change | { seq: number; kind: "unseen"; at: null };

export interface Replay {
  folder: string;
  databaseId: string;
  epoch: number;
  after: number;
  at: number;
  /** Changes that no file contains yet, if the database can be read. */
  tail: readonly TailChange[];
  /** The number of the last change, if the database can be read. */
  newest: number | null;
  /** True: the database was restored or salvaged since. Later changes were made to another database. */
  over: boolean;
}

export interface Replayed {
  reached: number | null;
  changes: number;
}

interface End {
  seq: number;
  at: number | null;
  /** Why the journal breaks off. Null: nothing more has happened. */
  broken: string | null;
  whole: number | null;
}

/** Switches constraints and cascades off, so that a replay writes rows as they were. Call it before the transaction. */
export function withoutRules(db: Connection): void {
  db.exec("pragma foreign_keys = off");
  db.exec("pragma ignore_check_constraints = on");
}

export function replay(db: Connection, replay: Replay, onProgress: (done: number, total: number) => void): Replayed {
  const { seq, at, broken, whole } = endOf(replay);
  if (broken !== null) throw gap(broken, whole);
  const tables = new Map(journaled(db).tables.map((table) => [table.name, table]));
  let done = 0;
  // Without triggers, because the journal contains the changes that they made.
  withoutTriggers(db, () => {
    for (const change of changesAfter(replay)) {
      if (change === "damaged" || change.kind === "unseen") continue;
      if (change.seq > seq) break;
      const sql = statementOf(change, tables);
      if (sql === null) continue;
      db.exec(sql);
      if (++done % 1_000 === 0) onProgress(change.seq - replay.after, seq - replay.after);
    }
  });
  return { reached: at, changes: done };
}

export function withoutTriggers<T>(db: Connection, run: () => T): T {
  const triggers = db.prepare("select name, sql from sqlite_schema where type = 'trigger'").rows() as [string, string][];
  for (const [name] of triggers) db.exec(`drop trigger ${quoted(name)}`);
  const result = run();
  for (const [, sql] of triggers) db.exec(sql);
  return result;
}

/** Finds the change to stop at: the end of the last commit up to the given instant. Later changes may be broken. */
function endOf({ at, after, over, ...where }: Replay): End {
  const end: End = { seq: after, at: null, broken: null, whole: null };
  // An unseen change was made after the last "drained".
  let drained: Pick<End, "seq" | "at"> = { seq: after, at: null };
  let [last, damaged] = [after, false];
  const broken = (why: string): End => (at <= (end.whole ?? 0) ? end : { ...end, broken: why });
  for (const change of changesAfter({ at, after, over, ...where })) {
    if (change === "damaged") {
      damaged = true;
      continue;
    }
    if (change.seq > last + 1) return broken(`changes ${last + 1} to ${change.seq - 1} are missing`);
    [last, damaged] = [change.seq, false];
    if (change.kind === "gap" || change.kind === "unseen") {
      return end.seq <= drained.seq ? broken(UNSEEN) : { ...drained, broken: UNSEEN, whole: drained.at };
    }
    if (change.at === null || (change.kind !== "commit" && change.kind !== "drained")) continue;
    if (change.kind === "drained") drained = { seq: change.seq, at: change.at };
    end.whole = Math.max(end.whole ?? 0, change.at);
    if (change.at <= at) Object.assign(end, { seq: change.seq, at: change.at });
  }
  if (where.newest !== null && last < where.newest) return broken(`changes ${last + 1} to ${where.newest} are missing`);
  if (damaged) return broken("a file of it is damaged");
  return over ? broken("the database was restored or salvaged after that") : end;
}

const UNSEEN = "tables or triggers were changed, or the journal was switched off or on";

function* changesAfter({ folder, databaseId, epoch, after, tail }: Replay): Generator<TailChange | "damaged"> {
  let last = after;
  const isNew = ({ seq, kind }: TailChange) => {
    // Skip changes that a process wrote twice, because one died while draining. "drained" and "unseen" have the last number.
    const isMark = kind === "drained" || kind === "unseen";
    const yes = isMark ? seq >= last && (seq > after || kind === "unseen") : seq > last;
    if (yes) last = seq;
    return yes;
  };
  const segments = segmentsIn(folder, databaseId, epoch);
  for (const [i, { path }] of segments.entries()) {
    const next = segments[i + 1];
    if (next !== undefined && next.after <= after) continue;
    const { changes, damaged } = readSegment(path);
    yield* changes.filter(isNew);
    if (damaged) yield "damaged";
  }
  yield* tail.filter(isNew);
}

const VALUE = `(?:NULL|cast\\(X'[0-9A-Fa-f]*' as text\\)|-?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|'[^']*(?:''[^']*)*'|X'[0-9A-Fa-f]*')`;
const VALUES = new RegExp(`^${VALUE}(?:,${VALUE})*$`);
const SETTINGS = new RegExp(`^"[^"]*(?:""[^"]*)*"=${VALUE}(?:,"[^"]*(?:""[^"]*)*"=${VALUE})*$`);

/** Returns the SQL of a change, which takes only values from the journal's files. Null: the change has none. */
function statementOf({ kind, name, key, row }: Change, tables: ReadonlyMap<string, TableShape>): string | null {
  if (kind === "commit" || kind === "drained" || kind === "gap") return null;
  const table = tables.get(name ?? "");
  if (table === undefined) throw gap(`there is no table ${String(name)} in the backup`, null);
  const found = `(${table.key.map(quoted).join(", ")}) = (${checked(VALUES, key, kind !== "put")})`;
  switch (kind) {
    case "put":
      return `insert or replace into ${quoted(table.name)} (${table.columns.map(quoted).join(", ")}) values (${checked(VALUES, row)})`;
    case "set":
      // Replace conflicting rows, as the original update did.
      return `update or replace ${quoted(table.name)} set ${checked(SETTINGS, row)} where ${found}`;
    case "gone":
      return `delete from ${quoted(table.name)} where ${found}`;
  }
}

function checked(form: RegExp, text: string | null, needed = true): string {
  if (!needed) return "";
  if (text === null || !form.test(text)) throw gap("a change is not written as changes are", null);
  return text;
}

function gap(why: string, whole: number | null): HoldfastError {
  const until = whole === null ? "" : ` It is whole up to ${new Date(whole).toISOString()}.`;
  return new HoldfastError(
    "JOURNAL_GAP",
    `The journal does not reach from that backup to that instant: ${why}.${until} Nothing was changed.`,
    "Give an earlier instant or a later backup, or restore a backup alone, without --at.",
  );
}

export interface TableShape {
  name: string;
  type: "table" | "virtual" | "shadow";
  sql: string;
  hasRowids: boolean;
  /** Columns of the primary key, or the rowid. */
  key: string[];
  columns: string[];
  /** Columns that hold integers or null and never anything else. */
  integers: ReadonlySet<string>;
}

const OWN = new Set(["holdfast_changes", "holdfast_journal"]);
const PREFIX = "holdfast_change_";

/** Returns every table, also the user's. `uncovered`: virtual tables, whose rows no trigger sees. */
export function journaled(db: Connection): { tables: TableShape[]; uncovered: string[] } {
  const all = tableShapes(db).filter(({ name }) => !OWN.has(name));
  return {
    tables: all.filter(({ type }) => type === "table"),
    uncovered: all.filter(({ type }) => type === "virtual").map(({ name }) => name),
  };
}

export function tableShapes(db: Connection): TableShape[] {
  const rows = db
    .prepare(
      `select list.name, list.type, list.wr, entry.sql from pragma_table_list as list
         join sqlite_schema as entry on entry.name = list.name and entry.type = 'table'
       where list.schema = 'main' and list.name not like 'sqlite\\_%' escape '\\' order by list.name`,
    )
    .rows() as [string, TableShape["type"], number, string][];
  return rows.map(([name, type, wr, sql]) => shapeOf(db, { name, type, sql, hasRowids: wr === 0 }));
}

function shapeOf(db: Connection, table: Pick<TableShape, "name" | "type" | "sql" | "hasRowids">): TableShape {
  const info = db.prepare("select name, type, pk from pragma_table_xinfo(?) where hidden = 0 order by cid").rows(table.name) as [
    string,
    string,
    number,
  ][];
  const columns = info.map(([column]) => column);
  const primary = info.filter(([, , pk]) => pk > 0).toSorted((a, b) => a[2] - b[2]);
  const isAlias = primary.length === 1 && primary[0]?.[1].toUpperCase() === "INTEGER";
  const key = primary.map(([column]) => column);
  // A column that a user declares as an integer may hold anything.
  const declared = isOwn(table.name) ? info.filter(([, type]) => type.toUpperCase() === "INTEGER").map(([column]) => column) : [];
  if (!table.hasRowids) return { ...table, columns, key, integers: new Set(declared) };
  if (isAlias) return { ...table, columns, key, integers: new Set([...declared, ...key]) };
  const taken = new Set(columns.map((column) => column.toLowerCase()));
  const free = ["rowid", "oid", "_rowid_"].find((one) => !taken.has(one));
  const rowid = free ?? "rowid";
  const integers = new Set(free === undefined ? declared : [...declared, free]);
  return { ...table, columns: [rowid, ...columns], key: [rowid], integers };
}

function isOwn(table: string): boolean {
  return table.startsWith("holdfast_");
}

/** Returns a hash that changes if a table changes its shape, or a user's trigger is added, changed or removed. */
export function signatureOf(tables: readonly TableShape[], triggers: readonly string[]): string {
  return hash("sha256", JSON.stringify([tables.map(({ name, sql }) => [name, sql]), triggers]));
}

export function triggersIn(db: Connection): { ours: string[]; others: string[] } {
  const all = db.prepare("select name, sql from sqlite_schema where type = 'trigger' order by rowid").rows() as string[][];
  // Undo what SQLite changes: it stores the first words in upper case.
  const text = (ours: boolean) =>
    all.flatMap(([name = "", sql = ""]) =>
      name.startsWith(PREFIX) === ours ? [sql.replace(/^create trigger/i, "create trigger")] : [],
    );
  return { ours: text(true), others: text(false) };
}

/** Returns triggers that write each change of a row to the journal in the same commit, with its values as SQL literals. */
export function triggersOf({ name, key, columns, integers }: TableShape): string[] {
  const [table, text] = [quoted(name), literal(name)];
  const write = isOwn(name) ? (one: string) => `quote(${one})` : quoteExactly;
  const value = (row: string, column: string) => {
    const one = `${row}.${quoted(column)}`;
    // Avoid `quote` where possible, because it is the most expensive part.
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

/** Joins texts by one function, because repeated `||` would copy the text for each part. */
function joined(texts: readonly string[], by = ","): string {
  const [first, ...others] = Array.from({ length: Math.ceil(texts.length / ARGUMENTS) }, (_, i) => {
    return `concat_ws(${literal(by)}, ${texts.slice(i * ARGUMENTS, (i + 1) * ARGUMENTS).join(", ")})`;
  });
  return [first, ...others].join(` || ${literal(by)} || `);
}

const ARGUMENTS = 100;

// `quote` ends a text at its first NUL and changes invalid texts, so texts other than plain ASCII are written as bytes.
function quoteExactly(value: string): string {
  const odd = `typeof(${value}) = 'text' and (instr(${value}, char(0)) or ${value} glob '*[^' || char(1) || '-' || char(127) || ']*')`;
  return `iif(${odd}, 'cast(' || quote(cast(${value} as blob)) || ' as text)', quote(${value}))`;
}

export function dropTriggers(db: Connection): void {
  const sql = "select name from sqlite_schema where type = 'trigger' and substr(name, 1, ?) = ?";
  for (const name of column<string>(db, sql, PREFIX.length, PREFIX)) db.exec(`drop trigger ${quoted(name)}`);
}

function literal(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}
