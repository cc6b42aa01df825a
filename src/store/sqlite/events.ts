import { about, change, type NewEvent } from "../../core/event.ts";
import { rowChecksum } from "./checksum.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

/** The outbox's inlet: an event is written in the transaction of what it tells, or not at all. */
export class Events {
  readonly #insert: Statement;
  #told = 0;

  constructor(db: Connection) {
    this.#insert = db.prepare(
      "insert into holdfast_events (type, at, transition, job, build, data, checksum) values (?, ?, ?, ?, ?, ?, ?)",
    );
  }

  add(tx: Tx, { type, transition, job, build, data }: NewEvent): void {
    const row = { type, at: tx.now, transition, job: job ?? null, build: build ?? null, data: JSON.stringify(data) };
    this.#insert.run(type, tx.now, transition, row.job, row.build, row.data, rowChecksum("holdfast_events", row));
    tx.wrote();
  }

  tell(tx: Tx, event: NewEvent): void {
    this.add(tx, event);
  }

  /** No other commit has its number, and no other event of this one the second. */
  unique(tx: Tx): string {
    return `${tx.commit}:${++this.#told}`;
  }

  /** What an operator does. One commit may hold the same twice, e.g. a lock broken, taken and broken again: both are told. */
  act(tx: Tx, type: string, subject: string, data = about(type, subject), build?: string): void {
    const transition = change(type, subject, tx.commit, ++this.#told);
    this.add(tx, { type, transition, data, ...(build === undefined ? {} : { build }) });
  }
}
