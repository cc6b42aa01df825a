import { hash } from "node:crypto";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

export interface NewEvent {
  type: string;
  /** What makes it one of its kind in this database; the dedupe key is a hash of both. */
  transition: string;
  /** The job's id. */
  job?: string;
  data: object;
}

/** The outbox's inlet: an event is written in the transaction of what it tells, or not at all. */
export class Events {
  readonly #insert: Statement;
  readonly #database: Statement;
  #databaseId: string | null = null;

  constructor(db: Connection) {
    this.#database = db.prepare("select database_id from holdfast_database where id = 1");
    this.#insert = db.prepare(
      "insert into holdfast_events (type, at, dedupe_key, job, data) values (?, ?, ?, ?, ?) on conflict (dedupe_key) do nothing",
    );
  }

  add(tx: Tx, { type, transition, job, data }: NewEvent): void {
    const values = [job ?? null, JSON.stringify(data)] as const;
    // One commit may hold the same change twice, e.g. a lock broken, taken and broken again: both are told.
    for (let time = 1; ; time++) {
      const once = time === 1 ? transition : `${transition}|${time}`;
      if (this.#insert.run(type, tx.now, this.#keyOf(once), ...values) > 0) break;
    }
    tx.wrote();
  }

  /** Several databases may deliver to one place, and count from one each: their events must not be taken for each other. */
  #keyOf(transition: string): string {
    this.#databaseId ??= (this.#database.row() as [string])[0];
    return hash("sha256", `${this.#databaseId}|${transition}`);
  }
}
