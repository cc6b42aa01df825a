import { DatabaseSync } from "node:sqlite";
import * as jobs from "../../src/store/sqlite/migrations/001-jobs.ts";
import * as queues from "../../src/store/sqlite/migrations/002-queues.ts";
import * as dependencies from "../../src/store/sqlite/migrations/003-dependencies.ts";
import * as schedules from "../../src/store/sqlite/migrations/004-schedules.ts";
import * as events from "../../src/store/sqlite/migrations/005-events.ts";
import * as builds from "../../src/store/sqlite/migrations/006-builds.ts";

/** A database as an older Holdfast has left it, with a table of its user's. */
export function oldDatabase(path: string, version: 1 | 2 | 3 | 4 | 5 | 6, more = ""): void {
  const db = new DatabaseSync(path);
  db.exec("pragma journal_mode = wal");
  db.exec("create table holdfast_migrations (version integer primary key, name text not null, applied_at integer not null)");
  for (const [i, { name, sql }] of [jobs, queues, dependencies, schedules, events, builds].slice(0, version).entries()) {
    db.exec(sql);
    db.prepare("insert into holdfast_migrations (version, name, applied_at) values (?, ?, 0)").run(i + 1, name);
  }
  db.exec("insert into holdfast_database (id, database_id, durability, created_at) values (1, 'an old one', 'power', 0)");
  // Somebody has worked in it, and left.
  db.exec(`insert into holdfast_processes (alive, identity, driver, pid, host, boot, program, started_at)
    values ('', '', 'node:sqlite', 1, 'here', 'a boot', 'an older one', 0)`);
  db.exec("delete from holdfast_processes");
  db.exec(`create table orders (item text); ${more}`);
  db.close();
}
