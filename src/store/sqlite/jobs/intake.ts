import { refusedWhole } from "../../../core/jobs/admission.ts";
import type { Enqueued, NewJob } from "../../store.ts";
import { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { WorkBatches } from "../../sql/work/work-batches.ts";
import { DIALECT } from "../dialect.ts";
import { RESULT_GUARD, TARGET_GUARD, workDatabase } from "../work.ts";
import { Settings } from "./settings.ts";
import { Endings, Tally, Waits } from "./endings.ts";
import { Enqueue } from "./enqueue.ts";
import { Events, JobEvents } from "./events.ts";
import { Expiring } from "./expiring.ts";
import { Limits } from "./limits.ts";

/** What it takes to put jobs in through a connection: the store's own, or a user's. */
export class Intake {
  readonly catalog: Catalog;
  readonly settings: Settings;
  readonly tally: Tally;
  readonly events: Events;
  readonly waits: Waits;
  readonly jobEvents: JobEvents;
  readonly limits: Limits;
  readonly expiring: Expiring;
  readonly endings: Endings;
  readonly enqueue: Enqueue;
  /** What builds work on. */
  readonly batches: WorkBatches;
  readonly #db: Connection;
  readonly #mark: Statement;
  readonly #undo: Statement;
  readonly #keep: Statement;

  constructor(db: Connection, options: { speaks: boolean }) {
    this.#db = db;
    const catalog = (this.catalog = new Catalog(db));
    const settings = (this.settings = new Settings(db, options));
    const tally = (this.tally = new Tally(db));
    this.events = new Events(db);
    const waits = (this.waits = new Waits(db));
    const events = (this.jobEvents = new JobEvents(db, { catalog, settings, events: this.events }));
    const limits = (this.limits = new Limits(db, { catalog, settings }));
    const expiring = (this.expiring = new Expiring(db, { catalog, settings, tally }));
    const guards = { targets: TARGET_GUARD, results: RESULT_GUARD };
    const batches = (this.batches = new WorkBatches(DIALECT, { settings, database: workDatabase(db, catalog), guards }));
    const parts = { catalog, settings, tally, waits, limits, expiring, events, batches };
    const endings = (this.endings = new Endings(db, parts));
    this.enqueue = new Enqueue(db, { catalog, settings, limits, waits, endings, events, batches });
    this.#mark = db.prepare("savepoint holdfast_enqueue");
    this.#undo = db.prepare("rollback to holdfast_enqueue");
    this.#keep = db.prepare("release holdfast_enqueue");
  }

  /** After something was undone: what was learnt inside it may not be there. */
  forget(): void {
    this.catalog.forget();
    this.settings.forget();
    this.endings.forget();
    this.limits.forget();
  }

  /** All of them, or, when one of them cannot be, none: then the answer is that one alone. */
  whole(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    const refused = this.enqueue.refused(jobs);
    return refused === undefined ? this.enqueue.run(tx, jobs) : refusedWhole(refused);
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
