import assert from "node:assert/strict";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, test } from "node:test";
import { job, open } from "../../src/index.ts";
import { offsetOf, PAGE, rootOf, scribble } from "../damage/place.ts";
import { Place } from "./holdfast.ts";

interface Answer {
  ok: boolean;
  found: { grade: string; area: string; message: string; mend: string | null }[];
  versions: { store: string };
  seen: { settings: { name: string; value: string }[]; audit: { entries: number } };
}

let place: Place;
before(async () => {
  place = await Place.make();
  await using hf = await open(place.db);
  await hf.enqueueMany(
    job({ name: "note", run: () => {} }),
    Array.from({ length: 200 }, (_, n) => ({ n })),
  );
  await hf.lock("door").acquire("anna", "1ms");
});
after(() => place.remove());

test("holdfast doctor is one page of what stands out, what mends it, and how everything stands", async () => {
  const page = await place.run(["doctor"]);
  assert.equal(page.code, 0, page.stderr);
  assert.match(page.stdout, /warning {1}There is no backup in .*work\.db-backups\.\n +→ holdfast backup\n/);
  assert.match(page.stdout, /warning {1}The lock door of anna has run out\.\n +→ holdfast unlock door\n/);
  assert.match(page.stdout, /\nsettings +journal_mode=wal synchronous=2 /);
  assert.match(page.stdout, /\ncrashes +none so far$/m);
  assert.match(page.stdout, /\naudit +\d+ entr(y|ies), complete\n/);
  await place.json(["backup"]);
  await place.json(["unlock", "door"]);
  const { ok, found, versions, seen } = await place.json<Answer>(["doctor"]);
  assert.deepEqual([ok, found], [true, []]);
  assert.match(versions.store, /^SQLite 3\.\d+\.\d+ \(node:sqlite\)$/);
  assert.ok(seen.audit.entries > 0);
});

test("holdfast doctor --checkpoint empties the log, and names the reader that keeps it from doing so", async (t) => {
  const own = await Place.make();
  t.after(() => own.remove());
  await using hf = await open(own.db);
  const note = job<{ n: number }>({ name: "note", run: () => {} });
  await hf.enqueue(note, { n: 0 });
  const reader = new DatabaseSync(own.db);
  t.after(() => reader.close());
  reader.exec("begin; select count(*) from holdfast_jobs");
  await hf.enqueue(note, { n: 1 });
  type Checkpoint = { checkpoint: { before: number; after: number; readers: { pid: number }[] } };
  const pinned = (await own.json<Checkpoint>(["doctor", "--checkpoint"])).checkpoint;
  assert.ok(pinned.after > 0);
  if (process.platform === "linux") assert.ok(pinned.readers.some(({ pid }) => pid === process.pid));
  reader.exec("commit");
  const { checkpoint } = await own.json<Checkpoint>(["doctor", "--checkpoint"]);
  assert.ok(checkpoint.before > 0);
  assert.equal(checkpoint.after, 0);
  assert.match((await own.run(["doctor", "--checkpoint"])).stdout, /Checkpoint: .* of the write-ahead log are in the database/);
});

test("holdfast doctor exits with 5 on a damaged database, and holdfast salvage makes it whole", async () => {
  scribble(place.db, offsetOf(rootOf(place.db, "holdfast_jobs")), Buffer.alloc(PAGE));
  const ill = await place.json<Answer>(["doctor"], 5);
  assert.equal(ill.ok, false);
  assert.equal(ill.found[0]?.grade, "damage");
  assert.match(ill.found[0]?.mend ?? "", /^holdfast doctor --recheck; then holdfast salvage/);
  const salvaged = await place.run(["salvage"]);
  assert.equal(salvaged.code, 0, salvaged.stderr);
  assert.match(salvaged.stdout, /^Salvaged: .*work\.db, 0 jobs read\.\nFrom the backup .*: 200 rows, 200 jobs among them/);
  assert.match(salvaged.stdout, /\nThe damaged file is kept: .*work\.db\.damaged-/);
  const well = await place.json<Answer>(["doctor"]);
  assert.deepEqual(
    well.found.filter(({ grade }) => grade !== "note"),
    [],
  );
});

test("holdfast doctor of a database that cannot even be opened says so, and what is known beside it", async () => {
  scribble(place.db, 0, Buffer.alloc(PAGE));
  const { found } = await place.json<Answer>(["doctor"], 5);
  assert.equal(found[0]?.grade, "damage");
  assert.equal((await place.run(["salvage", "--from", join(place.folder, "nowhere.db")])).code, 2);
});
