import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Clock } from "../../src/core/text/duration.ts";
import type { CommitTx, TransactionHandle } from "../../src/core/jobs/job.ts";
import { checkRows } from "../../src/store/sqlite/maintenance/damage/check.ts";
import { connect } from "../../src/store/sqlite/driver.ts";
import { SqliteStore, type SqliteStoreOptions } from "../../src/store/sqlite/sqlite-store.ts";
import type { Store } from "../../src/store/store.ts";

/** A store that runs the suite. */
export interface StoreUnderTest {
  name: string;
  open(clock: Clock): Promise<OpenStore>;
  /** Why it cannot be reopened, or opened a second time; null when it can. */
  alone: string | null;
  /** Why the caller's own work cannot run inside its transactions; null when it can. */
  outside: string | null;
}

export interface OpenStore {
  store: Store;
  /** A second handle on the same data, as another process would have. */
  another(): Promise<Store>;
  /** Closes every handle and opens the data again. */
  reopen(): Promise<Store>;
  /** Makes a table of the user's own beside the store's. */
  userTable(): Promise<UserTable>;
  /** What a look at every row finds wrong, when all is over; left out where rows have no checksums. */
  findings?(): Promise<string[]>;
  cleanup(): Promise<void>;
}

/** Numbers, each once. */
export interface UserTable {
  /** In the transaction of a `commit` callback. */
  add(tx: CommitTx, n: number): void | Promise<void>;
  all(): Promise<number[]>;
}

export const nodeSqliteFile: StoreUnderTest = {
  name: "node:sqlite on a file",
  alone: null,
  outside: null,
  open: openFile("node:sqlite"),
};
export const betterSqliteFile: StoreUnderTest = {
  name: "better-sqlite3 on a file",
  alone: null,
  outside: null,
  open: openFile("better-sqlite3"),
};
export const nodeSqliteMemory: StoreUnderTest = {
  name: "node:sqlite in memory",
  alone: "a database in memory lives and dies with its one handle",
  outside: null,
  open: openMemory,
};

function openFile(driver: SqliteStoreOptions["driver"]): StoreUnderTest["open"] {
  return async (clock) => {
    const folder = await mkdtemp(join(tmpdir(), "holdfast-conformance-"));
    const handles: Store[] = [];
    const another = async () => {
      const store = await SqliteStore.open(join(folder, "work.db"), optionsFor(driver, clock));
      handles.push(store);
      return store;
    };
    const close = async () => {
      for (const handle of handles.splice(0)) await handle.close();
    };
    const store = await another();
    return {
      store,
      another,
      async reopen() {
        await close();
        return another();
      },
      userTable: () => sqliteTable(store),
      async findings() {
        await close();
        const db = connect(driver, join(folder, "work.db"), { busyTimeout: 20, mustExist: true });
        try {
          return checkRows(db);
        } finally {
          db.close();
        }
      },
      async cleanup() {
        await close();
        await rm(folder, { recursive: true });
      },
    };
  };
}

async function openMemory(clock: Clock): Promise<OpenStore> {
  const store = await SqliteStore.open(":memory:", optionsFor("node:sqlite", clock));
  return { store, another: refuse, reopen: refuse, userTable: () => sqliteTable(store), cleanup: () => store.close() };
}

/** On the store's own connection. */
export async function sqliteTable(store: Store): Promise<UserTable> {
  await store.transact((db) => (db as TransactionHandle).exec("create table user_rows (n integer primary key)"));
  return {
    add: ({ db }, n) => void db.prepare("insert into user_rows (n) values (?)").run(n),
    all: async () => {
      const rows = await store.transact((db) => (db as TransactionHandle).prepare("select n from user_rows order by n").all());
      return (rows as { n: number }[]).map(({ n }) => n);
    },
  };
}

function optionsFor(driver: SqliteStoreOptions["driver"], clock: Clock): SqliteStoreOptions {
  return { driver, clock, random: () => 0.5, busyTimeout: 20 };
}

function refuse(): Promise<never> {
  return Promise.reject(new Error("There is only one handle."));
}
