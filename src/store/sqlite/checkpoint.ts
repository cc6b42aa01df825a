import { statSync } from "node:fs";
import type { Connection, Statement } from "./driver.ts";

/** From here on the WAL's pages are copied into the database, beside the writers. */
const COPY = 1024 * 1024;
/** From here on writers are made to wait for a moment, so that the WAL can start anew: it must not grow without end. */
const RESTART = 8 * 1024 * 1024;

/** Keeps the write-ahead log short, from a thread where a stall hurts nobody. */
export class Checkpoint {
  readonly #wal: string;
  readonly #passive: Statement;
  readonly #restart: Statement;

  constructor(db: Connection, path: string) {
    this.#wal = `${path}-wal`;
    this.#passive = db.prepare("pragma wal_checkpoint(passive)");
    this.#restart = db.prepare("pragma wal_checkpoint(restart)");
  }

  run(): void {
    const size = this.size();
    if (size < COPY) return;
    this.#passive.row();
    // A reader that pins the log makes this answer "busy", a row and no error; the next round tries again.
    if (size >= RESTART) this.#restart.row();
  }

  size(): number {
    return statSync(this.#wal, { throwIfNoEntry: false })?.size ?? 0;
  }
}
