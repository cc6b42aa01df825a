import assert from "node:assert/strict";
import { existsSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { suite, test, type TestContext } from "node:test";
import { type Holdfast, job, open, type OpenOptions } from "../../src/index.ts";
import { ScheduledBackups } from "../../src/engine/maintenance/backups.ts";
import { restoreWhole } from "../../src/operator/restore.ts";
import { schemaVersion } from "../../src/store/sqlite/migrate.ts";
import { testClock, type TestClock } from "../../src/testing/clock.ts";
import { becomeLater, oldDatabase } from "../unit/old-database.ts";
import { apart, code, folder, type Logged, logInto } from "./parts.ts";

const note = job({ name: "note", run: () => {} });

interface Ground {
  path: string;
  to: string;
  clock: TestClock;
  logged: Logged[];
  files: () => string[];
  opened: (backups: OpenOptions["backups"]) => Promise<Holdfast>;
}

async function ground(t: TestContext): Promise<Ground> {
  const base = await folder(t);
  const [path, to] = [join(base, "work.db"), join(base, "backups")];
  const clock = testClock();
  const logged: Logged[] = [];
  const opened = async (backups: OpenOptions["backups"]) => {
    const hf = await open(path, { clock, log: logInto(logged), ...(backups === undefined ? {} : { backups }) });
    t.after(() => hf.close());
    return hf;
  };
  const files = () => (existsSync(to) ? readdirSync(to).filter((name) => name.endsWith(".db")) : []);
  return { path, to, clock, logged, files, opened };
}

suite("backups by a plan", () => {
  test("a planned backup is made when the newest is old enough; the oldest are deleted, other files are kept", async (t) => {
    const { to, clock, files, opened } = await ground(t);
    const hf = await opened({ folder: to, every: "1h", keep: 2 });
    await clock.advance("1s");
    const [first] = files();
    assert.ok(first !== undefined, "there was none, so one is made at once");
    await hf.backup(join(to, "mine.db"));
    writeFileSync(join(to, "notes.json"), "{}");
    await clock.advance("59m");
    assert.equal(files().length, 2);
    for (let hour = 0; hour < 3; hour++) await clock.advance("1h");
    const now = files();
    assert.deepEqual([now.length, now.includes("mine.db"), now.includes(first)], [3, true, false]);
    assert.equal(readdirSync(to).length, 3 * 2 + 1, "a manifest goes with its backup");
  });

  test("one of several processes makes the planned backups, and another takes over when it exits", async (t) => {
    const { path, to, clock, files } = await ground(t);
    const plan = { folder: to, every: 3_600_000, keep: 10, artifacts: false };
    const handles = [await apart(path, { clock }), await apart(path, { clock }), await apart(path, { clock })];
    t.after(() => Promise.all(handles.map((hf) => hf.close())));
    const scheduled = handles.map(({ engine }) => new ScheduledBackups(engine, plan));
    for (const one of scheduled) one.start();
    await clock.advance("2m");
    assert.equal(files().length, 1);
    await scheduled[0]?.stop();
    await scheduled[1]?.stop();
    await clock.advance("2h");
    assert.equal(files().length, 3);
    await scheduled[2]?.stop();
    await clock.advance("5h");
    assert.equal(files().length, 3);
  });

  test("after a restore with a journal, a planned backup is made at once, because no older one leads to later instants", async (t) => {
    const { path, to, clock, files } = await ground(t);
    const opened = () => open(path, { clock, journal: true, backups: { folder: to, every: "1d" } });
    for (const rounds of [1, 1]) {
      await using _hf = await opened();
      await clock.advance("1s");
      assert.equal(files().length, rounds);
    }
    const backup = join(to, files()[0] as string);
    await restoreWhole({ path, backup, driver: "node:sqlite", by: "a test", now: clock.now(), force: false });
    await using _hf = await opened();
    await clock.advance("1s");
    assert.equal(files().length, 2);
  });

  test("a failing planned backup is reported once and retried until it succeeds", async (t) => {
    const { to, clock, logged, files, opened } = await ground(t);
    writeFileSync(to, "in the way");
    const hf = await opened({ folder: to, every: "1d" });
    await clock.advance("10m");
    assert.equal(logged.filter(({ message }) => message.startsWith("a backup failed")).length, 1);
    const failed = await hf.engine.store.events.page({ after: 0, limit: 10, types: ["backup.*"] });
    assert.deepEqual(
      failed.map(({ type }) => type),
      ["backup.failed"],
    );
    rmSync(to);
    await clock.advance("2m");
    assert.equal(files().length, 1);
  });

  test("planned backups are rejected without a folder, and on PostgreSQL", async () => {
    await assert.rejects(open(":memory:", { backups: { every: "1d" } }), code("OPTION_INVALID"));
    await assert.rejects(open("postgres://localhost:1/x", { backups: { folder: "a" } }), code("BACKUP_BY_SERVER"));
  });
});

suite("before the schema is changed", () => {
  test("a backup made before a schema change can be restored, and is migrated then", async (t) => {
    const { path, opened } = await ground(t);
    becomeLater(t);
    oldDatabase(path, "insert into orders values ('pen')");
    const hf = await opened(undefined);
    const { id } = await hf.enqueue(note, 1);
    await hf.close();
    const made = readdirSync(`${path}-backups`);
    assert.deepEqual(made.length, 2, made.join());
    const backup = join(`${path}-backups`, made.find((name) => name.endsWith(".db")) as string);
    const db = new DatabaseSync(backup, { readOnly: true });
    assert.equal(db.prepare("select max(version) as n from holdfast_migrations").get()?.["n"], 1);
    db.close();

    await restoreWhole({ path, backup, driver: "node:sqlite", by: "a test", now: Date.now(), force: false });
    const again = await opened(undefined);
    assert.equal(await again.jobs.get(id), null);
    const restored = new DatabaseSync(path, { readOnly: true });
    assert.equal(restored.prepare("select max(version) as n from holdfast_migrations").get()?.["n"], schemaVersion());
    assert.equal(restored.prepare("select count(*) as n from orders").get()?.["n"], 1);
    restored.close();
  });

  test("if the backup before a schema change fails, nothing changes, unless backups are switched off", async (t) => {
    const { path, opened } = await ground(t);
    becomeLater(t);
    oldDatabase(path);
    writeFileSync(`${path}-backups`, "in the way");
    await assert.rejects(opened(undefined), code("CANNOT_OPEN"));
    const db = new DatabaseSync(path, { readOnly: true });
    assert.equal(db.prepare("select max(version) as n from holdfast_migrations").get()?.["n"], 1);
    db.close();
    const hf = await opened({ beforeMigration: false });
    await hf.enqueue(note, 1);
  });

  test("a new or current database needs no backup before opening", async (t) => {
    const { path, opened } = await ground(t);
    await (await opened(undefined)).close();
    await (await opened(undefined)).close();
    assert.ok(!existsSync(`${path}-backups`));
  });
});
