import assert from "node:assert/strict";
import { cp, mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { job, open } from "../../src/index.ts";
import { type JsonError, Place } from "./holdfast.ts";

let place: Place;
before(async () => {
  place = await Place.make();
  await using hf = await open(place.db);
  await hf.enqueue(job({ name: "note", run: () => {} }), { n: 1 }, { id: "first" });
});
after(() => place.remove());

test("holdfast restore puts a backup back, and a claim of before settles nothing any more", async () => {
  const backup = join(place.folder, "backup.db");
  const { claim } = await place.json<{ claim: string }>(["claim", "note", "--worker", "anna", "--lease", "1h"]);
  await place.json(["backup", backup]);
  await place.json(["enqueue", "note", "{}"]);
  {
    await using _hf = await open(place.db);
    const { error } = await place.json<JsonError>(["restore", backup], 4);
    assert.deepEqual([error.code, error.message.includes(`pid ${process.pid}`)], ["IN_USE", true], error.message);
  }
  const restored = await place.run(["restore", backup]);
  assert.equal(restored.code, 0, restored.stderr);
  assert.match(
    restored.stdout,
    /^Restored: .*work\.db, as it was .*, 1 job\.\n1 job ran then, and will run again\.\nWhat was there is kept: /,
  );

  const settled = await place.json<JsonError>(["settle", claim, "--succeed", "{}"], 1);
  assert.equal(settled.error.code, "LEASE_LOST");
  await place.json(["recover", "--expired-for", "0s"]);
  await using hf = await open(place.db);
  assert.deepEqual(
    (await hf.jobs.list()).items.map(({ id, state }) => [id, state]),
    [["first", "pending"]],
  );
  const audit = await hf.engine.store.audit.page({ after: 0, limit: 100 });
  const entry = audit.find(({ action }) => action === "database.restored");
  assert.match(entry?.by ?? "", /^holdfast restore \(pid \d+ on .+, by .+\)$/, "the audit knows who typed it");
});

test("of a server it says what to do there", async () => {
  const { error } = await place.json<JsonError>(["restore", "any.db", "--db", "postgres://localhost/shop"], 2);
  assert.equal(error.code, "RESTORE_BY_SERVER");
  assert.match(error.hint, /truncate holdfast\.awake/);
  const mails = ["restore", "any.db", "--db", "postgres://localhost/shop", "--schema", "mails"];
  assert.match((await place.json<JsonError>(mails, 2)).error.hint, /truncate mails\.awake/);
});

test("with --at it finds the backup itself, and continues by the journal", async () => {
  const db = join(place.folder, "journaled.db");
  {
    await using hf = await open(db, { journal: true });
    await hf.enqueue(job({ name: "note", run: () => {} }), { n: 1 }, { id: "one" });
  }
  await place.json(["backup", "--db", db]);
  await place.json(["enqueue", "note", "{}", "--id", "two", "--db", db]);
  const { replayed } = await place.json<{ replayed: { changes: number } }>(["restore", "--at", String(Date.now()), "--db", db]);
  assert.ok(replayed.changes > 0);
  {
    await using hf = await open(db);
    assert.deepEqual((await hf.jobs.list()).items.map(({ id }) => id).toSorted(), ["one", "two"]);
  }
  const early = await place.json<JsonError>(["restore", "--at", "2001-01-01", "--db", db], 2);
  assert.equal(early.error.code, "NO_BACKUP");
  const never = await place.json<JsonError>(["restore", "--at", "tea time", "--db", db], 2);
  assert.equal(never.error.code, "USAGE");
});

test("with --at it passes over backups of other databases in the same folder, and says when there is no manifest", async () => {
  const folder = join(place.folder, "shared");
  await mkdir(folder);
  const [one, other] = [join(place.folder, "one.db"), join(place.folder, "other.db")];
  for (const [db, name] of [
    [one, "one.db"],
    [other, "other.db"],
  ] as const) {
    await using hf = await open(db, { journal: true });
    await hf.enqueue(job({ name: "note", run: () => {} }), { n: 1 }, { id: name });
    await hf.backup(join(folder, name));
  }
  await cp(folder, `${one}-backups`, { recursive: true });
  const { backup } = await place.json<{ backup: string }>(["restore", "--at", String(Date.now()), "--db", one]);
  assert.match(backup, /one\.db$/);
  await rm(join(folder, "one.db.json"));
  const restored = await place.run(["restore", join(folder, "one.db"), "--db", one]);
  assert.match(restored.stdout, /The backup has no manifest/, restored.stderr);
});
