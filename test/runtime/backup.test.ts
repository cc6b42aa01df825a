import assert from "node:assert/strict";
import {
  chmodSync,
  closeSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { suite, test } from "node:test";
import { items, job, open, pipeline } from "../../src/index.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { makeBackup, verifyWhole } from "../../src/engine/maintenance/backups.ts";
import type { Manifest } from "../../src/store/backups.ts";
import { code, folder, memory, unchecked } from "./parts.ts";
import { auditHead } from "../conformance/parts.ts";

const note = job({ name: "note", run: () => {} });

function manifestOf(path: string): Manifest {
  return JSON.parse(readFileSync(`${path}.json`, "utf8")) as Manifest;
}

/** Nothing but these, hidden files too. */
function holds(path: string, ...names: string[]): void {
  assert.deepEqual(readdirSync(path).toSorted(), names.toSorted());
}

/** Changes one byte of a file that no process has open. */
function flip(path: string, at: number): void {
  const byte = readFileSync(path)[at] as number;
  const fd = openSync(path, "r+");
  writeSync(fd, Uint8Array.of(byte ^ 0x40), 0, 1, at);
  closeSync(fd);
}

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  suite(`a backup with ${driver}`, () => {
    test("a backup holds every table, users' own too, and opens like any database", async (t) => {
      const base = await folder(t);
      const to = join(base, "backups.db");
      await using hf = await open(join(base, "work.db"), { driver });
      await hf.transaction(({ db }) => {
        db.exec("create table orders (item text); insert into orders values ('pen'), ('ink'), ('cup')");
        db.exec("delete from orders where rowid = 2");
        hf.enqueue(note, { n: 1 }, { tx: db });
      });
      await hf.enqueueMany(note, [{ n: 2 }, { n: 3 }]);
      const [first] = (await hf.jobs.list()).items;
      await hf.jobs.cancel(first?.id as string);
      await hf.backup(to);
      const after = await hf.enqueue(note, { n: 4 });

      const manifest = manifestOf(to);
      assert.deepEqual(manifest.counts.jobs, { cancelled: 1, pending: 2 });
      assert.equal(manifest.counts.tables["orders"], 2);
      assert.equal(manifest.databaseId, hf.engine.store.databaseId);
      assert.equal(manifest.size, statSync(to).size);
      assert.deepEqual(manifest.findings, []);
      assert.equal((await verifyWhole(to, driver, () => {})).sha256, manifest.sha256);

      await using copy = await open(to, { driver, recovery: "manual" });
      assert.equal((await copy.jobs.list()).items.length, 3);
      assert.equal(await copy.jobs.get(after.id), null, "what came later is not in it");
      const rows = await copy.transaction(({ db }) =>
        (db.prepare("select rowid as id, item from orders") as unknown as { all(): { id: number; item: string }[] }).all(),
      );
      assert.deepEqual(
        rows.map(({ id, item }) => [id, item]),
        [
          [1, "pen"],
          [3, "cup"],
        ],
        "rows keep their rowids",
      );
    });

    test("a backup of a damaged database is made and marked as damaged, and nothing else changes", async (t) => {
      const base = await folder(t);
      const [path, to] = [join(base, "work.db"), join(base, "copy.db")];
      {
        await using hf = await open(path, { driver });
        await hf.enqueueMany(
          note,
          Array.from({ length: 2_000 }, (_, n) => ({ n, text: "x".repeat(100) })),
        );
      }
      const db = new DatabaseSync(path);
      const pages = db.prepare("select pageno from dbstat where name = 'holdfast_jobs' and pagetype = 'leaf'").all();
      db.close();
      const { pageno } = pages[5] as { pageno: number };
      // The head of a page of the jobs' tree.
      for (let i = 0; i < 12; i++) flip(path, (pageno - 1) * 4096 + i);
      const before = readFileSync(path);
      const hf = await open(path, { driver, recovery: "manual" });
      await assert.rejects(hf.backup(to), code("DAMAGED"));
      await hf.close();
      assert.ok(manifestOf(to).findings.length > 0);
      assert.equal(statSync(to).size, before.length, "page by page, as it is");
      await assert.rejects(
        verifyWhole(to, driver, () => {}),
        code("BACKUP_DAMAGED"),
      );
    });
  });
}

suite("a backup", () => {
  test("a backup writes an audit entry, and the copy's audit is complete up to the head in its manifest", async (t) => {
    const base = await folder(t);
    const to = join(base, "copy.db");
    await using hf = await open(join(base, "work.db"), { program: "keeper" });
    await hf.queues.pause("mail");
    const head = await auditHead(hf.engine.store);
    await hf.backup(to);
    const { audit, size, sha256 } = manifestOf(to);
    assert.deepEqual(audit, { entries: 1, head: head.hash });
    const [made, ...others] = await hf.engine.store.audit.page({ after: 1, limit: 10 });
    assert.partialDeepStrictEqual(made, { action: "backup.made", subject: `backup:${to}`, after: { size, sha256 } });
    assert.match(made?.by ?? "", /^keeper \(pid /);
    assert.deepEqual(others, []);
    await using copy = await open(to);
    assert.deepEqual(await verifyAudit(copy.engine.store, [head]), { ok: true, entries: 1, head, fault: null });
  });

  test("a database in memory can be backed up", async (t) => {
    const base = await folder(t);
    const { hf } = await memory(t);
    await hf.enqueue(note, {});
    await hf.backup(join(base, "copy.db"));
    assert.deepEqual(manifestOf(join(base, "copy.db")).counts.jobs, { pending: 1 });
    holds(base, "copy.db", "copy.db.json");
  });

  test("a backup overwrites nothing, and a rejected backup leaves no file", async (t) => {
    const base = await folder(t);
    const { hf } = await memory(t);
    const to = join(base, "copy.db");
    await hf.backup(to);
    const made = readFileSync(`${to}.json`, "utf8");
    await assert.rejects(hf.backup(to), code("BACKUP_EXISTS"));
    rmSync(to);
    await assert.rejects(hf.backup(to), code("BACKUP_EXISTS"), "nor over a manifest");
    assert.equal(readFileSync(`${to}.json`, "utf8"), made);
    await assert.rejects(hf.backup(join(base, "not mounted", "copy.db")), code("FOLDER_MISSING"));
    await assert.rejects(hf.backup(unchecked<string>(7)), code("OPTION_INVALID"));
    holds(base, "copy.db.json");
  });

  test("of two concurrent backups to one path, one succeeds whole and the other is rejected", async (t) => {
    const base = await folder(t);
    await using hf = await open(join(base, "work.db"));
    await hf.enqueueMany(
      note,
      Array.from({ length: 500 }, (_, n) => ({ n })),
    );
    const to = join(base, "copy.db");
    const ended = await Promise.allSettled([hf.backup(to), hf.backup(to)]);
    assert.deepEqual(ended.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
    const refused = ended.find((end) => end.status === "rejected");
    code("BACKUP_EXISTS")(refused?.reason);
    assert.deepEqual((await verifyWhole(to, "node:sqlite", () => {})).facts.counts.jobs, { pending: 500 });
    assert.ok(!existsSync(join(base, ".holdfast-backups")));
  });

  test("a backup has the same file permissions as the database", { skip: process.platform === "win32" }, async (t) => {
    const base = await folder(t);
    const path = join(base, "work.db");
    await using hf = await open(path);
    chmodSync(path, 0o600);
    await hf.backup(join(base, "copy.db"));
    assert.equal(statSync(join(base, "copy.db")).mode & 0o777, 0o600);
  });

  test("close waits for a running backup", async (t) => {
    const base = await folder(t);
    const hf = await open(join(base, "work.db"));
    const made = hf.backup(join(base, "copy.db"));
    await hf.close();
    await made;
    await assert.rejects(hf.backup(join(base, "later.db")), code("CLOSED"));
  });

  test("a backup reports its progress", async (t) => {
    const base = await folder(t);
    await using hf = await open(join(base, "work.db"));
    const steps = new Set<string>();
    await hf.backup(join(base, "copy.db"), {
      onProgress: ({ step, done, total }) => {
        assert.ok(done >= 0 && total > 0);
        steps.add(step);
      },
    });
    assert.ok(steps.has("hashing"), [...steps].join());
  });
});

suite("artifacts", () => {
  const big = "a line of text\n".repeat(50_000);
  const made = pipeline("made")
    .source(items(() => ["one", "two"], { id: (name) => name }))
    .stage("grow", {}, ({ input }) => `${input} ${big}`);

  test("artifacts are listed in the manifest, and copied if the caller asks for it", async (t) => {
    const base = await folder(t);
    await using hf = await open(join(base, "work.db"));
    await (await hf.builds.start(made)).done();
    const [referring, including] = [join(base, "referring.db"), join(base, "including.db")];
    await hf.backup(referring);
    const { hashes, included } = manifestOf(referring).artifacts;
    assert.deepEqual([hashes.length, included], [2, false]);
    assert.ok(!existsSync(`${referring}-artifacts`));

    await hf.backup(including, { artifacts: true });
    const { artifacts } = manifestOf(including);
    assert.deepEqual([artifacts.hashes, artifacts.included, artifacts.missing], [hashes, true, []]);
    assert.ok(artifacts.bytes > 2 * big.length);
    await verifyWhole(including, "node:sqlite", () => {});
    const [damaged] = hashes as [string, string];
    const file = join(`${including}-artifacts`, damaged.slice(0, 2), damaged.slice(2));
    chmodSync(file, 0o600);
    flip(file, 1_000);
    await assert.rejects(
      verifyWhole(including, "node:sqlite", () => {}),
      code("BACKUP_DAMAGED"),
    );
  });

  test("missing artifacts are named, and the backup is still made", async (t) => {
    const base = await folder(t);
    await using hf = await open(join(base, "work.db"));
    await (await hf.builds.start(made)).done();
    const { artifacts } = await makeBackup(hf.engine, join(base, "first.db"));
    const [gone] = artifacts.hashes as [string, string];
    rmSync(join(base, "work.db-artifacts", gone.slice(0, 2), gone.slice(2)));
    for (const [name, included] of [
      ["referring.db", false],
      ["including.db", true],
    ] as const) {
      const { artifacts: now } = await makeBackup(hf.engine, join(base, name), { artifacts: included });
      assert.deepEqual([now.missing, now.hashes.length], [[gone], 1]);
    }
  });
});

suite("to verify a backup", () => {
  test("verify finds a flipped bit, a truncated file and an invalid manifest", async (t) => {
    const base = await folder(t);
    await using hf = await open(join(base, "work.db"));
    await hf.enqueueMany(
      note,
      Array.from({ length: 100 }, (_, n) => ({ n })),
    );
    const verify = (name: string) => verifyWhole(join(base, name), "node:sqlite", () => {});
    for (const name of ["flipped.db", "cut.db", "said.db", "alone.db"]) await hf.backup(join(base, name));

    flip(join(base, "flipped.db"), 20_000);
    await assert.rejects(verify("flipped.db"), code("BACKUP_DAMAGED"));
    truncateSync(join(base, "cut.db"), statSync(join(base, "cut.db")).size - 4096);
    await assert.rejects(verify("cut.db"), code("BACKUP_DAMAGED"));
    truncateSync(join(base, "said.db.json"), 100);
    await assert.rejects(verify("said.db"), code("BACKUP_INVALID"));
    await assert.rejects(verify("none.db"), code("NO_BACKUP"));
    rmSync(join(base, "alone.db.json"));
    assert.equal((await verify("alone.db")).manifest, null, "there is nothing to compare it to");
    truncateSync(join(base, "alone.db"), 40_960);
    await assert.rejects(verify("alone.db"), code("BACKUP_DAMAGED"));
  });

  test("verify reports a backup that was opened as a database", async (t) => {
    const base = await folder(t);
    const to = join(base, "backup.db");
    {
      await using hf = await open(join(base, "work.db"));
      await hf.enqueue(note, 1);
      await hf.backup(to);
    }
    await (await open(to)).close();
    await assert.rejects(
      verifyWhole(to, "node:sqlite", () => {}),
      code("BACKUP_CHANGED"),
    );
    rmSync(`${to}.json`);
    assert.equal(
      (await verifyWhole(to, "node:sqlite", () => {})).facts.jobs,
      1,
      "without its manifest it is taken as it was left",
    );
  });

  test("verify finds a value that violates a rule, writes nothing, and rejects a database with a log", async (t) => {
    const base = await folder(t);
    const to = join(base, "backup.db");
    {
      await using hf = await open(join(base, "work.db"));
      await hf.enqueue(note, 1);
      await hf.backup(to);
    }
    const verify = () => verifyWhole(to, "node:sqlite", () => {});
    const before = readFileSync(to);
    await verify();
    chmodSync(to, 0o400);
    await verify();
    assert.deepEqual(readFileSync(to), before);
    holds(base, ...readdirSync(base).filter((name) => !name.startsWith("backup.db-")));
    chmodSync(to, 0o600);
    rmSync(`${to}.json`);
    const db = new DatabaseSync(to);
    db.exec("pragma ignore_check_constraints = on; update holdfast_jobs set state = 'lost'");
    db.close();
    await assert.rejects(verify(), (error: Error) => /CHECK constraint failed in holdfast_jobs/.test(error.message));
    writeFileSync(`${to}-journal`, "what a program leaves that is killed in a transaction");
    await assert.rejects(verify(), code("NOT_A_BACKUP"));
    rmSync(`${to}-journal`);
    writeFileSync(to, "something else ".repeat(200));
    await assert.rejects(verify(), code("NOT_A_DATABASE"));
  });
});
