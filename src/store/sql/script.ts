import type { EventType, NewEvent } from "../../core/jobs/event.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Next } from "../../core/jobs/retry.ts";
import type { Declaration } from "../../core/limits/settings.ts";
import type { Fence, JobKey, ProcessId } from "../../core/text/ids.ts";
import type { AuditHead, NewAuditEntry } from "../audit.ts";
import type { Operation } from "../points.ts";
import type { Enqueued, NewJob } from "../store.ts";

/**
 * The steps of one transaction, written once for both databases. A script stops at every answer it has to wait for.
 * SQLite answers at once, so there a script runs from beginning to end without stopping; on PostgreSQL the runner
 * awaits each answer. Scripts call each other with `yield*`, as asynchronous functions do with `await`.
 */
export type Script<T> = Generator<Promise<unknown>, T, unknown>;

/** An answer that may already be here. */
export type Answer<T> = T | Promise<T>;

/** The way from a script to code that is written separately for each database. */
export function* wait<T>(answer: Answer<T>): Script<T> {
  return answer instanceof Promise ? ((yield answer) as T) : answer;
}

/**
 * Runs several scripts side by side. On PostgreSQL their first statements are sent together, in this order, and cost one
 * round trip; SQLite runs one script after the other. A call that runs its statement at once (`tx.all`, `tx.run`, `wait`)
 * runs before all scripts here, wherever it stands: put it into a generator where the order matters.
 */
export function* together<T extends readonly Script<unknown>[]>(...scripts: T): Script<Results<T>> {
  const answers = scripts.map(run);
  return (answers.some((answer) => answer instanceof Promise) ? yield Promise.all(answers) : answers) as Results<T>;
}

type Results<T extends readonly Script<unknown>[]> = { -readonly [K in keyof T]: T[K] extends Script<infer R> ? R : never };

/** For a database that answers at once. */
export function runSync<T>(script: Script<T>): T {
  const step = script.next();
  if (step.done) return step.value;
  step.value.catch(() => {});
  throw new Error("A synchronous transaction cannot wait for an answer.");
}

/** For a database that answers later. */
export async function runAsync<T>(script: Script<T>): Promise<T> {
  return run(script);
}

function run<T>(script: Script<T>): Answer<T> {
  const step = script.next();
  return step.done ? step.value : resume(script, step);
}

async function resume<T>(script: Script<T>, step: IteratorResult<Promise<unknown>, T>): Promise<T> {
  while (!step.done) {
    step = await step.value.then(
      (answer) => script.next(answer),
      // The script may catch it, as it would catch what it had thrown itself.
      (error: unknown) => script.throw(error),
    );
  }
  return step.value;
}

/** What a statement takes. A list is one value, see `Dialect.in` and `Dialect.items`. */
export type Param = string | number | boolean | null | readonly (string | number)[];
/** The columns of one row, see `Tx.each`. */
export type EachParams<Name extends string | number | symbol = string> = Readonly<Record<Name, string | number | boolean | null>>;
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
  each<Row extends EachParams<keyof Row>>(sql: string, rows: readonly Row[]): Script<number>;
  /** The same, and gives back what the statement returns. */
  eachReturning<Row>(sql: string, rows: readonly EachParams[]): Script<Row[]>;
  /** Keeps others from changing the selected rows before the commit. SQLite has one writer at a time and needs no locks. */
  lock(select: string, params?: Params): Script<unknown>;
  /** A number that no earlier transaction was given: the fence of what is taken or saved in this one. */
  fence(): Script<Fence>;
  /** Workers that wait for jobs of this queue should look again after the commit. */
  ready(queue: string): void;
  /** Notifies the holder of a lease that another process ended it. */
  ended(job: JobKey, fence: Fence): void;
  /** Writes an audit entry when all else is done. Absent where entries are written at once. */
  atLast?(entry: NewAuditEntry): void;
  /** Called with the newest audit entry that was written. */
  audited?(head: AuditHead): void;
  /** Only for code that changes rows by other means than `run` and `returning`. */
  wrote(): void;
}

/** What PostgreSQL locks before a script runs, always in the same order, so that two transactions never deadlock. */
interface Locking {
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

/** Where the SQL of the two databases differs. Everything else is written so that both understand it. */
export interface Dialect {
  /** The full name of a table. */
  table(name: string): string;
  /** Whether `value` is among the items of a parameter that is a list. */
  in(value: string, type: "bigint" | "text", list: string): string;
  /** The items of a parameter that is a list, as a table with the columns `place`, from 0 on, and `value`. */
  items(type: "bigint" | "text", list: string): string;
  /** The objects of a parameter that is a JSON array of objects, as a table with these columns. */
  rows(json: string, columns: Readonly<Record<string, "bigint" | "text">>): string;
  /**
   * A statement for `Tx.each`, which runs it for many rows that have these columns. SQLite runs it row by row, because it
   * binds a wide row four times as fast as it parses one from JSON; PostgreSQL runs it once, with a list for each column.
   */
  each(columns: Readonly<Record<string, ColumnType>>, write: (row: EachRow) => string): string;
  /** Statements that run in this order and do not read each other's changes. PostgreSQL runs them all with the last. */
  inOrder(...statements: string[]): { before: readonly string[]; last: string };
  /** A number that no earlier transaction was given, as `Tx.fence` gives it. Only in a transaction. */
  readonly fence: string;
  /** Ends a `select` whose rows stay locked until the commit. */
  readonly locking: string;
  /** The same, where only the rows of one joined table are locked. */
  lockingOf(alias: string): string;
  /** Names the index to use; PostgreSQL's planner chooses by itself. */
  indexed(index: string): string;
  /**
   * Joins, to each row before it, the first row of a table that has a `key`. `which` selects that row as `one`, from `where`
   * to `order by`; `as` is its name in the join.
   */
  firstRow(table: string, as: string, which: string): string;
  /** The greatest of two numbers, leaving out nulls. */
  greatest(a: string, b: string): string;
  /** The least of two numbers. */
  least(a: string, b: string): string;
  /** In the words that partial indexes are declared with. */
  isFalse(column: string): string;
  /** Sorts texts by their bytes, as SQLite does. */
  byBytes(text: string): string;
  /** The rows of a subquery as one JSON text, each an array of these columns. */
  jsonRows(columns: readonly string[], from: string, order: string): string;
  /** Lets an `insert` give the keys of its rows itself. */
  readonly overriding: string;
  /** Selects the next key of a table as `next`. */
  nextKey(table: "builds"): string;
  /** The running jobs: `key`, `fence`, `holder`, `lease`, `expires_at`, and `bound`, which is indexed and never later. */
  readonly running: string;
  /** The number of running jobs that the processes of a list hold. */
  heldBy(processes: string): string;
}

export type ColumnType = "bigint" | "text" | "boolean";

/** The row that a statement of `Dialect.each` runs for. */
interface EachRow {
  /** The value of a column. */
  value(column: string): string;
  /** What an `insert` of all columns adds, in their order. */
  readonly inserted: string;
  /** The clause that the rows come from, with more tables where they are named. */
  from(tables?: string): string;
  /** The same for a `delete`. */
  readonly using: string;
  /**
   * Whether columns of a table equal those of the row, which have the same names if no other is given. On PostgreSQL the list itself is a
   * condition, too: the planner does not know how long the list is and would scan the table for a join.
   */
  is(table: string, ...columns: (string | readonly [column: string, ofRow: string])[]): string;
}

export function pairOf(column: string | readonly [string, string]): readonly [column: string, ofRow: string] {
  return typeof column === "string" ? [column, column] : column;
}

/** What scripts use and each database still does in its own way. */
export interface Events {
  tell(tx: Tx, event: NewEvent): Answer<void>;
  act(tx: Tx, type: EventType, subject: string, data?: object, build?: string): Answer<void>;
  /** Something that no other event has. */
  unique(tx: Tx): Answer<string>;
}

export interface Processes {
  readonly self: ProcessId | null;
  /** Called before a process is unregistered; the result is called after that. */
  forgetting?(id: ProcessId): () => void;
  /** False if it still holds jobs, or is not registered. */
  remove(tx: Tx, id: ProcessId): Answer<boolean>;
}

export interface Settings {
  declare(tx: Tx, declaration: Declaration): Answer<unknown>;
  /** False if it is so already. */
  pause(tx: Tx, queue: string, paused: boolean): Answer<boolean>;
}

/** A lease that is ended on behalf of its holder, if it still ends at this instant. */
export interface ReclaimedLease extends LeaseRef {
  expiresAt: number;
  kind: "crashed" | "interrupted" | "stalled";
}

export interface Settle {
  /** What became of each job; null if its lease is another by now. */
  reclaim(tx: Tx, leases: readonly ReclaimedLease[]): Answer<(Next | null)[]>;
}

export interface Enqueue {
  run(tx: Tx, jobs: readonly NewJob[]): Answer<Enqueued[]>;
}
