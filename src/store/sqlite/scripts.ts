import type { Fence } from "../../core/text/ids.ts";
import type { Operation } from "../points.ts";
import type { AuditGuards } from "../sql/audit.ts";
import {
  type Access,
  type Dialect,
  type EachParams,
  pairOf,
  type Param,
  type Params,
  type Reads,
  runSync,
  type Script,
  type Tx as ScriptTx,
  wait,
} from "../sql/script.ts";
import { rowChecksum } from "./checksum.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { GUARDS } from "./schema.ts";

export type Statements = Pick<
  ScriptTx,
  "all" | "get" | "run" | "returning" | "each" | "eachReturning" | "send" | "sendEach" | "lock" | "time" | "fence"
>;

interface Self {
  readonly now: number;
  readonly commit: Fence;
  wrote(): void;
}

/** Runs scripts' statements on a connection. Each is prepared when it is first used. */
export function statementsOn(db: Connection): Statements {
  const prepared = new Map<string, Prepared>();
  const prepare = (sql: string): Prepared => {
    let found = prepared.get(sql);
    // Binding by name takes three times as long.
    if (found === undefined)
      prepared.set(sql, (found = { statement: db.prepare(sql.replaceAll(NAMES, "?")), names: namesIn(sql) }));
    return found;
  };
  const read = <Row>(self: Self, sql: string, params: Params): Row[] => {
    const { statement, names } = prepare(sql);
    return statement.all<Row>(...valuesOf(names, params, self));
  };
  const runAll = (self: Self, sql: string, rows: readonly Params[]): number => {
    if (rows.length === 0) return 0;
    const { statement, names } = prepare(sql);
    let changed = 0;
    for (const row of rows) changed += statement.run(...valuesOf(names, row, self));
    if (changed > 0) self.wrote();
    return changed;
  };
  return {
    all<Row>(this: Self, sql: string, params: Params = {}): Script<Row[]> {
      return wait(read<Row>(this, sql, params));
    },
    get<Row>(this: Self, sql: string, params: Params = {}): Script<Row | undefined> {
      const { statement, names } = prepare(sql);
      return wait(statement.get<Row>(...valuesOf(names, params, this)));
    },
    run(this: Self, sql: string, params: Params = {}): Script<boolean> {
      return wait(runAll(this, sql, [params]) > 0);
    },
    returning<Row>(this: Self, sql: string, params: Params = {}): Script<Row[]> {
      const rows = read<Row>(this, sql, params);
      if (rows.length > 0) this.wrote();
      return wait(rows);
    },
    *each(this: Self, sql: string, rows: readonly EachParams[]): Script<number> {
      return yield* wait(runAll(this, sql, rows));
    },
    *eachReturning<Row>(this: Self, sql: string, rows: readonly EachParams[]): Script<Row[]> {
      const returned = rows.flatMap((row) => read<Row>(this, sql, row));
      if (returned.length > 0) this.wrote();
      return yield* wait(returned);
    },
    send(this: Self, sql: string, params: Params) {
      runAll(this, sql, [params]);
    },
    sendEach(this: Self, sql: string, rows: readonly EachParams[]) {
      runAll(this, sql, rows);
    },
    lock: () => wait(undefined),
    time(this: Self): Script<number> {
      return wait(this.now);
    },
    fence(this: Self): Script<Fence> {
      return wait(this.commit);
    },
  };
}

export function scriptAccess(statements: Statements, access: StoreAccess): Access {
  return {
    read: (script) => access.read(() => runSync(script(readsAt(statements, access.now())))),
    write: (operation, script) => access.write(operation, (tx) => runSync(script(tx))),
  };
}

export function readsAt({ all, get, time }: Statements, now: number): Reads {
  return { now, all, get, time } as Reads;
}

/** For a transaction that the caller has begun without the group commit. */
export function txOn(db: Connection, now: number, commit = 0 as Fence): Tx {
  return { ...statementsOn(db), now, commit, wrote: () => {} } as unknown as Tx;
}

interface Prepared {
  statement: Statement;
  names: readonly string[];
}

const NAMES = /:([a-z]\w*)/gi;

function namesIn(sql: string): string[] {
  return Array.from(sql.matchAll(NAMES), ([, name]) => name as string);
}

function valuesOf(names: readonly string[], params: Params, { now, commit }: Self): Value[] {
  const values: Value[] = [];
  for (const name of names)
    values.push(name === "now" || name === "clock" ? now : name === "commit" ? commit : toValue(params[name]));
  return values;
}

function toValue(param: Param | undefined): Value {
  if (param === undefined) throw new Error("A parameter of a statement is missing.");
  if (typeof param === "boolean") return param ? 1 : 0;
  return typeof param === "object" && param !== null ? JSON.stringify(param) : param;
}

/** Each write is one atomic unit, which may share its commit with others. */
export interface StoreAccess {
  now(): number;
  read<T>(run: () => T): Promise<T>;
  write<T>(operation: Operation, run: (tx: Tx) => T): Promise<T>;
}

export const DIALECT: Dialect = {
  table: (name) => `holdfast_${name}`,
  in: (value, _, list) => `${value} in (select value from json_each(${list}))`,
  items: (_, list) => `(select key as place, value from json_each(${list}))`,
  rows: (json, columns) =>
    `(select ${Object.keys(columns).map((name) => `value ->> '${name}' as "${name}"`)} from json_each(${json}))`,
  // Without it SQLite reads a whole segment by its primary key.
  indexed: (index) => ` indexed by holdfast_${index}`,
  firstRow: (table, as, which) =>
    `cross join ${table} as ${as} on ${as}.key = (select one.key from ${table} as one ${which} limit 1)`,
  inOrder: (...statements) => ({ before: statements.slice(0, -1), last: statements.at(-1) as string }),
  each: (columns, write) => {
    const names = Object.keys(columns);
    return write({
      value: (name) => `:${name}`,
      // Half again as fast as `select`.
      inserted: `values (${names.map((name) => `:${name}`).join(", ")})`,
      from: (tables) => (tables === undefined ? "" : `from ${tables}`),
      using: "",
      is: (table, ...same) =>
        same
          .map(pairOf)
          .map(([column, name]) => `${table}.${column} = :${name}`)
          .join(" and "),
    });
  },
  deleteEach: (table, columns) =>
    `delete from ${table} where ${Object.keys(columns)
      .map((name) => `${name} = :${name}`)
      .join(" and ")}`,
  updateEach: (table, set) => `update ${table} set ${Object.keys(set).map((name) => `${name} = :${name}`)} where id = :id`,
  fence: ":commit",
  locking: "",
  lockingOf: () => "",
  // SQLite's own `max` is null if one of them is.
  greatest: (a, b) => `max(${a}, coalesce(${b}, ${a}))`,
  least: (a, b) => `min(${a}, ${b})`,
  isFalse: (column) => `${column} = 0`,
  byBytes: (text) => text,
  jsonRows: (columns, from, order) =>
    `(select json_group_array(json_array(${columns.join(", ")}) order by ${order}) from ${from})`,
  overriding: "",
  // A deleted row's key is not given out again.
  nextKey: (table) => `select coalesce((select seq from sqlite_sequence where name = 'holdfast_${table}'), 0) + 1 as next`,
  running: "(select key, fence, holder, lease, expires_at, expires_at as bound from holdfast_jobs where state = 'running')",
  heldBy: (processes) => `(select count(*) from holdfast_jobs
    where state = 'running' and holder in (select value from json_each(${processes})))`,
  checksum: rowChecksum,
};

/** Compares each trigger with the text that created it. */
export const AUDIT_GUARDS: AuditGuards = {
  sql: `
    select guard.value ->> 'name' as name from json_each(:guards) as guard
    where not exists (
      select 1 from sqlite_master
      where type = 'trigger' and name = guard.value ->> 'name' and sql = guard.value ->> 'sql')
    order by guard.key`,
  params: { guards: JSON.stringify(GUARDS) },
};
