import type { Enqueued, NewJob } from "../store.ts";
import { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import { Enqueue } from "./enqueue.ts";
import type { Tx } from "./group-commit.ts";

/** What it takes to put jobs in through a connection: the store's own, or a user's. */
export class Intake {
  readonly catalog: Catalog;
  readonly enqueue: Enqueue;
  readonly #db: Connection;
  readonly #mark: Statement;
  readonly #undo: Statement;
  readonly #keep: Statement;

  constructor(db: Connection) {
    this.#db = db;
    this.catalog = new Catalog(db);
    this.enqueue = new Enqueue(db, this.catalog);
    this.#mark = db.prepare("savepoint holdfast_enqueue");
    this.#undo = db.prepare("rollback to holdfast_enqueue");
    this.#keep = db.prepare("release holdfast_enqueue");
  }

  /** After something was undone: what was learnt inside it may not be there. */
  forget(): void {
    this.catalog.forget();
  }

  /** All of them, or, when an id of theirs is taken, none: then the answer is that one alone. */
  whole(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    const taken = this.enqueue.taken(jobs);
    return taken === undefined ? this.enqueue.run(tx, jobs) : [{ id: taken.id, taken: taken.owner }];
  }

  /**
   * In a transaction that is somebody else's to commit or to undo, in part even: so nothing that an earlier call has
   * learnt in it is believed. When it throws, it has left nothing behind, and the transaction may go on.
   */
  provisionally(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    this.forget();
    this.#mark.run();
    try {
      const answers = this.whole(tx, jobs);
      this.#keep.run();
      return answers;
    } catch (error) {
      // A full disk has ended the whole transaction, savepoint and all.
      if (this.#db.inTransaction) {
        this.#undo.run();
        this.#keep.run();
      }
      throw error;
    }
  }
}
