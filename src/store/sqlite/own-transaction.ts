import { HoldfastError } from "../../core/errors.ts";
import type { Enqueued, NewJob } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import { explain } from "./faults.ts";
import type { Tx } from "./group-commit.ts";
import type { Intake } from "./intake.ts";

/** A user's work in a transaction of the store's own connection: his rows and Holdfast's jobs in one commit. */
export class OwnTransaction {
  readonly #db: Connection;
  readonly #intake: Intake;
  readonly #path: string;
  readonly #mark: Statement;
  readonly #release: Statement;
  #open: Tx | null = null;

  constructor(db: Connection, intake: Intake, path: string) {
    this.#db = db;
    this.#intake = intake;
    this.#path = path;
    this.#mark = db.prepare("savepoint holdfast_transaction");
    this.#release = db.prepare("release holdfast_transaction");
  }

  run<T>(tx: Tx, work: (handle: object) => T): T {
    this.#open = tx;
    // What is written with the handle cannot be seen from here.
    tx.wrote();
    this.#mark.run();
    try {
      const value = work(this.#db.handle);
      this.#refuseEnded();
      return value;
    } finally {
      this.#open = null;
      // Even if all went well: parts of it may have been undone before the end.
      this.#intake.forget();
    }
  }

  enqueue(jobs: readonly NewJob[]): Enqueued[] {
    if (this.#open === null) {
      throw new HoldfastError(
        "TX_OVER",
        "The transaction that this handle was given for is over.",
        "Enqueue inside the callback of hf.transaction, before it returns; keep the handle no longer than that.",
      );
    }
    // A savepoint outside of any transaction would be one by itself, and be committed by its end.
    if (!this.#db.inTransaction) throw ended();
    try {
      return this.#intake.provisionally(this.#open, jobs);
    } catch (error) {
      throw explain(error, this.#path);
    }
  }

  /** The savepoint is gone with the transaction it was made in, even if another one was begun since. */
  #refuseEnded(): void {
    try {
      if (this.#db.inTransaction) return void this.#release.run();
    } catch {
      // No such savepoint.
    }
    throw ended();
  }
}

function ended(): HoldfastError {
  return new HoldfastError(
    "TX_ENDED",
    "The callback of hf.transaction has ended its transaction by itself, or a full disk has.",
    "Leave commit and rollback to hf.transaction: return to commit, throw to undo. What was committed before is in the file.",
  );
}
