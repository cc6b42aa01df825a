import { DatabaseSync } from "node:sqlite";
import type { JobState } from "../../src/core/job.ts";

export interface Move {
  key: number;
  fence: number;
  from: JobState;
  to: JobState;
}

/**
 * A trigger writes down each change of a job's state, in the transaction that makes it, whichever process that is: the
 * database itself bears witness that no job was committed twice and that no state was skipped.
 */
export function watchMoves(path: string): void {
  const db = new DatabaseSync(path, { timeout: 5_000 });
  db.exec(`
    create table if not exists test_moves (
      id integer primary key, key integer not null, fence integer not null, "from" text not null, "to" text not null);
    create trigger if not exists test_move after update of state on holdfast_jobs when old.state <> new.state begin
      insert into test_moves (key, fence, "from", "to") values (new.key, new.fence, old.state, new.state);
    end`);
  db.close();
}

export function movesOf(path: string): Move[] {
  return query(path, `select key, fence, "from", "to" from test_moves order by id`) as unknown as Move[];
}

/** A look at the rows themselves, past the engine. */
export function query(path: string, sql: string): Record<string, unknown>[] {
  const db = new DatabaseSync(path, { timeout: 5_000 });
  try {
    return db
      .prepare(sql)
      .all()
      .map((row) => Object.assign({}, row));
  } finally {
    db.close();
  }
}

/** Whether a write transaction could begin now. */
export function isWritable(path: string): boolean {
  const db = new DatabaseSync(path, { timeout: 0 });
  try {
    db.exec("begin immediate; rollback");
    return true;
  } catch {
    return false;
  } finally {
    db.close();
  }
}
