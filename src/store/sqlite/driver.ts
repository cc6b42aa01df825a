import type { DatabaseSync } from "node:sqlite";
import { pathToFileURL } from "node:url";
import { HoldfastError } from "../../core/text/errors.ts";
import { requirePackage } from "../own-file.ts";
import { createFile, isBusy } from "./faults.ts";
import { noSqlite, refuseOldSqlite } from "./open.ts";

export type DriverName = "node:sqlite" | "better-sqlite3";
export type Value = string | number | null;
type Param = Value | Record<string, Value>;

/** A connection of either SQLite library. Hot statements bind by position: named binding alone halves the insert rate. */
export interface Connection extends Disposable {
  readonly handle: object;
  readonly isOpen: boolean;
  readonly inTransaction: boolean;
  exec(sql: string): void;
  prepare(sql: string): Statement;
  close(): void;
}

export interface Statement {
  run(...params: Param[]): number;
  get<Row>(...params: Param[]): Row | undefined;
  all<Row>(...params: Param[]): Row[];
  /** Returns the first row as an array, without the cost of an object. */
  row(...params: Param[]): Value[] | undefined;
  rows(...params: Param[]): Value[][];
}

/** A library's statement, which returns rows as arrays. */
interface Prepared {
  columns(): { name: string }[];
  get(...params: Param[]): unknown;
  all(...params: Param[]): unknown[];
}

/** Prepares a statement when it is first used: a store has some eighty statements, and most programs use a dozen. */
function statementOf<T extends Prepared>(prepare: () => T, run: (statement: T, params: Param[]) => number): Statement {
  const prepared = once(prepare);
  const names = once(() =>
    prepared()
      .columns()
      .map(({ name }) => name),
  );
  // The objects that node:sqlite returns take twice as long to read as these.
  const toObject = <Row>(values: Value[]): Row => {
    const row: Record<string, Value> = {};
    const columns = names();
    for (let i = 0; i < columns.length; i++) row[columns[i] as string] = values[i] as Value;
    return row as Row;
  };
  const row = (...params: Param[]) => prepared().get(...params) as Value[] | undefined;
  const rows = (...params: Param[]) => prepared().all(...params) as Value[][];
  return {
    run: (...params) => run(prepared(), params),
    get: <Row>(...params: Param[]) => {
      const values = row(...params);
      return values && toObject<Row>(values);
    },
    all: <Row>(...params: Param[]) => rows(...params).map(toObject<Row>),
    row,
    rows,
  };
}

function once<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => (made ??= make());
}

interface ConnectOptions {
  busyTimeout: number;
  readOnly?: boolean;
  mustExist?: boolean;
}

export function connect(driver: DriverName, path: string, options: ConnectOptions): Connection {
  return driver === "node:sqlite" ? connectNode(path, options) : connectBetter(path, options);
}

/** Whether a value is a handle of this driver. A handle of another copy of the same library cannot be used. */
export function isHandleOf(driver: DriverName, handle: unknown): boolean {
  return handle instanceof (driver === "node:sqlite" ? loadNode().DatabaseSync : loadBetter());
}

/** Wraps a user's handle. The user's settings of it (big integers, rows as arrays) do not affect Holdfast's statements. */
export function through(driver: DriverName, handle: object): Connection {
  return driver === "node:sqlite" ? throughNode(handle as DatabaseSync) : throughBetter(handle as BetterDatabase);
}

export async function copyPages(driver: DriverName, from: string, to: string): Promise<void> {
  using db = connect(driver, from, { busyTimeout: 5_000, readOnly: true });
  if (driver === "node:sqlite") await loadNode().backup(db.handle as DatabaseSync, to, { rate: AT_ONCE });
  else await (db.handle as BetterDatabase).backup(to, { progress: () => AT_ONCE });
}

/** Allows writes to the shadow tables of a virtual table, which both libraries reject by default. */
export function withoutGuard(driver: DriverName, { handle }: Connection): void {
  if (driver === "node:sqlite") (handle as DatabaseSync).enableDefensive(false);
  else (handle as BetterDatabase).unsafeMode(true);
}

/** All pages in one step: a backup in several steps starts again whenever another process writes. */
const AT_ONCE = 0x7fff_ffff;

let builtin: typeof import("node:sqlite") | undefined;

/** Loads node:sqlite on use: an import would fail without a hint on a Node without SQLite, even with the other driver. */
function loadNode(): typeof import("node:sqlite") {
  if (builtin !== undefined) return builtin;
  const { node, sqlite } = process.versions;
  if (sqlite !== undefined) refuseOldSqlite(sqlite, `Node ${node}`);
  const { emitWarning } = process;
  // Node 22 warns in every process and thread that the module is experimental.
  process.emitWarning = () => {};
  builtin = process.getBuiltinModule?.("node:sqlite");
  process.emitWarning = emitWarning;
  if (builtin === undefined) throw noSqlite();
  return builtin;
}

function connectNode(path: string, options: ConnectOptions): Connection {
  const { DatabaseSync } = loadNode();
  const file = options.mustExist ? new URL(`${pathToFileURL(path).href}?mode=rw`) : path;
  return throughNode(new DatabaseSync(file, { timeout: options.busyTimeout, readOnly: options.readOnly ?? false }));
}

function throughNode(db: DatabaseSync): Connection {
  // Bind the method now, because OwnTransaction replaces it on the handle that users get.
  const close = db.close.bind(db);
  const connection: Connection = {
    handle: db,
    get isOpen() {
      return db.isOpen;
    },
    get inTransaction() {
      return db.isOpen && db.isTransaction;
    },
    exec: (sql) => db.exec(sql),
    close: () => (db.isOpen ? close() : undefined),
    [Symbol.dispose]: () => connection.close(),
    prepare: (sql) =>
      statementOf(
        () => {
          const statement = db.prepare(sql);
          statement.setReturnArrays(true);
          statement.setReadBigInts(false);
          statement.setAllowBareNamedParameters(true);
          return statement as typeof statement & Prepared;
        },
        (statement, params) => Number(statement.run(...(params as Value[])).changes),
      ),
  };
  return connection;
}

interface BetterStatement extends Prepared {
  readonly reader: boolean;
  run(...params: Param[]): { changes: number };
  raw(on: boolean): BetterStatement;
  safeIntegers(on: boolean): BetterStatement;
}
interface BetterDatabase {
  readonly open: boolean;
  readonly inTransaction: boolean;
  exec(sql: string): void;
  prepare(sql: string): BetterStatement;
  close(): void;
  backup(to: string, options: { progress: () => number }): Promise<unknown>;
  unsafeMode(on: boolean): void;
}
type BetterConstructor = new (path: string, options: object) => BetterDatabase;

function connectBetter(path: string, options: ConnectOptions): Connection {
  const Database = loadBetter();
  return throughBetter(
    new Database(path, {
      timeout: options.busyTimeout,
      readonly: options.readOnly ?? false,
      fileMustExist: options.mustExist ?? false,
    }),
  );
}

function throughBetter(db: BetterDatabase): Connection {
  const close = db.close.bind(db);
  return {
    handle: db,
    get isOpen() {
      return db.open;
    },
    get inTransaction() {
      return db.inTransaction;
    },
    exec: (sql) => db.exec(sql),
    close,
    [Symbol.dispose]: () => close(),
    prepare: (sql) =>
      statementOf(
        () => {
          const statement = db.prepare(sql).safeIntegers(false);
          return statement.reader ? statement.raw(true) : statement;
        },
        (statement, params) => (statement.reader ? statement.all(...params).length : statement.run(...params).changes),
      ),
  };
}

function loadBetter(): BetterConstructor {
  try {
    return requirePackage("better-sqlite3") as BetterConstructor;
  } catch (cause) {
    throw new HoldfastError(
      "DRIVER_MISSING",
      'The driver "better-sqlite3" could not be loaded.',
      'Run `npm install better-sqlite3`, or leave `driver` out to use "node:sqlite".',
      { cause },
    );
  }
}

export function scalar<T extends Value | undefined>(db: Connection, sql: string, ...params: Value[]): T {
  return db.prepare(sql).row(...params)?.[0] as T;
}

export function column<T extends Value>(db: Connection, sql: string, ...params: Value[]): T[] {
  return db
    .prepare(sql)
    .rows(...params)
    .map(([value]) => value as T);
}

export function inTransaction<T>(db: Connection, run: () => T): T {
  db.exec("begin immediate");
  try {
    const result = run();
    db.exec("commit");
    return result;
  } catch (error) {
    if (db.inTransaction) db.exec("rollback");
    throw error;
  }
}

/** Locks a file until the connection is closed or the process dies. Null: another process has locked it. */
export function lockFile(driver: DriverName, path: string, mode: number): Connection | null {
  createFile(path, mode);
  const db = connect(driver, path, { busyTimeout: 0 });
  try {
    db.exec("begin immediate");
    return db;
  } catch (error) {
    db.close();
    if (isBusy(error)) return null;
    throw error;
  }
}

export function tablesOf(db: Connection): string[] {
  return column(
    db,
    "select name from sqlite_schema where type = 'table' and rootpage > 0 and name not like 'sqlite\\_%' escape '\\' order by name",
  );
}

export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
