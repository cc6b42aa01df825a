import assert from "node:assert/strict";
import { chmodSync, existsSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { after, before, suite, test, type TestContext } from "node:test";
import { items, job, open, type OpenOptions, pipeline } from "../../src/index.ts";
import { restoreWhole } from "../../src/operator/restore.ts";
import type { NewFinding } from "../../src/store/maintenance.ts";
import { copyFrom } from "../../src/store/sqlite/maintenance/backup/copy.ts";
import { connect, type Connection } from "../../src/store/sqlite/driver.ts";
import { Findings } from "../../src/store/sqlite/maintenance/damage/findings.ts";
import { folder } from "./parts.ts";

const skip = process.platform === "win32" ? "Windows has no file modes" : false;

// Whatever the umask is, Holdfast's files have the mode that they should.
const umask = process.umask();
before(() => process.umask(0o002));
after(() => process.umask(umask));

const told = job({ name: "told", queue: { name: "told", events: true }, run: () => null });
const large = pipeline("large")
  .source(items(() => ["a"], { id: (name) => name }))
  .stage("grow", {}, ({ artifact }) => artifact("text", "x".repeat(100_000)));

/** Uses everything that writes files beside a database. */
async function useAll(t: TestContext, options: OpenOptions): Promise<string> {
  const base = await folder(t);
  const path = join(base, "work.db");
  const sinks = { out: { type: "file", path: join(base, "events.jsonl") } } as const;
  await using hf = await open(path, { ...options, sinks, journal: true, log: false });
  const { id } = await hf.enqueue(told, 1);
  hf.work([told]);
  await hf.jobs.wait(id);
  await (await hf.builds.start(large)).done();
  await hf.backup(join(base, "backup.db"), { artifacts: true });
  new Findings(path).add({ severity: "loss", what: "a test" } as NewFinding, 0);
  while (!existsSync(sinks.out.path) || !existsSync(`${path}-changes`)) await new Promise((resolve) => setImmediate(resolve));
  check(base);
  await hf.close();
  return base;

  function check(folderOf: string): void {
    const mode = options.mode ?? 0o600;
    for (const entry of readdirSync(folderOf, { recursive: true, withFileTypes: true })) {
      const found = join(entry.parentPath, entry.name);
      const stat = statSync(found, { throwIfNoEntry: false });
      if (stat === undefined) continue;
      const most = stat.isDirectory() ? mode | ((mode & 0o444) >> 2) : mode;
      const what = `${found} is 0o${(stat.mode & 0o777).toString(8)}`;
      assert.equal(stat.mode & 0o777 & ~most, 0, `${what}, open to more than the database`);
      // Artifacts are only read.
      assert.equal(most & 0o444 & ~stat.mode, 0, `${what}, closed to who may read the database`);
    }
  }
}

suite("file modes", { skip }, () => {
  test("files beside a new database are readable by their owner alone", async (t) => {
    const base = await useAll(t, {});
    assert.equal(statSync(join(base, "work.db")).mode & 0o777, 0o600);
  });

  test("with `mode` a group may share the database, whatever the umask is", async (t) => {
    process.umask(0o077);
    t.after(() => process.umask(0o002));
    const base = await useAll(t, { mode: 0o660 });
    assert.equal(statSync(join(base, "work.db")).mode & 0o777, 0o660);
    assert.equal(statSync(join(base, "events.jsonl")).mode & 0o777, 0o660);
    assert.equal(statSync(join(base, "work.db-artifacts")).mode & 0o777, 0o770);
    assert.equal(statSync(join(base, "backup.db.json")).mode & 0o777, 0o660);
  });

  test("an existing database keeps its mode, and files made beside it or restored follow it", async (t) => {
    const base = await folder(t);
    const path = join(base, "work.db");
    await (await open(path)).close();
    chmodSync(path, 0o640);
    for (const beside of ["alive", "witness"]) rmSync(`${path}-${beside}`, { recursive: true, force: true });
    const backup = join(base, "backup.db");
    {
      await using hf = await open(path, { mode: 0o600 });
      await hf.enqueue(told, 1);
      assert.deepEqual(
        ["", "-wal", "-shm", "-alive", "-witness"].map((end) => (statSync(path + end).mode & 0o777).toString(8)),
        ["640", "640", "640", "750", "750"],
      );
      await hf.backup(backup);
    }
    assert.equal(statSync(backup).mode & 0o777, 0o640);
    chmodSync(path, 0o660);
    await restoreWhole({ path, backup, driver: "node:sqlite", by: "a test", now: Date.now(), force: false });
    assert.equal(statSync(path).mode & 0o777, 0o660);
  });

  test("a backup has the database's mode from its first byte on", async (t) => {
    const base = await folder(t);
    const path = join(base, "work.db");
    await (await open(path, { mode: 0o640, log: false })).close();
    const copied = join(base, "copy.db");
    const modes: number[] = [];
    const db = connect("node:sqlite", path, { busyTimeout: 0, readOnly: true });
    const watched: Connection = Object.assign(Object.create(db) as Connection, {
      prepare(sql: string) {
        if (sql.startsWith("vacuum")) modes.push((statSync(copied, { throwIfNoEntry: false })?.mode ?? 0o777) & 0o777);
        return db.prepare(sql);
      },
    });
    copyFrom(watched, path, copied, 0o640);
    db.close();
    assert.deepEqual([...modes, statSync(copied).mode & 0o777], [0o640, 0o640]);
    assert.ok(statSync(copied).size > 0);
  });

  test("a mode without the owner's bits or with execute bits is rejected", async () => {
    for (const mode of [0o400, 0o066, 0o700, 0o1600, 1.5, -1])
      await assert.rejects(open(":memory:", { mode }), { code: "OPTION_INVALID", message: /mode must be/ });
  });

  test("an export follows the umask", async (t) => {
    const base = await folder(t);
    await using hf = await open(join(base, "work.db"));
    const build = await hf.builds.start(large);
    await build.done();
    const out = await hf.builds.export(build.id, join(base, "out"));
    assert.equal(statSync(out).mode & 0o777, 0o775);
    assert.equal(statSync(join(out, "manifest.json")).mode & 0o777, 0o664);
  });
});
