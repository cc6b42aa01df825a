import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import { fileURLToPath } from "node:url";
import { job, open } from "../../src/index.ts";
import type { Manifest } from "../../src/store/backups.ts";
import { type JsonError, Place } from "./holdfast.ts";

const BIN = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));

suite("holdfast backup", () => {
  let place: Place;
  before(async () => {
    place = await Place.make();
    await using hf = await open(place.db);
    await hf.enqueueMany(job({ name: "note", run: () => {} }), [1, 2, 3]);
  });
  after(() => place.remove());

  test("makes one beside the database, named by the time, and --verify finds it whole, or says what is wrong", async () => {
    const made = await place.json<Manifest & { path: string }>(["backup"]);
    assert.match(made.path, /work\.db-backups\/work-\d{4}-\d\d-\d\dT.*Z\.db$/);
    assert.deepEqual(made.counts.jobs, { pending: 3 });
    const verified = await place.run(["backup", "--verify", made.path]);
    assert.deepEqual([verified.code, /Whole: .*3 jobs\./.test(verified.stdout)], [0, true], verified.stdout + verified.stderr);

    truncateSync(made.path, made.size - 4096);
    const cut = await place.json<JsonError>(["backup", "--verify", made.path], 5);
    assert.equal(cut.error.code, "BACKUP_DAMAGED");
    const again = await place.json<JsonError>(["backup", made.path], 2);
    assert.equal(again.error.code, "BACKUP_EXISTS");
  });

  test("onto a disk that is too small writes nothing", (t) => {
    const small = join(place.folder, "small");
    mkdirSync(small);
    const script =
      'mount -t tmpfs -o size=64k none "$1" || exit 99; "$2" "$3" backup "$1/copy.db" --db "$4" --json; ls -A "$1" >&2';
    const tried = spawnSync("unshare", ["-m", "sh", "-c", script, "sh", small, process.execPath, BIN, place.db]);
    const said = `${String(tried.stdout)}${String(tried.stderr)}`;
    if (tried.error !== undefined || tried.status === 99) return t.skip(`no disk of one's own can be mounted here: ${said}`);
    assert.equal((JSON.parse(String(tried.stdout)) as JsonError).error.code, "DISK_FULL", said);
    assert.equal(String(tried.stderr), "", "nothing is left there");
    assert.deepEqual(readdirSync(small), []);
  });
});
