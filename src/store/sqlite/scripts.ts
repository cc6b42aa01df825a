import type { Fence } from "../../core/text/ids.ts";
import type { Access, EachParams, Param, Params, Reads, Tx as ScriptTx } from "../sql/access.ts";
import { runSync, type Script, wait } from "../sql/script.ts";
import type { Access as SqliteAccess } from "./access.ts";
import type { Tx } from "./group-commit.ts";
import type { Connection, Named, Statement, Value } from "./driver.ts";

/** What scripts need of a transaction beside what it tells others. */
export type Statements = Pick<
  ScriptTx,
  "all" | "get" | "run" | "returning" | "each" | "eachReturning" | "lock" | "time" | "fence"
>;

/** The transaction that a function of `Statements` is called on. */
interface Self {
  readonly now: number;
  readonly commit: Fence;
  wrote(): void;
}

/** Runs scripts' statements on a connection. Each is prepared once, when it is first used. */
export function statementsOn(db: Connection): Statements {
  const prepared = new Map<string, Prepared>();
  const prepare = (sql: string): Prepared => {
    let found = prepared.get(sql);
    if (found === undefined) prepared.set(sql, (found = { statement: db.prepare(sql), names: namesIn(sql) }));
    return found;
  };
  // Values that are bound by their names take three times as long.
  const positional = new Map<string, Prepared>();
  const prepareEach = (sql: string): Prepared => {
    let found = positional.get(sql);
    if (found === undefined) {
      const names = Array.from(sql.matchAll(NAMES), ([, name]) => name as string);
      positional.set(sql, (found = { statement: db.prepare(sql.replaceAll(NAMES, "?")), names }));
    }
    return found;
  };
  const read = <Row>(self: Self, sql: string, params: Params): Row[] => {
    const { statement, names } = prepare(sql);
    return statement.all<Row>(bind(names, params, self));
  };
  return {
    all<Row>(this: Self, sql: string, params: Params = {}): Script<Row[]> {
      return wait(read<Row>(this, sql, params));
    },
    get<Row>(this: Self, sql: string, params: Params = {}): Script<Row | undefined> {
      const { statement, names } = prepare(sql);
      return wait(statement.get<Row>(bind(names, params, this)));
    },
    run(this: Self, sql: string, params: Params = {}): Script<boolean> {
      const { statement, names } = prepare(sql);
      const changed = statement.runNamed(bind(names, params, this)) > 0;
      if (changed) this.wrote();
      return wait(changed);
    },
    returning<Row>(this: Self, sql: string, params: Params = {}): Script<Row[]> {
      const rows = read<Row>(this, sql, params);
      if (rows.length > 0) this.wrote();
      return wait(rows);
    },
    *each(this: Self, sql: string, rows: readonly EachParams[]): Script<number> {
      if (rows.length === 0) return 0;
      const { statement, names } = prepareEach(sql);
      let changed = 0;
      for (const row of rows) changed += statement.run(...valuesOf(names, row));
      if (changed > 0) this.wrote();
      return yield* wait(changed);
    },
    *eachReturning<Row>(this: Self, sql: string, rows: readonly EachParams[]): Script<Row[]> {
      const returned = rows.flatMap((row) => read<Row>(this, sql, row));
      if (returned.length > 0) this.wrote();
      return yield* wait(returned);
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

/** Lets scripts read and write through the store's group commit, where nothing may wait. */
export function scriptAccess(statements: Statements, access: SqliteAccess): Access {
  return {
    read: (script) => access.read(() => runSync(script(readsAt(statements, access.now())))),
    write: (operation, script) => access.write(operation, (tx) => runSync(script(tx))),
  };
}

/** Reads outside of a transaction, as of one instant. */
export function readsAt({ all, get, time }: Statements, now: number): Reads {
  return { now, all, get, time } as Reads;
}

/** The statements of a transaction that the caller has begun outside of any group commit. */
export function txOn(db: Connection, now: number, commit = 0 as Fence): Tx {
  return { ...statementsOn(db), now, commit, wrote: () => {} } as unknown as Tx;
}

interface Prepared {
  statement: Statement;
  names: readonly string[];
}

const NAMES = /:([a-z]\w*)/gi;

function namesIn(sql: string): string[] {
  return [...new Set(Array.from(sql.matchAll(NAMES), ([, name]) => name as string))];
}

function bind(names: readonly string[], params: Params, { now, commit }: Self): Named {
  const named: Named = {};
  for (const name of names) {
    named[name] = name === "now" || name === "clock" ? now : name === "commit" ? commit : toValue(params[name]);
  }
  return named;
}

function valuesOf(names: readonly string[], row: EachParams): Value[] {
  const values: Value[] = [];
  for (const name of names) values.push(toValue(row[name]));
  return values;
}

function toValue(param: Param | undefined): Value {
  if (param === undefined) throw new Error("A parameter of a statement is missing.");
  if (typeof param === "boolean") return param ? 1 : 0;
  return typeof param === "object" && param !== null ? JSON.stringify(param) : param;
}
