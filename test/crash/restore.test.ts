import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test } from "node:test";
import { type Holdfast, open } from "../../src/index.ts";
import { STEPS } from "../../src/store/points.ts";
import { workJob } from "./jobs.ts";
import { LONG } from "../selection.ts";
import { Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";

const AT = STEPS.filter((step) => step.startsWith("restore:"));
const ROUNDS = LONG ? 100 : 3;

/** A database with one job more than its backup. */
async function prepared(scene: Scene): Promise<{ backup: string; lost: string; kept: string }> {
  const backup = join(scene.folder, "backup.db");
  const hf = await open(scene.path);
  const kept = await hf.enqueue(workJob(scene.effects), {});
  await hf.backup(backup);
  const lost = await hf.enqueue(workJob(scene.effects), {});
  await hf.close();
  return { backup, kept: kept.id, lost: lost.id };
}

async function ids(hf: Holdfast): Promise<string[]> {
  return (await hf.jobs.list({ limit: 1_000 })).items.map(({ id }) => id);
}

async function refused(child: Child): Promise<unknown> {
  return (await child.next("refused"))["code"];
}

describe("a restore whose process is killed", { concurrency: 2 }, () => {
  for (const point of AT) {
    test(`a restore killed at ${point} leaves the database unchanged, or is completed by the next open`, async (t) => {
      const scene = new Scene(t);
      const { backup, kept, lost } = await prepared(scene);
      const child = scene.start("restorer", { backup, point });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);

      const decided = AT.indexOf(point) >= AT.indexOf("restore:decided");
      const [one, other] = await Promise.all([scene.open(), scene.open()]);
      assert.deepEqual(await ids(one), decided ? [kept] : [kept, lost]);
      assert.deepEqual(await ids(other), await ids(one));
      await Promise.all([one.close(), other.close()]);
      const files = readdirSync(scene.folder);
      assert.equal(files.filter((name) => name.includes(".replaced-")).length, decided ? 1 : 0, files.join());
      assert.ok(!existsSync(`${scene.path}-restore`), "nothing of it is left");

      const again = scene.start("restorer", { backup });
      await again.next("restored");
      assert.deepEqual(await ids(await scene.open()), [kept]);
    });
  }
});

describe("while a process has the database open, it is not restored", () => {
  test("a database is not restored while a worker has it open, running or stopped, and is after a kill", async (t) => {
    const scene = new Scene(t);
    const { backup, kept, lost } = await prepared(scene);
    const worker = scene.start("holder");
    await worker.next("ready");
    assert.equal(await refused(scene.start("restorer", { backup })), "IN_USE");
    worker.kill("SIGSTOP");
    assert.equal(await refused(scene.start("restorer", { backup })), "IN_USE");
    assert.ok(!existsSync(`${scene.path}-restore`));
    worker.kill("SIGKILL");
    await worker.ended;
    await scene.start("restorer", { backup }).next("restored");
    assert.deepEqual(await ids(await scene.open()), [kept]);
    const aside = readdirSync(scene.folder).find((name) => name.includes(".replaced-") && !name.endsWith("-wal"));
    await using before = await open(join(scene.folder, aside as string), { recovery: "manual" });
    assert.deepEqual(await ids(before), [kept, lost], "what was there is kept, with its log");
  });

  test("a database is not restored while another program has it open", { skip: process.platform !== "linux" }, async (t) => {
    const scene = new Scene(t);
    const { backup } = await prepared(scene);
    const stranger = scene.start("stranger");
    await stranger.next("ready");
    assert.equal(await refused(scene.start("restorer", { backup })), "IN_USE");
    stranger.kill();
    await stranger.ended;
    await scene.start("restorer", { backup }).next("restored");
  });
});

test("the rollback journal of the replaced database is kept with it, and never applied to the new one", async (t) => {
  const scene = new Scene(t);
  const { backup, kept } = await prepared(scene);
  // What a program leaves that is killed in the middle of a transaction, with the other kind of log.
  const db = new DatabaseSync(scene.path);
  db.exec("pragma journal_mode = delete; pragma cache_size = 2; begin; create table junk (x)");
  for (let i = 0; i < 200; i++) db.exec("insert into junk values (randomblob(2000))");
  const journal = readFileSync(`${scene.path}-journal`);
  db.exec("rollback");
  db.close();
  writeFileSync(`${scene.path}-journal`, journal);
  await scene.start("restorer", { backup }).next("restored");
  assert.ok(!existsSync(`${scene.path}-journal`));
  assert.ok(readdirSync(scene.folder).some((name) => /\.replaced-.*-journal$/.test(name)));
  assert.deepEqual(await ids(await scene.open()), [kept]);
});

test("processes that open the database during a restore lose nothing acknowledged, and damage nothing", async (t) => {
  const scene = new Scene(t);
  const { backup } = await prepared(scene);
  const visitors = [scene.start("visitor"), scene.start("visitor")];
  for (const visitor of visitors) await visitor.next("visited");
  const restorer = scene.start("restorer", { backup, rounds: ROUNDS });
  for (let round = 0; round < ROUNDS; round++) await restorer.next("restored");
  for (const visitor of visitors) visitor.kill();
  for (const visitor of visitors) await visitor.ended;
  for (const visitor of visitors) assert.deepEqual(visitor.taken("trouble"), []);

  const found = new Set<string>();
  const files = readdirSync(scene.folder).filter(
    (name) => name.startsWith("work.db") && /db(\.replaced-.*Z(-\d+)?)?$/.test(name),
  );
  assert.equal(files.length, ROUNDS + 1);
  for (const name of files) {
    const path = join(scene.folder, name);
    const db = new DatabaseSync(path);
    assert.deepEqual(
      db
        .prepare("pragma integrity_check")
        .all()
        .map((row) => Object.values(row)),
      [["ok"]],
    );
    db.close();
    const hf = await open(path, { recovery: "manual" });
    for (const id of await ids(hf)) found.add(id);
    await hf.close();
  }
  const lost = scene.acknowledged().filter((id) => !found.has(id));
  assert.deepEqual(lost, []);
});
