import type { Fence, JobKey } from "../../core/text/ids.ts";
import type { NewAuditEntry } from "../audit.ts";
import type { Operation } from "../points.ts";
import type { NewJob } from "../store.ts";
import type { Script } from "./script.ts";

/** What a statement takes. A list is one value, see `Dialect.in` and `Dialect.items`. */
export type Param = string | number | boolean | null | readonly (string | number)[];
/** The columns of one row, see `Tx.each`. */
export type EachParams = Readonly<Record<string, string | number | boolean | null>>;
export type Params = Readonly<Record<string, Param>>;

/**
 * Reads, inside a transaction or outside of one. Statements name their parameters (`:name`); `:now` is always there and
 * need not be given: it is the current time, the same throughout a statement. `:clock` is the time when a row is reached,
 * which is after PostgreSQL has waited for that row's lock.
 */
export interface Reads {
  all<Row>(sql: string, params?: Params): Script<Row[]>;
  /** The first row. */
  get<Row>(sql: string, params?: Params): Script<Row | undefined>;
  /** The current time, for decisions made in code. On PostgreSQL the first call of a transaction costs a round trip. */
  time(): Script<number>;
}

/** One transaction. It may be undone and run again, so a script changes nothing but the database. */
export interface Tx extends Reads {
  /** Changes rows; whether there were any to change. */
  run(sql: string, params?: Params): Script<boolean>;
  /** Changes rows, and gives back what the statement returns of them. */
  returning<Row>(sql: string, params?: Params): Script<Row[]>;
  /** Runs a statement that `Dialect.each` made for each of these rows: how many rows it changed. */
  each(sql: string, rows: readonly EachParams[]): Script<number>;
  /** The same, and gives back what the statement returns. */
  eachReturning<Row>(sql: string, rows: readonly EachParams[]): Script<Row[]>;
  /** Keeps others from changing the selected rows before the commit. SQLite has one writer at a time and needs no locks. */
  lock(select: string, params?: Params): Script<unknown>;
  /** A number that no earlier transaction was given: the fence of what is taken or saved in this one. */
  fence(): Script<Fence>;
  /** Somebody who waits for jobs of this queue should look again after the commit. */
  ready(queue: string): void;
  /** Tells the holder of a lease that it was ended by somebody else. */
  ended(job: JobKey, fence: Fence): void;
  /** Writes an audit entry when all else is done. Absent where entries are written at once. */
  atLast?(entry: NewAuditEntry): void;
  /** Only for code that changes rows by other means than `run` and `returning`. */
  wrote(): void;
}

/** What PostgreSQL locks before a script runs, always in the same order, so that two transactions never deadlock. */
export interface Locking {
  /** The one row it changes whose name a user chose, such as `lock reports`. */
  row?: string;
  /** It changes builds or recovery reports; only one transaction at a time does. */
  builds?: boolean;
  /** Jobs that it adds. */
  jobs?: readonly NewJob[];
  /** Work items that this process has claimed; their queues are locked. */
  claimed?: readonly JobKey[];
}

export interface Access {
  read<T>(script: (db: Reads) => Script<T>): Promise<T>;
  write<T>(operation: Operation, script: (tx: Tx) => Script<T>, locking?: Locking): Promise<T>;
}
