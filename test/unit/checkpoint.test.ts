import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { walSize } from "../../src/store/sqlite/maintenance/wal.ts";
import { Checkpoint } from "../../src/store/sqlite/maintenance/maintenance.ts";
import { connect, type Connection, type DriverName } from "../../src/store/sqlite/driver.ts";

const MB = 1024 * 1024;

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  test(`the WAL restarts and stays short, however much is written (${driver})`, (t) => {
    const { path, db, write, connection } = place(t, driver);
    const checkpoint = new Checkpoint(connection());
    for (let round = 0; round < 20; round++) {
      write(3 * MB);
      checkpoint.run();
    }
    assert.ok(walSize(path) < 16 * MB, `${walSize(path)} bytes`);
    assert.equal((db.prepare("select count(*) from t").row() as [number])[0], 20 * 3 * 256);
  });

  test(`a reader that pins the WAL is not an error, and the WAL is cleared once it ends (${driver})`, (t) => {
    const { path, write, connection } = place(t, driver);
    const checkpoint = new Checkpoint(connection());
    const reader = connection();
    reader.exec("begin");
    reader.prepare("select count(*) from t").row();
    write(12 * MB);
    checkpoint.run();
    const pinned = walSize(path);
    assert.ok(pinned >= 12 * MB);
    reader.exec("rollback");
    checkpoint.run();
    write(12 * MB);
    assert.ok(walSize(path) < pinned + MB, "it is written over from its start");
  });
}

function place(t: TestContext, driver: DriverName) {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-checkpoint-"));
  const path = join(folder, "work.db");
  const open: Connection[] = [];
  const connection = () => {
    const db = connect(driver, path, { busyTimeout: 0 });
    open.push(db);
    db.exec("pragma journal_mode = wal; pragma synchronous = normal; pragma wal_autocheckpoint = 0");
    return db;
  };
  t.after(() => {
    for (const db of open) db.close();
    rmSync(folder, { recursive: true });
  });
  const db = connection();
  db.exec("create table t (body text)");
  const insert = db.prepare("insert into t (body) values (?)");
  /** About so many bytes, in rows of a page. */
  const write = (bytes: number) => {
    db.exec("begin immediate");
    for (let i = 0; i < bytes / 4096; i++) insert.run("x".repeat(4_000));
    db.exec("commit");
  };
  return { path, db, write, connection };
}
