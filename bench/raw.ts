import { DatabaseSync } from "node:sqlite";
import type { Durability } from "../src/store/store.ts";
import { rate } from "./measure.ts";
import { payload } from "./scratch.ts";

/**
 * The limit: what SQLite does here for the least table that could be a queue — a key that is never reused, a state, one
 * partial index, fenced completion — with prepared statements, and nothing of a job engine around it.
 */
export class Raw {
  readonly #db: DatabaseSync;
  readonly #begin;
  readonly #commit;
  readonly #insert;
  readonly #claim;
  readonly #complete;

  constructor(path: string, durability: Durability) {
    const db = new DatabaseSync(path);
    db.exec(`pragma journal_mode = wal; pragma synchronous = ${durability === "power" ? "full" : "normal"}`);
    db.exec(`
      create table jobs (
        key integer primary key autoincrement, state text not null, priority integer not null,
        fence integer not null default 0, expires_at integer, input text, output text);
      create index ready on jobs (priority desc, key) where state = 'pending'`);
    this.#db = db;
    this.#begin = db.prepare("begin immediate");
    this.#commit = db.prepare("commit");
    this.#insert = db.prepare("insert into jobs (state, priority, input) values ('pending', 0, ?)");
    this.#claim = db.prepare(
      `update jobs set state = 'running', fence = fence + 1, expires_at = ?
       where key in (select key from jobs where state = 'pending' order by priority desc, key limit ?)
       returning key, fence, input`,
    );
    this.#complete = db.prepare(
      "update jobs set state = 'succeeded', output = ? where key = ? and fence = ? and state = 'running'",
    );
  }

  /** Jobs a second; `batch` inserts in a commit. */
  insert(jobs: number, batch: number): number {
    const start = performance.now();
    for (let i = 0; i < jobs; i += batch) {
      this.#begin.run();
      for (let k = i; k < i + batch && k < jobs; k++) this.#insert.run(JSON.stringify(payload(k)));
      this.#commit.run();
    }
    return rate(jobs, start);
  }

  /** Jobs a second; each commit completes what the one before claimed, and claims the next. */
  drain(batch: number): number {
    const start = performance.now();
    let done = 0;
    let held: { key: number; fence: number }[] = [];
    for (;;) {
      this.#begin.run();
      for (const { key, fence } of held) this.#complete.run("null", key, fence);
      done += held.length;
      held = this.#claim.all(Date.now() + 30_000, batch) as typeof held;
      this.#commit.run();
      if (held.length === 0) return rate(done, start);
    }
  }

  close(): void {
    this.#db.close();
  }
}
