import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { items, job, open, pipeline } from "../../src/index.ts";
import { schemaAt } from "../../src/store/sqlite/migrate.ts";
import { Scene } from "../crash/scene.ts";
import { killedProducer } from "../damage/killed.ts";
import { alter, flip, silent, whereIs } from "../damage/place.ts";
import { oldDatabase } from "../unit/old-database.ts";
import { Place } from "./holdfast.ts";

interface Answer {
  ok: boolean;
  found: { grade: string; area: string; message: string; mend: string | null }[];
}

const note = job<object>({ name: "note", run: () => {} });
const DAY = 86_400_000;
/** Makes a process one of a Holdfast with a later schema. */
const LATER = ["--import", new URL("../unit/later-migration.ts", import.meta.url).href];

async function placed(t: TestContext): Promise<Place> {
  const place = await Place.make();
  t.after(() => place.remove());
  return place;
}

/** What the command finds in an area: grade, message, and what mends it. */
async function found(place: Place, area: string, code: number, db = place.db): Promise<string[][]> {
  const { ok, found: all } = await place.json<Answer>(["doctor", "--db", db], code);
  assert.equal(ok, code === 0);
  return all.filter((one) => one.area === area).map(({ grade, message, mend }) => [grade, message, mend ?? ""]);
}

function finds([grade, message, mend]: string[] = [], wanted: [grade: string, message: RegExp, mend: RegExp]): void {
  assert.equal(grade, wanted[0]);
  assert.match(message ?? "", wanted[1]);
  assert.match(mend ?? "", wanted[2]);
}

/** What is found is made to happen, and looked for by the command itself. */
describe("holdfast doctor finds", { concurrency: 2 }, () => {
  test("a process that was killed, and the jobs that it has left", async (t) => {
    const place = await placed(t);
    const scene = new Scene(t);
    const hf = await open(scene.path);
    await hf.enqueue(job({ name: "work", run: () => {} }), { hold: true });
    await hf.close();
    const holder = scene.start("holder");
    await holder.next("ready");
    holder.send({ type: "work" });
    await holder.next("started");
    holder.kill("SIGKILL");
    await holder.ended;
    const [dead] = await found(place, "processes", 0, scene.path);
    finds(dead, ["warning", new RegExp(`pid ${holder.pid} on .* is dead, and has left 1 job`), /^holdfast recover --db /]);
  });

  test("jobs that are stuck: past their lease, past their timeout, waiting for nothing", async (t) => {
    const place = await placed(t);
    {
      await using hf = await open(place.db);
      await hf.enqueueMany(note, [{}, {}], (_, i) => ({ id: `run-${i}` }));
      await hf.enqueue(note, {}, { id: "waits", after: ["run-0"] });
      for (let i = 0; i < 2; i++) await hf.claim(note, { worker: "anna", lease: "1h" });
    }
    const before = Date.now() - DAY;
    alter(place.db, `update holdfast_jobs set expires_at = ${before} where id = 'run-0'`);
    alter(place.db, `update holdfast_jobs set started_at = ${before} where id = 'run-1'; delete from holdfast_waits`);
    const stuck = await found(place, "jobs", 1);
    finds(stuck[0], ["error", /Job waits waits, and nothing is known/, /^holdfast jobs cancel waits --db \S+$/]);
    finds(stuck[1], ["warning", /Job run-0 is stuck: its lease ran out 1d/, /^holdfast recover --expired-for 1m --db \S+$/]);
    finds(stuck[2], ["warning", /Job run-1 is stuck: it is past its timeout/, /^holdfast recover --expired-for 1m --db \S+$/]);
  });

  test("artifacts that are missing, and artifacts without a reference", async (t) => {
    const place = await placed(t);
    const large = pipeline("large")
      .source(items(() => ["a"], { id: (name) => name }))
      .stage("grow", {}, ({ input }) => input.repeat(100_000));
    {
      await using hf = await open(place.db);
      await (await hf.builds.start(large)).done();
    }
    const folder = `${place.db}-artifacts`;
    const kept = readdirSync(folder, { recursive: true }).find((name) => /^..\/.{62}$/.test(String(name))) as string;
    rmSync(join(folder, kept));
    const orphan = join(folder, "ab", "c".repeat(62));
    mkdirSync(join(folder, "ab"), { recursive: true });
    writeFileSync(orphan, "unreferenced");
    utimesSync(orphan, new Date(Date.now() - 2 * DAY), new Date(Date.now() - 2 * DAY));
    const seen = await found(place, "artifacts", 1);
    finds(seen[0], ["error", new RegExp(kept.replace("/", "")), /--with-artifacts/]);
    finds(seen[1], ["note", /1 of 1 artifacts are referenced by nothing/, /^holdfast artifacts sweep --db \S+$/]);
  });

  test("an audit that was edited: damage, and exit code 5", async (t) => {
    const place = await placed(t);
    {
      await using hf = await open(place.db);
      await hf.queues.pause("one");
      await hf.queues.pause("two");
    }
    const db = new DatabaseSync(place.db);
    const triggers = db
      .prepare("select name, sql from sqlite_schema where type = 'trigger' and tbl_name like 'holdfast_audit%'")
      .all();
    for (const { name } of triggers) db.exec(`drop trigger ${String(name)}`);
    db.exec("update holdfast_audit set subject = 'queue:three' where seq = (select max(seq) from holdfast_audit)");
    for (const { sql } of triggers) db.exec(String(sql));
    db.close();
    const [audit] = await found(place, "audit", 5);
    finds(audit, ["damage", /The audit is not as it was written/, /^holdfast audit verify --db \S+$/]);
  });

  test("a backup that has grown old", async (t) => {
    const place = await placed(t);
    await (await open(place.db)).close();
    const { path } = await place.json<{ path: string }>(["backup"]);
    const manifest = JSON.parse(readFileSync(`${path}.json`, "utf8")) as { takenAt: number };
    writeFileSync(`${path}.json`, JSON.stringify({ ...manifest, takenAt: manifest.takenAt - 9 * DAY }));
    const [old] = await found(place, "backups", 0);
    finds(old, ["warning", /The newest backup is 9d/, /^holdfast backup --db \S+$/]);
  });

  test("a journal whose files cannot be written", async (t) => {
    const place = await placed(t);
    await (await open(place.db, { journal: true })).close();
    // As a disk that is full keeps it from being: what is there is no folder any more.
    rmSync(`${place.db}-changes`, { recursive: true });
    writeFileSync(`${place.db}-changes`, "");
    {
      await using hf = await open(place.db, { log: silent });
      await hf.enqueue(note, {});
    }
    alter(place.db, `update holdfast_changes set at = at - ${DAY} where at is not null`);
    await place.run(["backup"]);
    const [late] = await found(place, "backups", 0);
    finds(late, ["warning", /The journal's files lack \d+ changes, the oldest of \d+[dh] ago/, /DATABASE-changes/]);
  });

  test(
    "a disk that cannot be written: it says so, and what can be seen all the same",
    { skip: process.platform === "win32" },
    async (t) => {
      const place = await placed(t);
      await (await open(place.db)).close();
      const bin = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
      // No file may grow.
      const args = ["-c", 'ulimit -f 0; exec "$0" "$@"', process.execPath, bin, "doctor", "--json", "--db", place.db];
      const { status, stdout, stderr } = spawnSync("sh", args, { encoding: "utf8" });
      assert.equal(status, 1, stderr);
      const { found: all, seen } = JSON.parse(stdout) as Answer & { seen: { disk: { free: number } } };
      assert.deepEqual([all[0]?.grade, all[0]?.area], ["error", "disk"]);
      assert.ok(seen.disk.free > 0);
    },
  );

  test("a damaged log that hides the newest part of the schema", async (t) => {
    const place = await placed(t);
    oldDatabase(place.db);
    killedProducer(place.db, 100, "logged", LATER);
    const log = `${place.db}-wal`;
    const shown = () => schemaAt(place.db, "node:sqlite")?.version ?? 0;
    // The first frame whose damage leaves the schema of the version before.
    const frame = Array.from({ length: 100 }, (_, i) => i).find((i) => {
      const at = 32 + i * (4_096 + 24) + 500;
      flip(log, at, 0);
      if (shown() === 1) return true;
      flip(log, at, 0);
      return false;
    });
    assert.ok(frame !== undefined);
    const { stdout, code } = await place.run(["doctor", "--json"], { node: LATER });
    assert.equal(code, 5);
    const [first] = (JSON.parse(stdout) as Answer).found;
    finds(
      [first?.grade ?? "", first?.message ?? "", first?.mend ?? ""],
      ["damage", /write-ahead log .* is damaged/, /holdfast salvage/],
    );
  });

  test("an older schema, and leaves it as it is", async (t) => {
    const place = await placed(t);
    oldDatabase(place.db);
    const before = readFileSync(place.db);
    const { stdout } = await place.run(["doctor", "--json"], { node: LATER });
    const schema = (JSON.parse(stdout) as Answer).found.find(({ area }) => area === "schema");
    finds(
      [schema?.grade ?? "", schema?.message ?? "", schema?.mend ?? ""],
      ["warning", /version 1, and this Holdfast writes 2/, /worker of this version/],
    );
    assert.deepEqual(readFileSync(place.db), before);
    assert.ok(!existsSync(`${place.db}-backups`), "nothing was migrated, so nothing was backed up first");
    assert.match((await place.run(["doctor"], { node: LATER })).stdout, /\nschema +version 1\n/);
  });

  test("a clock that was set back", async (t) => {
    const place = await placed(t);
    {
      await using hf = await open(place.db, { clock: { now: () => Date.now() + DAY } as never });
      await hf.queues.pause("one");
    }
    await place.json(["queues", "pause", "one"]);
    await place.json(["queues", "resume", "one"]);
    const clock = await found(place, "clock", 0);
    finds(clock[0], ["warning", /written down for \d+[dh]/, /NTP/]);
    finds(clock[1], ["note", /The clock has gone back once lately, last by/, /NTP/]);
  });

  test("commits that are gone, and the report that stands open", async (t) => {
    const place = await placed(t);
    const scene = new Scene(t);
    {
      await using hf = await open(scene.path);
      await hf.enqueue(job({ name: "work", run: () => {} }), { hold: true });
    }
    const holder = scene.start("holder");
    await holder.next("ready");
    holder.send({ type: "work" });
    await holder.next("started");
    holder.kill("SIGKILL");
    await holder.ended;
    rmSync(`${scene.path}-wal`);
    const gone = await place.json<Answer>(["doctor", "--db", scene.path], 1);
    const [loss] = gone.found;
    assert.equal(loss?.grade, "error");
    assert.match(loss?.mend ?? "", /^holdfast recover --last/);
    await place.run(["recover", "--db", scene.path]);
    const [report] = await found(place, "recovery", 1, scene.path);
    finds(report, [
      "error",
      /After a crash something was found to be wrong/,
      /^holdfast recover --last --db \S+ && holdfast recover --acknowledge --db \S+$/,
    ]);
  });

  test("a row that is not what was written, when it was met: a warning, and where it is", async (t) => {
    const place = await placed(t);
    {
      await using hf = await open(place.db);
      await hf.enqueueMany(note, [{ text: "operator wrote this" }, {}], (_, i) => ({ id: `row-${i}` }));
    }
    for (const at of whereIs(place.db, "operator wrote this")) flip(place.db, at + 3, 1);
    {
      await using hf = await open(place.db, { log: silent });
      await (await hf.claim(note, { worker: "anna" }))?.succeed();
    }
    const [row] = await found(place, "damage", 0);
    finds(row, ["warning", /Job row-0 is damaged/, /^holdfast quarantine list --db \S+$/]);
  });

  test("a log that a reader pins, with the reader's name", { skip: process.platform !== "linux" }, async (t) => {
    const place = await placed(t);
    const scene = new Scene(t);
    await using hf = await open(scene.path);
    await hf.transaction(({ db }) => db.exec("create table big (bytes blob)"));
    const reader = scene.start("stranger", { reads: true });
    await reader.next("ready");
    for (let i = 0; i < 17; i++) await hf.transaction(({ db }) => db.exec("insert into big values (zeroblob(4000000))"));
    const [wal] = await found(place, "wal", 0, scene.path);
    finds(wal, ["warning", new RegExp(`has 6\\d MB; pid ${reader.pid} \\(.*stranger.*pins it`), /end that transaction/]);
  });

  test("a file that is mostly unused, and what makes it small", async (t) => {
    const place = await placed(t);
    {
      await using hf = await open(place.db);
      await hf.transaction(({ db }) => {
        db.exec("create table big (bytes blob)");
        for (let i = 0; i < 18; i++) db.exec("insert into big values (zeroblob(4000000))");
      });
      await hf.transaction(({ db }) => db.exec("delete from big"));
    }
    const [unused] = await found(place, "disk", 0);
    finds(unused, ["note", /MB are unused/, /holdfast backup, holdfast restore BACKUP/]);
    const { path } = await place.json<{ path: string }>(["backup"]);
    await place.json(["restore", path]);
    assert.deepEqual(await found(place, "disk", 0), []);
  });
});
