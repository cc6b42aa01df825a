import { hash } from "node:crypto";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { type Connection, quoted } from "../../driver.ts";
import { type Change, readSegment, segmentsIn } from "./segments.ts";

/** What a database that is there can still say of its journal ends with: `unseen`, that something was done which is not in it. */
export type TailChange = Change | { seq: number; kind: "unseen"; at: null };

export interface Replay {
  /** Where the journal's files are, and whose. */
  folder: string;
  databaseId: string;
  epoch: number;
  /** What the backup holds already. */
  after: number;
  /** Commits up to this instant are made again. */
  at: number;
  /** What was not in a file yet: read in the database itself, where that could be read. */
  tail: readonly TailChange[];
  /** The last that was ever written down, where the database itself can still say so. */
  newest: number | null;
  /** The database was restored or salvaged since: what was done after the end of this journal, was done to another. */
  over: boolean;
  /** As far as it leads is good enough. */
  partly?: boolean;
}

export interface Replayed {
  /** When the last commit that is in it was made; null: none after the backup. */
  reached: number | null;
  changes: number;
}

interface End {
  seq: number;
  at: number | null;
  /** Why it is not known how it went on; null: nothing more has happened. */
  broken: string | null;
  /** When the last commit was made before it broke. */
  whole: number | null;
}

/** Before the transaction is begun: rows are put back as they were, whether or not a rule lets them in, or takes others along. */
export function withoutRules(db: Connection): void {
  db.exec("pragma foreign_keys = off");
  db.exec("pragma ignore_check_constraints = on");
}

/** Makes again what was done after a backup, commit by commit, in the transaction that is open. */
export function replay(db: Connection, replay: Replay, tell: (done: number, total: number) => void): Replayed {
  const { seq, at, broken, whole } = endOf(replay);
  if (broken !== null && !replay.partly) throw gap(broken, whole);
  const tables = new Map(journaled(db).tables.map((table) => [table.name, table]));
  const triggers = db.prepare("select name, sql from sqlite_schema where type = 'trigger'").rows() as [string, string][];
  // What they did is in the journal, too.
  for (const [name] of triggers) db.exec(`drop trigger ${quoted(name)}`);
  let done = 0;
  for (const change of changesAfter(replay)) {
    if (change === "damaged" || change.kind === "unseen") continue;
    if (change.seq > seq) break;
    const sql = statementOf(change, tables);
    if (sql === null) continue;
    db.exec(sql);
    if (++done % 1_000 === 0) tell(change.seq - replay.after, seq - replay.after);
  }
  for (const [, sql] of triggers) db.exec(sql);
  return { reached: at, changes: done };
}

/** Up to which change: the last end of a commit that is not later. What is later need not be whole. */
function endOf({ at, after, over, ...where }: Replay): End {
  const end: End = { seq: after, at: null, broken: null, whole: null };
  // Where something was done unseen, it was done after the last of these.
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
      if (end.seq <= drained.seq) return broken(UNSEEN);
      return { ...drained, broken: UNSEEN, whole: drained.at };
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
    // A drainer that died wrote some of them twice. What is said of all before it has the number of the last.
    const isSaid = kind === "drained" || kind === "unseen";
    const yes = isSaid ? seq >= last && (seq > after || kind === "unseen") : seq > last;
    if (yes) last = seq;
    return yes;
  };
  const segments = segmentsIn(folder, databaseId, epoch);
  for (const [i, { path }] of segments.entries()) {
    const next = segments[i + 1];
    if (next !== undefined && next.head.after <= after) continue;
    const { changes, damaged } = readSegment(path);
    yield* changes.filter(isNew);
    if (damaged) yield "damaged";
  }
  yield* tail.filter(isNew);
}

const VALUE = `(?:NULL|cast\\(X'[0-9A-Fa-f]*' as text\\)|-?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|'[^']*(?:''[^']*)*'|X'[0-9A-Fa-f]*')`;
const VALUES = new RegExp(`^${VALUE}(?:,${VALUE})*$`);
const SETTINGS = new RegExp(`^"[^"]*(?:""[^"]*)*"=${VALUE}(?:,"[^"]*(?:""[^"]*)*"=${VALUE})*$`);

/** Null: nothing is to be done. Nothing but values is taken from the journal's files. */
function statementOf({ kind, name, key, row }: Change, tables: ReadonlyMap<string, Journaled>): string | null {
  if (kind === "commit" || kind === "drained" || kind === "gap") return null;
  const table = tables.get(name ?? "");
  if (table === undefined) throw gap(`there is no table ${String(name)} in the backup`, null);
  const found = `(${table.key.map(quoted).join(", ")}) = (${checked(VALUES, key, kind !== "put")})`;
  switch (kind) {
    case "put":
      return `insert or replace into ${quoted(table.name)} (${table.columns.map(quoted).join(", ")}) values (${checked(VALUES, row)})`;
    case "set":
      // As it was done: what was in its way then went without a word.
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

/** A table whose rows are journaled: by what a row is found, and what it holds. */
interface Journaled {
  name: string;
  sql: string;
  /** Columns, or the rowid where no column is it. */
  key: string[];
  columns: string[];
  /** Those of them that hold whole numbers, or nothing, and never anything else. */
  integers: ReadonlySet<string>;
}

/** What the journal itself is made of. */
const OWN = new Set(["holdfast_changes", "holdfast_journal"]);
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
  const ours = rows.filter(([name]) => !OWN.has(name));
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

/** The same as long as no table has changed its shape, and no other program's trigger was made, changed or removed. */
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
