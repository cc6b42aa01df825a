import type { DatabaseSync, SQLInputValue } from "node:sqlite";
import { pathToFileURL } from "node:url";
import { HoldfastError } from "../../core/text/errors.ts";
import { requirePackage } from "../own-file.ts";
import { noSqlite, refuseOldSqlite } from "./open.ts";

export type DriverName = "node:sqlite" | "better-sqlite3";
export type Value = string | number | null;
export type Named = Record<string, Value>;

/**
 * The little that the store needs of a SQLite library. Hot statements bind by position and read rows as arrays:
 * named binding alone halves the insert rate.
 */
export interface Connection {
  /** The library's own object. */
  readonly handle: object;
  readonly isOpen: boolean;
  /** False once it is closed. */
  readonly inTransaction: boolean;
  exec(sql: string): void;
  prepare(sql: string): Statement;
  close(): void;
}

export interface Statement {
  /** How many rows it changed. */
  run(...params: Value[]): number;
  runNamed(params: Named): number;
  /** The first row, as an object. */
  get<Row>(params?: Named): Row | undefined;
  all<Row>(params?: Named): Row[];
  /** The first row, as an array. */
  row(...params: Value[]): Value[] | undefined;
  rows(...params: Value[]): Value[][];
}

interface ConnectOptions {
  /** How long SQLite itself may wait for a lock; it blocks the thread. */
  busyTimeout: number;
  readOnly?: boolean;
  /** Do not make the file. */
  mustExist?: boolean;
}

export function connect(driver: DriverName, path: string, options: ConnectOptions): Connection {
  return driver === "node:sqlite" ? connectNode(path, options) : connectBetter(path, options);
}

/** Whether it is an open database of this very library; another copy of the library is another library. */
export function isHandleOf(driver: DriverName, handle: unknown): boolean {
  return handle instanceof (driver === "node:sqlite" ? loadNode().DatabaseSync : loadBetter());
}

/** A handle that the user opened. Its own settings (big integers, rows as arrays) are no concern of our statements. */
export function through(driver: DriverName, handle: object): Connection {
  return driver === "node:sqlite" ? throughNode(handle as DatabaseSync) : throughBetter(handle as BetterDatabase);
}

/** Page by page, whatever is on them, in one snapshot; `to` is made anew. */
export async function copyPages(driver: DriverName, from: string, to: string): Promise<void> {
  const db = connect(driver, from, { busyTimeout: 5_000, readOnly: true });
  try {
    if (driver === "node:sqlite") await loadNode().backup(db.handle as DatabaseSync, to, { rate: AT_ONCE });
    else await (db.handle as BetterDatabase).backup(to, { progress: () => AT_ONCE });
  } finally {
    db.close();
  }
}

/** Lets rows be put into the tables that a virtual one is made of, which both libraries refuse otherwise. */
export function withoutGuard(driver: DriverName, { handle }: Connection): void {
  if (driver === "node:sqlite") (handle as DatabaseSync).enableDefensive(false);
  else (handle as BetterDatabase).unsafeMode(true);
}

/** Pages in one step: in several, it would begin anew whenever another process writes. */
const AT_ONCE = 0x7fff_ffff;

let builtin: typeof import("node:sqlite") | undefined;

/** Not imported: a Node without it, or with an old one, would fail with a riddle, also where another driver is used. */
function loadNode(): typeof import("node:sqlite") {
  if (builtin !== undefined) return builtin;
  const { node, sqlite } = process.versions;
  if (sqlite !== undefined) refuseOldSqlite(sqlite, `Node ${node}`);
  const { emitWarning } = process;
  // Node 22 says in every process and thread that the module is experimental. The tests run on it.
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
  // Bound now: the store replaces the method on a handle that it gives to users.
  const close = db.close.bind(db);
  const prepare = (sql: string, arrays: boolean) => {
    const statement = db.prepare(sql);
    statement.setReturnArrays(arrays);
    statement.setReadBigInts(false);
    statement.setAllowBareNamedParameters(true);
    return statement;
  };
  return {
    handle: db,
    get isOpen() {
      return db.isOpen;
    },
    get inTransaction() {
      return db.isOpen && db.isTransaction;
    },
    exec: (sql) => db.exec(sql),
    close: () => (db.isOpen ? close() : undefined),
    prepare(sql) {
      const objects = once(() => prepare(sql, false));
      const arrays = once(() => prepare(sql, true));
      return {
        run: (...params: SQLInputValue[]) => Number(objects().run(...params).changes),
        runNamed: (params) => Number(objects().run(params).changes),
        get: <Row>(params?: Named) => (params ? objects().get(params) : objects().get()) as Row | undefined,
        all: <Row>(params?: Named) => (params ? objects().all(params) : objects().all()) as Row[],
        row: (...params) => arrays().get(...params) as unknown as Value[] | undefined,
        rows: (...params) => arrays().all(...params) as unknown as Value[][],
      };
    },
  };
}

/** A store has some eighty statements, and most programs use a dozen: each is prepared once, when it is first needed. */
function once<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => (made ??= make());
}

interface BetterStatement {
  readonly reader: boolean;
  run(...params: unknown[]): { changes: number };
  get(...params: unknown[]): unknown;
  all(...params: unknown[]): unknown[];
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
  // Bound now: the store replaces the method on a handle that it gives to users.
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
    prepare(sql) {
      const objects = once(() => db.prepare(sql).safeIntegers(false));
      const arrays = once(() => db.prepare(sql).safeIntegers(false).raw(true));
      const run = (...params: unknown[]) =>
        objects().reader ? objects().all(...params).length : objects().run(...params).changes;
      return {
        run,
        runNamed: (params) => run(params),
        get: <Row>(params?: Named) => (params ? objects().get(params) : objects().get()) as Row | undefined,
        all: <Row>(params?: Named) => (params ? objects().all(params) : objects().all()) as Row[],
        row: (...params) => arrays().get(...params) as Value[] | undefined,
        rows: (...params) => arrays().all(...params) as Value[][],
      };
    },
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

/** By name: not those of SQLite itself, nor what only looks like a table. */
export function tablesOf(db: Connection): string[] {
  return db
    .prepare(
      "select name from sqlite_schema where type = 'table' and rootpage > 0 and name not like 'sqlite\\_%' escape '\\' order by name",
    )
    .rows()
    .map(([name]) => name as string);
}

/** As it is written in a statement. */
export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
