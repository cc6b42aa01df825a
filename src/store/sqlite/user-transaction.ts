import type { CommitRows, CommitTx, TransactionHandle } from "../../core/jobs/job.ts";
import type { LeaseState } from "../../core/jobs/lease.ts";
import { HoldfastError, NonRetryableError } from "../../core/text/errors.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { isAsyncFunction, isThenable } from "../../core/text/text.ts";
import { CommitRowsFailed } from "../jobs.ts";
import type { Durability, Enqueued, NewJob, Settlement } from "../store.ts";
import { type Connection, type DriverName, isHandleOf, type Statement, through } from "./driver.ts";
import { explain, explaining, isBusy } from "./faults.ts";
import { COUNTED, type CountedRow, type GroupCommit, type Tx } from "./group-commit.ts";
import { EnqueueParts } from "./jobs/enqueue.ts";
import type { Settle } from "./jobs/settle.ts";
import { canonicalPath } from "./open.ts";
import { type Statements, statementsOn } from "./scripts.ts";

interface Host {
  path: string;
  driver: DriverName;
  durability: Durability;
  now: () => number;
}

export class UserTransactions {
  readonly #host: Host;
  // Hold both weakly: a prepared statement of node:sqlite keeps its database alive, and some programs open a handle per request.
  readonly #handles = new WeakMap<object, WeakRef<UserHandle>>();

  constructor(host: Host) {
    this.#host = host;
  }

  enqueue(handle: unknown, jobs: readonly NewJob[]): Enqueued[] {
    return explaining(this.#host.path, () => this.#handleOf(handle).enqueue(jobs));
  }

  #handleOf(given: unknown): UserHandle {
    if (!looksOpenable(given))
      throw new HoldfastError(
        "TX_INVALID",
        `\`tx\` is not a SQLite handle: ${given === null ? "null" : typeof given}.`,
        "Give a DatabaseSync or a better-sqlite3 Database, or { db } with one; with Drizzle that is `db.$client`.",
      );
    const handle = given as object;
    const known = this.#handles.get(handle)?.deref();
    if (known?.isUsable()) return known;
    const { driver } = this.#host;
    // Two SQLite libraries on one file in one process drop each other's locks.
    if (!isHandleOf(driver, handle))
      throw new HoldfastError(
        "DRIVER_DIFFERS",
        `\`tx\` is not a handle of the driver of this database, "${driver}", or belongs to another copy of it.`,
        `Open both with one library: open(path, { driver: "${driver === "node:sqlite" ? "better-sqlite3" : "node:sqlite"}" }), or a handle of "${driver}".`,
      );
    const made = new UserHandle(through(driver, handle), this.#host);
    this.#handles.set(handle, new WeakRef(made));
    return made;
  }
}

export function handleOf(tx: unknown): unknown {
  if (typeof tx !== "object" || tx === null || looksOpenable(tx) || !("db" in tx)) return tx;
  return tx.db;
}

class UserHandle {
  readonly #db: Connection;
  readonly #host: Host;
  readonly #enqueueParts: EnqueueParts;
  readonly #sql;
  readonly #statements: Statements;

  constructor(db: Connection, host: Host) {
    this.#statements = statementsOn(db);
    this.#db = db;
    this.#host = host;
    refuseOtherFile(db, host.path);
    this.#enqueueParts = new EnqueueParts(db, { canDeclare: false });
    this.#sql = {
      synchronous: db.prepare("pragma main.synchronous"),
      // This changes no row and no page, but takes the write lock, or throws.
      takeLock: db.prepare("update holdfast_counter set lanes = lanes where false"),
      counted: db.prepare(COUNTED),
    };
  }

  /** Whether the statements still work. Closing the handle ends them, also if it was opened again. */
  isUsable(): boolean {
    try {
      return this.#sql.synchronous.row() !== undefined;
    } catch {
      return false;
    }
  }

  enqueue(jobs: readonly NewJob[]): Enqueued[] {
    this.#refuseNoTransaction();
    this.#refuseLessDurable();
    this.#refuseNoLock();
    const [commits, highest, lanes, , settings] = this.#sql.counted.row() as CountedRow;
    let key = highest;
    return this.#enqueueParts.provisionally(
      {
        ...this.#statements,
        now: this.#host.now(),
        commit: (commits + 1) as Fence,
        lanes,
        settings,
        nextKey: () => ++key as JobKey,
        // The user commits. Other processes notice that by watching the file.
        wrote: () => {},
        ready: () => {},
        ended: () => {},
        damaged: () => {},
      },
      jobs,
    );
  }

  /** Rejects a handle without a transaction: each statement would commit by itself, and the job before the user's row. */
  #refuseNoTransaction(): void {
    if (this.#db.inTransaction) return;
    throw new HoldfastError(
      "TX_NOT_OPEN",
      "No transaction is open on `tx`.",
      "Begin one first (BEGIN IMMEDIATE), or leave `tx` out to enqueue at once.",
    );
  }

  /** Rejects a less durable handle: callers that read the job would rely on a commit that is not synced. */
  #refuseLessDurable(): void {
    const [level] = this.#sql.synchronous.row() as [number];
    const { durability, path } = this.#host;
    const [least, name] = durability === "power" ? [2, "full"] : [1, "normal"];
    if (level >= least) return;
    throw new HoldfastError(
      "TX_DURABILITY",
      `\`tx\` has synchronous=${level}, and ${path} has durability "${durability}".`,
      `Run "pragma synchronous = ${name}" on the handle when it is opened; inside a transaction it cannot be changed.`,
    );
  }

  /** Rejects a transaction without the write lock: what it reads may be outdated when it writes. */
  #refuseNoLock(): void {
    try {
      this.#sql.takeLock.run();
    } catch (error) {
      if (!isBusy(error)) throw error;
      throw new HoldfastError(
        "TX_BUSY",
        `The transaction on \`tx\` has no write lock, and cannot get it: another process writes or has written to ${this.#host.path}.`,
        "Roll back and try again, beginning with BEGIN IMMEDIATE: a deferred transaction that has read cannot wait for others.",
        { cause: error },
      );
    }
  }
}

function looksOpenable(handle: unknown): boolean {
  if (typeof handle !== "object" || handle === null) return false;
  const { prepare, exec } = handle as { prepare?: unknown; exec?: unknown };
  return typeof prepare === "function" && typeof exec === "function";
}

function refuseOtherFile(db: Connection, path: string): void {
  const files = db.prepare("pragma database_list").all<{ name: string; file: string | null }>();
  const file = files.find(({ name }) => name === "main")?.file ?? "";
  if (file !== "" && path !== ":memory:" && canonicalPath(file) === path) return;
  throw new HoldfastError(
    "TX_OTHER_DATABASE",
    `\`tx\` is open on ${file || "a database in memory"}, and this handle on ${path}.`,
    path === ":memory:"
      ? "A database in memory has one handle: use hf.transaction."
      : "Open both on the same file: one commit cannot span two.",
  );
}

type UserCall = "hf.transaction" | "`commit`";

/** Runs a user's callback in a transaction of the store's own connection: the user's rows and Holdfast's jobs in one commit. */
export class OwnTransaction {
  readonly #db: Connection;
  readonly #enqueueParts: EnqueueParts;
  readonly #path: string;
  readonly #mark: Statement;
  readonly #release: Statement;
  #open: { tx: Tx; call: UserCall } | null = null;

  constructor(db: Connection, enqueueParts: EnqueueParts, path: string) {
    this.#db = db;
    this.#enqueueParts = enqueueParts;
    this.#path = path;
    this.#mark = db.prepare("savepoint holdfast_transaction");
    this.#release = db.prepare("release holdfast_transaction");
    for (const name of ["close", Symbol.dispose]) Object.defineProperty(db.handle, name, { value: refuseClose });
  }

  run<T>(tx: Tx, call: UserCall, work: (handle: object) => T): T {
    this.#open = { tx, call };
    // Commit in any case, because the callback's own writes cannot be seen from here.
    tx.wrote();
    this.#mark.run();
    try {
      const value = work(this.#db.handle);
      this.#refuseEnded(call);
      return value;
    } finally {
      this.#open = null;
      // Forget the caches also after a success, because the callback may have rolled parts back.
      this.#enqueueParts.forget();
    }
  }

  enqueue(jobs: readonly NewJob[]): Enqueued[] {
    if (this.#open === null) {
      throw new HoldfastError(
        "TX_OVER",
        "The transaction of this handle has ended.",
        "Enqueue inside the callback of hf.transaction or `commit`, before it returns; do not keep the handle.",
      );
    }
    // Outside of a transaction, a savepoint would begin one, and its release would commit it.
    if (!this.#db.inTransaction) throw ended(this.#open.call);
    const { tx } = this.#open;
    return explaining(this.#path, () => this.#enqueueParts.provisionally(tx, jobs));
  }

  /** Rejects a callback that ended its transaction: the savepoint is gone then, even if another transaction was begun since. */
  #refuseEnded(call: UserCall): void {
    try {
      if (this.#db.inTransaction) return void this.#release.run();
    } catch {
      // The savepoint is gone.
    }
    throw ended(call);
  }
}

function ended(call: UserCall): HoldfastError {
  const notRecorded = call === "`commit`" ? ", so the success was not recorded" : "";
  return new HoldfastError(
    "TX_ENDED",
    `The callback of ${call} ended its transaction, or a full disk did${notRecorded}.`,
    "Leave commit and rollback to Holdfast: return to commit, throw to undo. What the callback committed before that is in the file.",
  );
}

/** Rejects `db.close()`. It captures nothing: what a closed handle of node:sqlite refers to is never freed. */
function refuseClose(): never {
  throw new HoldfastError(
    "TX_ENDED",
    "db.close() was called on the connection of Holdfast, so it stays open.",
    "Leave db.close() out; hf.close() closes the connection.",
  );
}

interface Parts {
  group: GroupCommit;
  settle: Settle;
  own: OwnTransaction;
  path: string;
  /** Called with the error of a statement of Holdfast, not of a callback. */
  onFault: (error: unknown) => void;
}

/** Runs `commit` callbacks once, after the fence check. It writes the success last: if a callback commits, the lease stays. */
export function settleWithRows(settlement: Settlement, parts: Parts): Promise<LeaseState[]> {
  const { group, settle, own, path, onFault } = parts;
  const guarded = <T>(write: () => T): T => {
    try {
      return write();
    } catch (error) {
      onFault(error);
      throw explain(error, path);
    }
  };
  const run = (tx: Tx): LeaseState[] => {
    const fate = guarded(() => settle.fate(settlement));
    if (fate !== "held") return [fate];
    // A success whose follow-up jobs are rejected is recorded as a failure, which commits no rows.
    if (guarded(() => settle.rejects(tx, settlement))) return guarded(() => settle.run(tx, [settlement]));
    try {
      for (const callback of settlement.commit ?? [])
        own.run(tx, "`commit`", (handle) => call(callback, handle as TransactionHandle));
    } catch (error) {
      throw new CommitRowsFailed(error);
    }
    const fates = guarded(() => settle.run(tx, [settlement]));
    if (settle.hasSucceeded(settlement.job)) return fates;
    throw new CommitRowsFailed(new NonRetryableError(settlement.decided?.error?.message ?? "The success was rejected."));
  };
  // COMMIT itself checks deferred constraints of the user's tables, so its error counts as a callback's.
  return group.submit("settle", run, { alone: true, refused: (error) => new CommitRowsFailed(error) });
}

function call(run: CommitRows, db: TransactionHandle): void {
  const tx: CommitTx = {
    db,
    query: () => {
      throw new HoldfastError(
        "TX_INVALID",
        "`tx.query` exists on PostgreSQL only, and this database is SQLite.",
        "Use `tx.db`, e.g. tx.db.prepare(sql).run(…).",
      );
    },
  };
  // An async function is not called: what it does after its first await would run outside the transaction.
  if (isAsyncFunction(run)) throw asynchronous();
  const returned: unknown = run(tx);
  if (!isThenable(returned)) return;
  if (returned instanceof Promise) returned.catch(() => {});
  throw asynchronous();
}

function asynchronous(): HoldfastError {
  return new HoldfastError(
    "TX_ASYNC",
    "The callback of `commit` is asynchronous or returns a promise, so it was rolled back.",
    "On SQLite make the callback synchronous, with `tx.db`; await everything else in the handler, before `commit`.",
  );
}
