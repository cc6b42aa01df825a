import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Clock } from "../../src/core/text/duration.ts";
import type { CommitTx, TransactionHandle } from "../../src/core/jobs/job.ts";
import type { JobKey, ProcessId } from "../../src/core/text/ids.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { Enqueued, NewJob, Store } from "../../src/store/store.ts";

/** Where a world's store is. */
export interface Place {
  /** All share one handle, which uses the clock of the acting actor; else each actor has its own. */
  readonly isShared: boolean;
  /** Calls are made one after the other: their answers come in another order than they are made, and the model goes by that. */
  readonly isSlow: boolean;
  open(clock: Clock, random: () => number): Promise<Store>;
  /** Some jobs at a time, in a transaction of the caller's own; with `undo` it is undone, and that is thrown. */
  within(store: Store, parts: readonly (readonly NewJob[])[], undo: Error | null): Promise<Enqueued[][]>;
  /** A table of the user's own: a row for each success that was settled with one. */
  readonly rows: {
    add(tx: CommitTx, job: JobKey): void | Promise<void>;
    all(store: Store): Promise<JobKey[]>;
  };
  /** Read from their table: to probe them writes a sign of life. */
  processes(store: Store): Promise<ProcessId[]>;
  close(): Promise<void>;
}

export function inMemory(): Place {
  return {
    isShared: true,
    isSlow: false,
    open: (clock, random) => openSqlite(":memory:", clock, random),
    within: inOwn,
    rows: ROWS,
    processes: (store) => numbersIn<ProcessId>(store, "select id from holdfast_processes"),
    close: async () => {},
  };
}

export function onFile(): Place {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-simulation-"));
  return {
    isShared: false,
    isSlow: false,
    open: (clock, random) => openSqlite(join(folder, "work.db"), clock, random),
    within: inOwn,
    rows: ROWS,
    processes: (store) => numbersIn<ProcessId>(store, "select id from holdfast_processes"),
    close: async () => rmSync(folder, { recursive: true }),
  };
}

const ROWS: Place["rows"] = {
  add: ({ db }, job) => void db.prepare("insert into user_rows (job) values (?)").run(job),
  all: (store) => numbersIn<JobKey>(store, "select job from user_rows"),
};

async function numbersIn<T extends number>(store: Store, sql: string): Promise<T[]> {
  let rows: unknown[] = [];
  const undo = new Error("only read");
  const read = store.transact((db) => {
    rows = (db as TransactionHandle).prepare(sql).all();
    throw undo;
  });
  await read.catch((error: unknown) => {
    if (error !== undo) throw error;
  });
  return rows.map((row) => Object.values(row as Record<string, T>)[0] as T);
}

async function openSqlite(path: string, clock: Clock, random: () => number): Promise<Store> {
  const store = await SqliteStore.open(path, { driver: "node:sqlite", durability: "process", clock, random, busyTimeout: 20 });
  await store.transact((db) => (db as TransactionHandle).exec("create table if not exists user_rows (job integer)"));
  return store;
}

function inOwn(store: Store, parts: readonly (readonly NewJob[])[], undo: Error | null): Promise<Enqueued[][]> {
  return store.transact((handle) => {
    const answers = parts.map((jobs) => store.enqueueWithin(handle, jobs) as Enqueued[]);
    if (undo !== null) throw undo;
    return answers;
  });
}
