import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { suite, test, type TestContext } from "node:test";
import { type Holdfast, items, job, open, pipeline } from "../../src/index.ts";
import { openStore, locate } from "../../src/store/open-store.ts";
import { restoreWhole, type RestoredDatabase } from "../../src/operator/restore.ts";
import { systemClock } from "../../src/engine/host.ts";
import { schemaVersion } from "../../src/store/sqlite/migrate.ts";
import { newBuild, newLead } from "../conformance/build-parts.ts";
import { code, folder } from "./parts.ts";

const note = job({ name: "note", run: () => {} });
const NOW = Date.UTC(2030, 0, 1);

interface Ground {
  base: string;
  path: string;
  backup: string;
  restore: (given?: { force?: boolean; backup?: string; path?: string }) => Promise<RestoredDatabase>;
}

async function ground(t: TestContext): Promise<Ground> {
  const base = await folder(t);
  const [path, backup] = [join(base, "work.db"), join(base, "backup.db")];
  const restore: Ground["restore"] = ({ force = false, ...given } = {}) =>
    restoreWhole({ path, backup, driver: "node:sqlite", by: "a test", now: NOW, force, ...given });
  return { base, path, backup, restore };
}

async function ids(hf: Holdfast): Promise<string[]> {
  return (await hf.jobs.list({ limit: 100 })).items.map(({ id }) => id);
}

/** Whatever was there is there, byte for byte. */
function unchanged(path: string): () => void {
  const before = readFileSync(path);
  return () => {
    assert.ok(readFileSync(path).equals(before));
    assert.ok(!existsSync(`${path}-restore`));
  };
}

suite("a restore", () => {
  test("a restore puts back the state of the backup, keeps a copy of the current state, and writes an audit entry", async (t) => {
    const { base, path, backup, restore } = await ground(t);
    let before: string[];
    {
      await using hf = await open(path);
      await hf.transaction(({ db }) => void db.exec("create table orders (item text); insert into orders values ('pen')"));
      await hf.enqueueMany(note, [1, 2]);
      before = await ids(hf);
      await hf.backup(backup);
      await hf.transaction(({ db }) => void db.exec("delete from orders"));
      await hf.enqueue(note, 3);
    }
    const restored = await restore();
    assert.deepEqual([restored.epoch, restored.running], [1, 0]);
    await using hf = await open(path);
    assert.deepEqual(await ids(hf), before);
    assert.equal(await hf.recovery.lastReport(), null, "no process held a job, so nothing was recovered");
    const db = new DatabaseSync(path, { readOnly: true });
    assert.equal(db.prepare("select count(*) as n from orders").get()?.["n"], 1);
    const [entry] = db.prepare("select action, actor from holdfast_audit where action = 'database.restored'").all();
    assert.equal(entry?.["actor"], "a test");
    const told = await hf.engine.store.events.page({ after: 0, limit: 10, types: ["database.*"] });
    assert.deepEqual(
      told.map(({ type }) => type),
      ["database.restored"],
    );
    db.close();
    await using kept = await open(restored.kept as string, { recovery: "manual" });
    assert.equal((await ids(kept)).length, 3);
    assert.ok(readdirSync(base).every((name) => !name.endsWith("-restore")));

    const later = await hf.enqueue(note, 4);
    const [first] = before as [string];
    assert.ok(later.id > first && !(await ids(kept)).includes(later.id), "no id is given out twice");
  });

  test("a restore works without a database, and with one that is damaged beyond reading", async (t) => {
    const { path, backup, restore } = await ground(t);
    {
      await using hf = await open(path);
      await hf.enqueue(note, 1);
      await hf.backup(backup);
    }
    rmSync(path);
    assert.equal((await restore()).kept, null);
    await (await open(path)).close();
    writeFileSync(path, Buffer.alloc(100_000, 7));
    const { epoch, kept } = await restore();
    assert.equal(epoch, 2, "what was given out is remembered beside the database");
    assert.equal(readFileSync(kept as string)[0], 7);
    await using hf = await open(path);
    assert.equal((await ids(hf)).length, 1);
  });

  test("a damaged backup, one of a newer schema or of another database is rejected, and nothing changes", async (t) => {
    const { base, path, backup, restore } = await ground(t);
    const other = join(base, "other.db");
    {
      await using hf = await open(path);
      await hf.enqueueMany(note, [1, 2, 3]);
      await hf.backup(backup);
      await using another = await open(join(base, "another.db"));
      await another.backup(other);
    }
    const check = unchanged(path);
    await assert.rejects(restore({ backup: other }), code("OTHER_DATABASE"));
    await assert.rejects(restore({ backup: join(base, "none.db") }), code("NO_BACKUP"));
    await assert.rejects(restore({ backup: path }), code("USAGE"));
    const db = new DatabaseSync(other);
    db.exec(`insert into holdfast_migrations (version, name, applied_at) values (${schemaVersion() + 1}, 'later', 0)`);
    db.close();
    rmSync(`${other}.json`);
    await assert.rejects(restore({ backup: other, force: true }), code("SCHEMA_NEWER"));
    truncateSync(backup, 40_960);
    await assert.rejects(restore(), code("BACKUP_DAMAGED"));
    check();
  });

  test("a restore with --force replaces another database", async (t) => {
    const { base, path, restore } = await ground(t);
    const other = join(base, "other.db");
    {
      await using hf = await open(path);
      await hf.enqueue(note, 1);
      await using another = await open(join(base, "another.db"));
      await another.backup(other);
    }
    await restore({ backup: other, force: true });
    await using hf = await open(path);
    assert.deepEqual(await ids(hf), []);
  });

  test("a restore brings back artifacts from the backup, and names those that are missing", async (t) => {
    const { base, path, backup, restore } = await ground(t);
    const made = pipeline("made")
      .source(items(() => ["one", "two"], { id: (name) => name }))
      .stage("grow", {}, ({ input }) => `${input} ${"a line of text\n".repeat(50_000)}`);
    const bare = join(base, "bare.db");
    let id: string;
    {
      await using hf = await open(path);
      const build = await hf.builds.start(made);
      id = build.id;
      await build.done();
      await hf.backup(backup, { artifacts: true });
      await hf.backup(bare);
    }
    rmSync(`${path}-artifacts`, { recursive: true });
    assert.equal((await restore({ backup: bare })).artifacts.missing.length, 2);
    assert.deepEqual((await restore()).artifacts, { restored: 2, missing: [] });
    await using hf = await open(path);
    assert.match(String(await hf.builds.output(id, "grow", "one")), /^one a line/);
  });

  test("a restore with a damaged or missing artifact in the backup is rejected, and nothing changes", async (t) => {
    const { path, backup, restore } = await ground(t);
    const made = pipeline("made")
      .source(items(() => ["one", "two"], { id: (name) => name }))
      .stage("grow", {}, ({ input }) => `${input} ${"a line of text\n".repeat(50_000)}`);
    {
      await using hf = await open(path);
      await (await hf.builds.start(made)).done();
      await hf.backup(backup, { artifacts: true });
    }
    const check = unchanged(path);
    const folderOf = `${backup}-artifacts`;
    const artifact = readdirSync(folderOf, { recursive: true, withFileTypes: true }).find((entry) => entry.isFile());
    assert.ok(artifact !== undefined);
    const file = join(artifact.parentPath, artifact.name);
    const bytes = readFileSync(file);
    writeFileSync(file, bytes.fill(0, 100, 101));
    await assert.rejects(restore(), code("BACKUP_DAMAGED"));
    rmSync(file);
    await assert.rejects(restore(), code("BACKUP_DAMAGED"));
    check();
  });
});

suite("after a restore", () => {
  test("jobs that ran at the backup run again without a counted crash, and their old holders are rejected", async (t) => {
    const { path, backup, restore } = await ground(t);
    const location = locate(path, {});
    const store = await openStore(location, { clock: systemClock, injected: false });
    const self = await store.processes.register({ pid: 1, host: "here", boot: "a boot", program: "a zombie" });
    const build = await store.builds.start(newBuild(newLead(self)));
    assert.ok("id" in build, "it leads");
    {
      await using hf = await open(path, { recovery: "manual" });
      await hf.enqueue(note, 1, { id: "held" });
    }
    const from = [{ queue: "note", name: "note", version: 1, lease: 600_000 }];
    const [claimed] = await store.claim({ from, max: 1, holder: self, worker: "w" });
    assert.ok(claimed !== undefined);
    await store.maintenance.backUp(backup, {
      reason: "asked",
      onProgress: () => {},
      collect: async (hashes) => ({ included: false, hashes, bytes: 0, missing: [] }),
    });
    const lock = { pipeline: "docs", token: newLead(self).token };
    assert.ok(await store.builds.beat(lock));
    await store.close();
    assert.equal((await restore()).running, 1);

    const after = await openStore(location, { clock: systemClock, injected: false });
    const settled = { job: claimed.job, fence: claimed.fence, outcome: { kind: "succeeded", output: null } } as const;
    assert.deepEqual(await after.settle([settled]), ["lost"]);
    assert.deepEqual(await after.renew([{ job: claimed.job, fence: claimed.fence, lease: 1_000 }]), ["lost"]);
    assert.equal(await after.builds.beat(lock), false);
    await after.close();

    await using hf = await open(path);
    const report = await hf.recovery.lastReport();
    assert.deepEqual([report?.jobsResetToPending, report?.buildsCrashed, report?.wasSuccessful], [1, 1, true]);
    const held = await hf.jobs.get("held");
    assert.deepEqual([held?.state, held?.crashes], ["pending", 0]);
    assert.equal((await hf.builds.get(build.id))?.state, "CRASHED");
    await using again = (await hf.claim("note", { worker: "x" })) ?? undefined;
    assert.equal(again?.job.id, "held");
    const { store: now } = hf.engine;
    assert.deepEqual(await now.settle([settled]), ["lost"], "nor later, when another worker has it");
    const [row] = new DatabaseSync(path, { readOnly: true })
      .prepare("select fence from holdfast_jobs where state = 'running'")
      .all();
    assert.ok(Number(row?.["fence"]) > claimed.fence);
  });
});
