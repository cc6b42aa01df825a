import type { Fence } from "../../core/text/ids.ts";
import {
  type Access,
  type Dialect,
  type EachParams,
  pairOf,
  type Param,
  type Params,
  type Reads,
  runAsync,
  type Script,
  type Tx as AnyTx,
  wait,
} from "../sql/script.ts";
import type { NewJob } from "../store.ts";
import { listOf, placeIn, type Rows, type Value } from "./connection/driver.ts";
import type { Access as PostgresAccess, Tx } from "./transactions/transaction.ts";

interface Statement {
  text: string;
  names: readonly string[];
}

interface Sender {
  readonly at: number | null;
  readonly rows: Rows;
}

const ENDINGS = { all: "", run: " returning 1", lock: " for no key update" } as const;

/** A statement that joins a list with a table compares each row with each other, so longer lists are sent in parts. */
const MAX_JOINED_ROWS = 40;

/** Runs the statements of scripts. Parameters are numbered; `:now` is an instant that the server reads once per statement. */
export class Statements {
  readonly #clock: string;
  readonly #clockOfRow: string;
  readonly nextFence: string;
  readonly #known = { all: new Map<string, Statement>(), run: new Map<string, Statement>(), lock: new Map<string, Statement>() };

  constructor(schema: string) {
    this.nextFence = `select nextval('${schema}.fence') as next`;
    this.#clockOfRow = `${schema}.clock(:now)`;
    this.#clock = `clock as materialized (select ${schema}.clock(:now) as now)`;
  }

  rows<Row>({ rows, at }: Sender, how: keyof typeof ENDINGS, sql: string, params: Params = {}): Script<Row[]> {
    const { text, names } = this.#statement(how, sql);
    const values = names.map((name) => (name === "now" ? at : toValue(params[name])));
    return objects<Row>(rows(text, ...values));
  }

  *each<Row>({ rows: send }: Sender, how: keyof typeof ENDINGS, sql: string, rows: readonly EachParams[]): Script<Row[]> {
    const { text, names } = this.#statement(how, sql);
    const most = /\band \w+\.\w+ = given\.\w/.test(sql) ? MAX_JOINED_ROWS : rows.length;
    const sent: Promise<unknown[][]>[] = [];
    for (let from = 0; from < rows.length; from += most) {
      const some = rows.slice(from, from + most);
      sent.push(send(text, ...names.map((name) => listOf(some.map((row) => cellOf(row[name]))))));
    }
    return ((yield Promise.all(sent)) as Answered[]).flatMap((answer) => named<Row>(answer));
  }

  findEach<Row>(sender: Sender, sql: string, rows: readonly EachParams[]): Script<Row[]> {
    return rows.length === 0 ? wait<Row[]>([]) : this.each<Row>(sender, "all", sql, rows);
  }

  reads(sender: Sender): Reads {
    const all = <Row>(sql: string, params?: Params) => this.rows<Row>(sender, "all", sql, params);
    return {
      all,
      get: (sql, params) => first(all(sql, params)),
      findEach: (sql, rows) => this.findEach(sender, sql, rows),
      time: () => this.#time(sender),
    };
  }

  *#time(sender: Sender): Script<number> {
    if (sender.at !== null) return sender.at;
    const [row] = yield* this.rows<{ now: number }>(sender, "all", "select :now as now");
    return (row as { now: number }).now;
  }

  #statement(how: keyof typeof ENDINGS, sql: string): Statement {
    const known = this.#known[how];
    let statement = known.get(sql);
    if (statement === undefined) known.set(sql, (statement = numbered(this.#timed(sql.trim()) + ENDINGS[how])));
    return statement;
  }

  #timed(sql: string): string {
    if (!/:(now|clock)\b/.test(sql)) return sql;
    const timed = sql.replaceAll(/:now\b/g, "(select now from clock)").replaceAll(/:clock\b/g, this.#clockOfRow);
    if (!/:now\b/.test(sql)) return timed;
    const [, begin, rest] = /^(with recursive |with )?(.*)$/s.exec(timed) as unknown as [string, string | undefined, string];
    return begin === undefined ? `with ${this.#clock} ${rest}` : `${begin}${this.#clock}, ${rest}`;
  }
}

export abstract class ScriptTx implements Sender, Omit<AnyTx, "ready" | "ended"> {
  abstract readonly at: number | null;
  abstract readonly rows: Rows;
  abstract now(): Promise<number>;
  abstract wrote(): void;
  readonly #statements: Statements;

  constructor(statements: Statements) {
    this.#statements = statements;
  }

  all<Row>(sql: string, params?: Params): Script<Row[]> {
    return this.#statements.rows<Row>(this, "all", sql, params);
  }

  get<Row>(sql: string, params?: Params): Script<Row | undefined> {
    return first(this.all<Row>(sql, params));
  }

  findEach<Row>(sql: string, rows: readonly EachParams[]): Script<Row[]> {
    return this.#statements.findEach<Row>(this, sql, rows);
  }

  run(sql: string, params?: Params): Script<boolean> {
    return isAny(this.#wrote(this.#statements.rows(this, "run", sql, params)));
  }

  returning<Row>(sql: string, params?: Params): Script<Row[]> {
    return this.#wrote(this.all<Row>(sql, params));
  }

  *each(sql: string, rows: readonly EachParams[]): Script<number> {
    if (rows.length === 0) return 0;
    return (yield* this.#wrote(this.#statements.each(this, "run", sql, rows))).length;
  }

  *eachReturning<Row>(sql: string, rows: readonly EachParams[]): Script<Row[]> {
    return rows.length === 0 ? [] : yield* this.#wrote(this.#statements.each<Row>(this, "all", sql, rows));
  }

  send(sql: string, params: Params): void {
    this.#send(this.all(sql, params));
  }

  sendEach(sql: string, rows: readonly EachParams[]): void {
    if (rows.length > 0) this.#send(this.#statements.each(this, "all", sql, rows));
  }

  #send(script: Script<unknown>): void {
    this.wrote();
    runAsync(script).catch(() => {});
  }

  lock(select: string, params?: Params): Script<unknown> {
    return this.#statements.rows(this, "lock", select, params);
  }

  *fence(): Script<Fence> {
    const [row] = yield* this.#statements.rows<{ next: Fence }>(this, "all", this.#statements.nextFence);
    return (row as { next: Fence }).next;
  }

  time(): Script<number> {
    return wait(this.now());
  }

  *#wrote<Row>(rows: Script<Row[]>): Script<Row[]> {
    const changed = yield* rows;
    if (changed.length > 0) this.wrote();
    return changed;
  }
}

function* first<Row>(rows: Script<Row[]>): Script<Row | undefined> {
  return (yield* rows)[0];
}

function* isAny(rows: Script<unknown[]>): Script<boolean> {
  return (yield* rows).length > 0;
}

interface Before {
  limits: {
    queuesOf(jobs: readonly NewJob[]): string[];
    lock(tx: Tx, queues: readonly string[]): Promise<unknown>;
  };
  buildsLock: { take(tx: Tx): Promise<void> };
  settings: { refresh(tx: Tx): Promise<void> };
}

export function scriptAccess(statements: Statements, access: PostgresAccess, { limits, buildsLock, settings }: Before): Access {
  return {
    read: (script) => runAsync(script(statements.reads({ rows: access.read, at: access.at() }))),
    write: (operation, script, { row, builds = false, jobs = [] } = {}) => {
      const run = async (tx: Tx) => {
        if (builds) {
          await limits.lock(tx, limits.queuesOf(jobs));
          await buildsLock.take(tx);
          await settings.refresh(tx);
        }
        return runAsync(script(tx));
      };
      return access.write(operation, run, row === undefined ? {} : { row });
    },
  };
}

function numbered(sql: string): Statement {
  const names: string[] = [];
  const text = sql.replaceAll(/(?<!:):([a-z]\w*)/gi, (_, name: string) => {
    if (!names.includes(name)) names.push(name);
    return `$${names.indexOf(name) + 1}`;
  });
  return { text, names };
}

type Answered = (readonly unknown[])[] & { columns?: readonly { name: string }[] };

function* objects<Row>(answer: Promise<unknown[][]>): Script<Row[]> {
  return named<Row>((yield answer) as Answered);
}

export function named<Row>(rows: Answered): Row[] {
  const names = rows.columns?.map(({ name }) => name) ?? [];
  return rows.map((row) => {
    const object: Record<string, unknown> = {};
    // The loop is several times as fast as `Object.fromEntries`.
    for (let i = 0; i < names.length; i++) object[names[i] as string] = row[i];
    return object as Row;
  });
}

function cellOf(cell: EachParams[string] | undefined): EachParams[string] {
  if (cell === undefined) throw new Error("A column of a row is missing.");
  return cell;
}

function toValue(param: Param | undefined): Value {
  if (param === undefined) throw new Error("A parameter of a statement is missing.");
  return typeof param === "object" && param !== null ? listOf(param) : param;
}

export function dialectOf(s: string): Dialect {
  return {
    table: (name) => `${s}.${name}`,
    in: (value, type, list) => `${value} = any(cast(${list} as ${type}[]))`,
    items: (type, list) =>
      `(select place - 1 as place, value from unnest(cast(${list} as ${type}[])) with ordinality as item (value, place))`,
    rows: (json, columns) => {
      const typed = Object.entries(columns).map(([name, type]) => `"${name}" ${type}`);
      return `(select * from json_to_recordset(cast(${json} as json)) as item (${typed}))`;
    },
    indexed: () => "",
    firstRow: (table, as, which) => `cross join lateral (select one.* from ${table} as one ${which} limit 1) as ${as}`,
    inOrder: (...statements) => {
      const steps = statements.slice(0, -1).map((statement, i) => `step${i} as (${statement})`);
      return { before: [], last: `with ${steps} ${statements.at(-1)}` };
    },
    each: (columns, write) => {
      const names = Object.keys(columns);
      const list = (name: string) => `cast(:${name} as ${columns[name]}[])`;
      const rows = `unnest(${names.map(list).join(", ")}) as given (${names.join(", ")})`;
      return write({
        value: (name) => `given.${name}`,
        inserted: `select * from ${rows}`,
        from: (tables) => (tables === undefined ? `from ${rows}` : `from ${rows}, ${tables}`),
        using: `using ${rows}`,
        is: (table, ...same) => {
          const equal = ([column, name]: readonly [string, string]) =>
            `${table}.${column} = any(${list(name)}) and ${table}.${column} = given.${name}`;
          return same.map(pairOf).map(equal).join(" and ");
        },
        locked: (table, ...key) => `
          from (
            select given.*, found.ctid as spot from ${rows} cross join lateral (
              select ctid from ${table} where (${key}) = (${key.map((name) => `given.${name}`)}) offset 0) as found) as given
          where given.spot = target.ctid`,
      });
    },
    // Each row is found by itself: for a join, the planner would scan the table or compare each row with each other.
    deleteEach: (table, columns) => {
      const names = Object.keys(columns);
      const lists = Object.entries(columns).map(([name, type]) => `cast(:${name} as ${type}[])`);
      return `delete from ${table} where ctid = any(array(
        select found.ctid from unnest(${lists}) as given (${names}) cross join lateral (
          select ctid from ${table} where (${names}) = (${names.map((name) => `given.${name}`)}) offset 0) as found))`;
    },
    updateEach: (table, set) => {
      const value = ([name, type]: [string, string]) => `(cast(:${name} as ${type}[]))[${placeIn(`${table}.id`, ":id")}]`;
      return `update ${table} set ${Object.entries(set).map((column) => `${column[0]} = ${value(column)}`)}
        where id = any(cast(:id as bigint[]))`;
    },
    fence: `nextval('${s}.fence')`,
    locking: " for no key update",
    lockingOf: (alias) => ` for no key update of ${alias}`,
    greatest: (a, b) => `greatest(${a}, ${b})`,
    least: (a, b) => `least(${a}, ${b})`,
    isFalse: (column) => `not ${column}`,
    byBytes: (text) => `${text} collate "C"`,
    jsonRows: (columns, from, order) =>
      `(select cast(json_agg(json_build_array(${columns.join(", ")}) order by ${order}) as text) from ${from})`,
    overriding: "overriding system value",
    nextKey: (table) => `select nextval('${s}.${{ builds: "build" }[table]}') as next`,
    running: `${s}.running`,
    heldBy: (processes) => `(select cast(coalesce(sum(at_work), 0) as bigint) from ${s}.claims
      where holder = any(cast(${processes} as bigint[])))`,
    checksum: null,
  };
}
