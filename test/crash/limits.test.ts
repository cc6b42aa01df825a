import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, test, type TestContext } from "node:test";
import type { Holdfast } from "../../src/index.ts";
import { LimitRows, rowsOfFile, rowsOfSchema } from "../limits/rows.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { everyJob, untilDone } from "./invariants.ts";
import { limitedJob } from "./jobs.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { passes, Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";
import { inFile, type Place } from "./wherever.ts";

const KILLING = LONG ? 60_000 : 1_000;
const OTHERS = Array.from({ length: 10 }, (_, i) => `other-${i}`);

describe("on SQLite", () => limitsHold("file", onFile, LONG ? 1_000_000 : 10_000));

describe("on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  limitsHold("server", (t) => onServer(t, server), LONG ? 1_000_000 : 10_000);
});

/** A scene whose database records violations itself: a third start of a key is recorded in the transaction that starts it. */
interface Watched {
  scene: Scene;
  overLimit(): Promise<unknown[]>;
  /** That the counters are what the jobs are. */
  checkCounters(): Promise<void>;
  /** How many counters there are. */
  counters(): Promise<number>;
}

function limitsHold(place: Place, make: (t: TestContext) => Promise<Watched>, pending: number): void {
  test(
    `with limit 2 and eight workers, ${pending.toLocaleString("en")} jobs of one key never run three at once, and other keys start`,
    inFile(place),
    async (t) => {
      const { scene, overLimit, checkCounters } = await make(t);
      const hf = await scene.open();
      await enqueue(hf, "big", pending, scene.effects);
      const others: string[] = [];
      for (const key of OTHERS) others.push(...(await enqueue(hf, key, 3, scene.effects)));

      const children = Array.from({ length: 8 }, () => scene.start("limited", { concurrency: 4 }));
      for (const child of children) await child.next("ready");
      // Those of the other keys are behind a great many, and do not wait for them.
      for (const id of others) await hf.jobs.wait(id, { timeout: "60s" });
      for (const child of children) child.send({ type: "stop" });
      for (const child of children) await child.next("over");

      const lines = linesOf(scene.effects);
      const running = new Map<string, number>();
      for (const { what, key } of lines) {
        const now = (running.get(key) ?? 0) + (what === "begins" ? 1 : -1);
        assert.ok(now <= 2, `${now} of ${key} ran at once`);
        running.set(key, now);
      }
      assert.deepEqual(await overLimit(), [], "the database saw no third one start");
      const begun = lines.filter(({ what }) => what === "begins");
      const ofOthers = begun.filter(({ key }) => key !== "big").length;
      assert.equal(ofOthers, 3 * OTHERS.length);
      assert.ok(begun.length < pending / 10, `they started among the first ${begun.length}, not after ${pending}`);
      await checkCounters();
    },
  );

  for (const seed of SEEDS)
    test(
      `killed workers with limited jobs free each slot once, and all jobs are done (HOLDFAST_SEED=${seed})`,
      inFile(place),
      async (t) => {
        const { scene, overLimit, checkCounters, counters } = await make(t);
        const hf = await scene.open();
        const keys = ["a", "b", "c"];
        for (const key of keys) await enqueue(hf, key, 40, scene.effects);
        const end = performance.now() + KILLING;
        let killed = 0;
        const keepKilling = async (place: number) => {
          const random = randomFrom(seed + place);
          // On a slow machine that is not long: most of the first ones have nothing yet.
          while (performance.now() < end || killed < 9) {
            const child = scene.start("limited", { concurrency: 1 + Math.floor(random() * 8) });
            await child.next("ready");
            await dies(child, random);
            killed++;
            // So that there is something to hold, however fast they are.
            for (const key of keys) await enqueue(hf, key, 10, scene.effects);
          }
        };
        await Promise.all([keepKilling(1), keepKilling(2), keepKilling(3)]);
        await checkCounters();
        const worker = hf.work([limitedJob(scene.effects)]);
        await untilDone(hf);
        await worker.stop();
        assert.deepEqual(await overLimit(), [], "the database saw no third one start");
        await checkCounters();
        assert.equal(await counters(), 0, "no slot is left taken");
        const jobs = await everyJob(hf);
        assert.deepEqual(new Set(jobs.map(({ state }) => state)), new Set(["succeeded"]));
        const crashes = jobs.reduce((sum, job) => sum + job.crashes, 0);
        assert.ok(crashes > 0, "some held jobs when they were killed");
        t.diagnostic(`${killed} processes killed, ${jobs.length} jobs, ${crashes} crashes charged`);
      },
    );
}

async function onFile(t: TestContext): Promise<Watched> {
  const scene = new Scene(t);
  await scene.prepare();
  const within = <T>(use: (db: DatabaseSync) => T): T => {
    const db = new DatabaseSync(scene.path, { timeout: 5_000 });
    try {
      return use(db);
    } finally {
      db.close();
    }
  };
  within((db) =>
    db.exec(`
      create table test_over (key integer not null, limits text not null);
      create trigger test_limit after update of state on holdfast_jobs when new.state = 'running' begin
        insert into test_over (key, limits) select new.key, new.limits
          where (select count(*) from holdfast_jobs where state = 'running' and limits = new.limits) > 2;
      end`),
  );
  return {
    scene,
    overLimit: async () => within((db) => db.prepare("select key, limits from test_over").all()),
    checkCounters: () => checkRows(new LimitRows(rowsOfFile(scene.path))),
    counters: async () => (await scene.witness.query("select 1 from {counters}")).length,
  };
}

async function onServer(t: TestContext, server: PostgresServer): Promise<Watched> {
  const scene = new Scene(t, server);
  await scene.prepare();
  const url = scene.path;
  await server.query(
    `create table test_over (key bigint not null, limits text not null);
     create function test_over() returns trigger language plpgsql as $$ begin
       insert into test_over select new.key, new.limits
         where (select count(*) from holdfast.jobs where state = 'running' and limits = new.limits) > 2;
       return null;
     end $$;
     create trigger test_limit after update of state on holdfast.jobs for each row when (new.state = 'running')
       execute function test_over();`,
    url,
  );
  return {
    scene,
    overLimit: async () => [...(await server.query("select key, limits from test_over", url))],
    checkCounters: () => checkRows(new LimitRows(rowsOfSchema(url))),
    counters: async () => (await server.query("select 1 from holdfast.counters", url)).length,
  };
}

async function checkRows(rows: LimitRows): Promise<void> {
  await rows.check(Date.now(), false);
  await rows.close();
}

/** Killed from outside while it holds something, or by itself at a named point. */
async function dies(child: Child, random: () => number): Promise<void> {
  const operation = ["claim", "settle", "reclaim"][Math.floor(random() * 3)] as string;
  const moment = ["begun", "written", "committed"][Math.floor(random() * 3)] as string;
  const begun = child.next("started");
  begun.catch(() => {});
  // Most of them hold something by then, however slow the machine is; some have only just come.
  await Promise.race([begun, passes(random() < 0.2 ? 50 : 5_000)]);
  if (random() < 0.6) child.send({ type: "arm", point: `${operation}:${moment}` });
  await Promise.race([child.ended, passes(random() * 80)]);
  child.kill();
  assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
}

async function enqueue(hf: Holdfast, key: string, count: number, effects: string): Promise<string[]> {
  const def = limitedJob(effects);
  const ids: string[] = [];
  for (let left = count; left > 0; left -= 1_000) {
    const inputs = Array.from({ length: Math.min(left, 1_000) }, () => ({ key }));
    for (const { id } of await hf.enqueueMany(def, inputs)) ids.push(id);
  }
  return ids;
}

interface Line {
  what: "begins" | "ends";
  key: string;
  id: string;
}

function linesOf(file: string): Line[] {
  return readFileSync(file, "utf8")
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Line);
}
