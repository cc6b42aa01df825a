import { hash } from "node:crypto";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

export interface NewEvent {
  type: string;
  /** What makes it one of its kind; its hash is the dedupe key. */
  transition: string;
  /** The job's id. */
  job?: string;
  data: object;
}

/** The outbox's inlet: an event is written in the transaction of what it tells, or not at all. */
export class Events {
  readonly #insert: Statement;

  constructor(db: Connection) {
    this.#insert = db.prepare(
      "insert into holdfast_events (type, at, dedupe_key, job, data) values (?, ?, ?, ?, ?) on conflict (dedupe_key) do nothing",
    );
  }

  add(tx: Tx, { type, transition, job, data }: NewEvent): void {
    this.#insert.run(type, tx.now, hash("sha256", transition), job ?? null, JSON.stringify(data));
    tx.wrote();
  }
}
