import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test, type TestContext } from "node:test";
import { type CommitRows, files, type Holdfast, items, open, pipeline } from "../../src/index.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { committing } from "./isolated-pipeline.ts";

/** A database with a table of the user's own. */
interface Place {
  hf: Holdfast;
  add(n: number): CommitRows;
  rows(): Promise<number[]>;
}

const QUIET = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

describe("commit in a stage, on SQLite", () =>
  cases(async (t) => {
    const hf = await open(":memory:", { log: QUIET });
    t.after(() => hf.close());
    await hf.transaction(({ db }) => db.exec("create table results (n integer)"));
    return {
      hf,
      add:
        (n) =>
        ({ db }) =>
          void db.prepare("insert into results (n) values (?)").run(n),
      rows: async () => {
        const found = await hf.transaction(({ db }) => db.prepare("select n from results order by n").all() as { n: number }[]);
        return found.map(({ n }) => n);
      },
    };
  }));

test("the next stage runs on no result whose commit failed, on SQLite", async (t) => {
  const hf = await open(":memory:", { log: QUIET });
  t.after(() => hf.close());
  await hf.transaction(({ db }) =>
    db.exec(`create table parents (id integer primary key);
      create table children (parent integer references parents (id) deferrable initially deferred)`),
  );
  const read: unknown[] = [];
  const attempts = pipeline("attempts")
    .source(items(() => Array.from({ length: 20 }, (_, i) => i), { id: String }))
    .stage("made", { retry: { attempts: 2, delay: 1 } }, ({ attempt, commit }) => {
      // A deferred constraint, which only the commit checks.
      commit(({ db }) => void (attempt === 1 && db.prepare("insert into children values (1)").run()));
      return attempt;
    })
    .stage("read", {}, ({ input, cost }) => {
      read.push(input);
      cost({ usd: 1 });
    });
  const build = await (await hf.builds.start(attempts)).done();
  assert.deepEqual([build.state, build.spent.usd], ["SUCCESS", 20]);
  assert.deepEqual(
    read,
    Array.from({ length: 20 }, () => 2),
  );
});

describe("commit in a stage, on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  cases(async (t) => {
    const url = await server.createDatabase();
    const artifacts = mkdtempSync(join(tmpdir(), "holdfast-commit-"));
    const hf = await open(url, { log: QUIET, artifacts });
    t.after(async () => {
      await hf.close();
      rmSync(artifacts, { recursive: true, force: true });
    });
    await server.query("create table results (n integer)", url);
    return {
      hf,
      add: (n) => async (tx) => void (await tx.query("insert into results (n) values ($1)", [n])),
      rows: async () => (await server.query("select n from results order by n", url)).map(({ n }) => Number(n)),
    };
  });
});

function cases(stand: (t: TestContext) => Promise<Place>): void {
  test("rows commit with the target's result, and a reused result commits none", async (t) => {
    const { hf, add, rows } = await stand(t);
    const numbers = pipeline("numbers")
      .source(items(() => [1, 2, 3], { id: String }))
      .stage("write", { retry: { attempts: 2, delay: 1 } }, ({ input, commit, attempt }) => {
        commit(add(input));
        if (attempt === 1) throw new Error("not yet");
        return input;
      });
    assert.equal((await (await hf.builds.start(numbers)).done()).state, "SUCCESS");
    assert.deepEqual(await rows(), [1, 2, 3]);
    assert.equal((await (await hf.builds.start(numbers)).done()).state, "SUCCESS");
    assert.deepEqual(await rows(), [1, 2, 3]);
  });

  test("a callback that throws fails the target, without a row or a result", async (t) => {
    const { hf, add, rows } = await stand(t);
    const numbers = pipeline("numbers")
      .source(items(() => [1, 2], { id: String }))
      .stage("write", { retry: { attempts: 1 } }, ({ input, commit }) => {
        commit(add(input));
        commit(() => {
          if (input === 2) throw new Error("refused");
        });
      });
    const build = await (await hf.builds.start(numbers)).done();
    assert.deepEqual([build.state, build.errors.map(({ target, message }) => [target, message])], ["FAILED", [["2", "refused"]]]);
    assert.deepEqual(await rows(), [1]);
  });

  test("rows of bytes that changed meanwhile are not committed", async (t) => {
    const { hf, add, rows } = await stand(t);
    const folder = mkdtempSync(join(tmpdir(), "holdfast-commit-"));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    writeFileSync(join(folder, "a.txt"), "1");
    let runs = 0;
    const texts = pipeline("texts")
      .source(files("*", { root: folder }))
      .stage("write", {}, async ({ target, commit }) => {
        const n = Number(new TextDecoder().decode(await target.bytes()));
        commit(add(n));
        if (++runs === 1) writeFileSync(join(folder, "a.txt"), "22");
      });
    assert.equal((await (await hf.builds.start(texts)).done()).state, "SUCCESS");
    assert.deepEqual([runs, await rows()], [2, [22]]);
  });

  test('with `isolate: "process"` commit throws COMMIT_ISOLATED', async (t) => {
    const { hf } = await stand(t);
    const build = await (await hf.builds.start(committing)).done();
    assert.equal(build.state, "FAILED");
    assert.match(build.errors[0]?.message ?? "", /isolate: "process"/);
  });
}
