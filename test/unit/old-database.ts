import { connect } from "../../src/store/sqlite/driver.ts";
import type { TestContext } from "node:test";
import { migrate, MIGRATIONS } from "../../src/store/sqlite/migrate.ts";

/** There is one schema so far, so an upgrade is tried with a step that no Holdfast has. */
export const LATER = { name: "later", sql: "create table holdfast_later (n integer);" };

/** For the rest of the test, this process is one of a Holdfast with a later schema. */
export function becomeLater(t: TestContext): void {
  MIGRATIONS.push(LATER);
  t.after(() => void MIGRATIONS.pop());
}

/** A database as a Holdfast of the first schema has left it, with a table of its user's. */
export function oldDatabase(path: string, more = ""): void {
  const db = connect("node:sqlite", path, { busyTimeout: 0 });
  db.exec("pragma journal_mode = wal");
  migrate(db, { path, now: 0, actor: null, upTo: 1, whenNew: () => {} });
  db.exec("insert into holdfast_database (id, database_id, durability, created_at) values (1, 'an old one', 'power', 0)");
  // A process has worked in it, and left.
  db.exec(`insert into holdfast_processes (alive, identity, driver, pid, host, boot, program, started_at)
    values ('', '', 'node:sqlite', 1, 'here', 'a boot', 'an older one', 0)`);
  db.exec("delete from holdfast_processes");
  db.exec("update holdfast_counter set commits = 7");
  db.exec(`create table orders (item text); ${more}`);
  db.close();
}
