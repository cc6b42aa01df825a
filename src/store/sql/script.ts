import type { EventType, NewEvent } from "../../core/jobs/event.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Next } from "../../core/jobs/retry.ts";
import type { Declaration } from "../../core/limits/settings.ts";
import { damagedRow } from "../../core/text/errors.ts";
import type { Fence, JobKey, ProcessId } from "../../core/text/ids.ts";
import type { AuditHead, NewAuditEntry } from "../audit.ts";
import type { Operation } from "../points.ts";
import type { Enqueued, NewJob } from "../store.ts";

/** The steps of a transaction, for both databases. SQLite answers at once; on PostgreSQL the runner awaits each answer. */
export type Script<T> = Generator<Promise<unknown>, T, unknown>;

export type Answer<T> = T | Promise<T>;

/** Calls code that is written separately for each database. */
export function* wait<T>(answer: Answer<T>): Script<T> {
  return answer instanceof Promise ? ((yield answer) as T) : answer;
}

// Runs scripts side by side: on PostgreSQL the first statements are pipelined in this order. A call that sends its statement at
// once (`tx.all`, `tx.run`, `wait`) does so before all scripts here, so put it into a generator if the order matters.
export function* together<T extends readonly Script<unknown>[]>(...scripts: T): Script<Results<T>> {
  const answers = scripts.map(run);
  return (answers.some((answer) => answer instanceof Promise) ? yield Promise.all(answers) : answers) as Results<T>;
}

type Results<T extends readonly Script<unknown>[]> = { -readonly [K in keyof T]: T[K] extends Script<infer R> ? R : never };

export function runSync<T>(script: Script<T>): T {
  const step = script.next();
  if (step.done) return step.value;
  step.value.catch(() => {});
  throw new Error("A synchronous transaction cannot wait for an answer.");
}

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
      (error: unknown) => script.throw(error),
    );
  }
  return step.value;
}

export type Param = string | number | boolean | null | readonly (string | number)[];
export type EachParams<Name extends string | number | symbol = string> = Readonly<Record<Name, string | number | boolean | null>>;
export type Params = Readonly<Record<string, Param>>;

/** `:now` is the same time in a whole statement. `:clock` is the time when a row is reached, after a wait for its lock. */
export interface Reads {
  all<Row>(sql: string, params?: Params): Script<Row[]>;
  get<Row>(sql: string, params?: Params): Script<Row | undefined>;
  /** Runs a query of `Dialect.each` for these rows, and returns what it finds for all of them. */
  findEach<Row>(sql: string, rows: readonly EachParams[]): Script<Row[]>;
  /** On PostgreSQL the first call of a transaction costs a round trip. */
  time(): Script<number>;
}

/** One transaction. It may be undone and run again, so a script changes nothing but the database. */
export interface Tx extends Reads {
  run(sql: string, params?: Params): Script<boolean>;
  returning<Row>(sql: string, params?: Params): Script<Row[]>;
  /** Runs a statement of `Dialect.each` for these rows, and returns how many rows it changed. */
  each<Row extends EachParams<keyof Row>>(sql: string, rows: readonly Row[]): Script<number>;
  eachReturning<Row>(sql: string, rows: readonly EachParams[]): Script<Row[]>;
  /** Writes without waiting for the answer. On PostgreSQL every later statement fails if one of these does. */
  send(sql: string, params: Params): void;
  sendEach<Row extends EachParams<keyof Row>>(sql: string, rows: readonly Row[]): void;
  /** Keeps others from changing the selected rows before the commit. SQLite has one writer at a time. */
  lock(select: string, params?: Params): Script<unknown>;
  fence(): Script<Fence>;
  /** Workers that wait for jobs of this queue look again after the commit. */
  ready(queue: string): void;
  ended(job: JobKey, fence: Fence): void;
  /** Writes an audit entry when everything else is done. Absent if entries are written at once. */
  atLast?(entry: NewAuditEntry): void;
  audited?(head: AuditHead): void;
  /** Tells that rows were changed by other means than `run` and `returning`. */
  wrote(): void;
}

/** What PostgreSQL locks before a script runs, always in the same order, so that two transactions never deadlock. */
interface Locking {
  row?: string;
  /** True if it changes builds or recovery reports, which only one transaction at a time does. */
  builds?: boolean;
  jobs?: readonly NewJob[];
}

export interface Access {
  read<T>(script: (db: Reads) => Script<T>): Promise<T>;
  write<T>(operation: Operation, script: (tx: Tx) => Script<T>, locking?: Locking): Promise<T>;
}

export interface Dialect {
  table(name: string): string;
  in(value: string, type: "bigint" | "text", list: string): string;
  /** The items of a list parameter, as a table with the columns `place`, from 0 on, and `value`. */
  items(type: "bigint" | "text", list: string): string;
  /** The objects of a JSON array, as a table with these columns. */
  rows(json: string, columns: Readonly<Record<string, "bigint" | "text">>): string;
  /** SQLite runs it row by row: binding a wide row is 4 times as fast as JSON. PostgreSQL runs it once, a list per column. */
  each(columns: Columns, write: (row: EachRow) => string): string;
  /** A statement for `Tx.each` that deletes the row of a table in which these columns equal those of the given row. */
  deleteEach(table: string, columns: Columns): string;
  /** A statement for `Tx.each` that sets columns of the row with an `id`. The rows are given in the order of their ids. */
  updateEach(table: string, set: Columns): string;
  /** Makes one unit of statements that do not read each other's changes. PostgreSQL runs them all with the last. */
  inOrder(...statements: string[]): { before: readonly string[]; last: string };
  readonly fence: string;
  readonly locking: string;
  lockingOf(alias: string): string;
  indexed(index: string): string;
  /** Joins, to each row before it, the first row of a table with a `key`: `which` is from `where` to `order by`, over `one`. */
  firstRow(table: string, as: string, which: string): string;
  greatest(a: string, b: string): string;
  least(a: string, b: string): string;
  isFalse(column: string): string;
  byBytes(text: string): string;
  /** The rows of a subquery as one JSON text, each an array of these columns. */
  jsonRows(columns: readonly string[], from: string, order: string): string;
  readonly overriding: string;
  nextKey(table: "builds"): string;
  /** The running jobs: `key`, `fence`, `holder`, `lease`, `expires_at`, and `bound`, which is indexed and never later. */
  readonly running: string;
  heldBy(processes: string): string;
  /** Checksum of a row's immutable columns. Null if the database checks its pages itself. */
  readonly checksum: ((table: string, row: object) => number | null) | null;
}

type Columns = Readonly<Record<string, ColumnType>>;
export type ColumnType = "bigint" | "text" | "boolean" | "double precision";

interface EachRow {
  value(column: string): string;
  readonly inserted: string;
  from(tables?: string): string;
  readonly using: string;
  /** On PostgreSQL the list itself is a condition, too: the planner does not know its length and would scan for a join. */
  is(table: string, ...columns: (string | readonly [column: string, ofRow: string])[]): string;
  /** Finds rows of `table as target` that this transaction has locked, each by its key. A row changed since is not found. */
  locked(table: string, ...key: string[]): string;
}

export function pairOf(column: string | readonly [string, string]): readonly [column: string, ofRow: string] {
  return typeof column === "string" ? [column, column] : column;
}

export interface Events {
  record(tx: Tx, event: NewEvent): Answer<void>;
  act(tx: Tx, type: EventType, subject: string, data?: object, build?: string): Answer<void>;
  unique(tx: Tx): Answer<string>;
}

export interface Processes {
  readonly self: ProcessId | null;
  /** Called before a process is unregistered. The result is called after that. */
  forgetting?(id: ProcessId): () => void;
  remove(tx: Tx, id: ProcessId): Answer<boolean>;
}

export interface Settings {
  declare(tx: Tx, declaration: Declaration): Answer<unknown>;
  pause(tx: Tx, queue: string, paused: boolean): Answer<boolean>;
}

export interface ReclaimedLease extends LeaseRef {
  expiresAt: number;
  kind: "crashed" | "interrupted" | "stalled";
  /** True if the reclaiming process itself holds it, because the answer to its claim was lost. */
  isOwn?: boolean;
}

export interface Settle {
  reclaim(tx: Tx, leases: readonly ReclaimedLease[]): Answer<(Next | null)[]>;
}

export interface Enqueue {
  run(tx: Tx, jobs: readonly NewJob[]): Answer<Enqueued[]>;
}

/** Checksums in the rows of a table, if the database keeps them. Texts begin with a comma, and are empty without checksums. */
export class RowGuard {
  readonly isOn: boolean;
  /** For an insert: the column, its parameter, and its update in a conflict. */
  readonly column: string;
  readonly value: string;
  readonly update: string;
  readonly type: Readonly<Record<string, ColumnType>>;
  readonly #checksum: (row: object) => number | null;

  constructor({ table, checksum }: Dialect, name: string) {
    const isOn = (this.isOn = checksum !== null);
    this.column = isOn ? ", checksum" : "";
    this.value = isOn ? ", :checksum" : "";
    this.update = isOn ? ", checksum = excluded.checksum" : "";
    this.type = isOn ? { checksum: "bigint" } : {};
    this.#checksum = (row) => checksum?.(table(name), row) ?? null;
  }

  sign<Row extends object>(row: Row): Row {
    return this.isOn ? { ...row, checksum: this.#checksum(row) } : row;
  }

  isIntact(row: object): boolean {
    return !this.isOn || (row as { checksum: number | null }).checksum === this.#checksum(row);
  }

  check(row: object, name: string): void {
    if (!this.isIntact(row)) throw damagedRow(name);
  }
}
