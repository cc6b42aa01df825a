import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import postgres from "postgres";
import { job, open } from "../../src/index.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { LeaseState } from "../../src/store/store.ts";
import { testClock } from "../../src/testing/index.ts";
import { add, claimOne, SUCCEEDED } from "../conformance/parts.ts";
import { noRestart, noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { code } from "../runtime/parts.ts";
import { page, snippets } from "./pages.ts";

const { text, path } = page("docs/postgres.md");
const sql = snippets({ path, text: text.replaceAll(/^ {3}/gm, "") }).filter(({ info }) => info === "sql");
const [first, others, restored, copied] = sql.map((block) => block.code) as [string, string, string, string];

describe("what the page on PostgreSQL has operators type", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  // Roles are the whole server's.
  test(
    "the rights it grants are enough to make the schema, and to use one that another user has made",
    { skip: noRestart },
    async () => {
      const url = new URL(await server.createDatabase());
      const as = (role: string) => Object.assign(new URL(url), { username: role, password: "secret" }).href;
      const greet = job<string, string>({ name: "greet", run: ({ input }) => `hello ${input}` });
      await server.query(first.replaceAll("database shop", `database ${url.pathname.slice(1)}`), url.href);
      await using worker = await open(as("shop_jobs"));
      await assert.rejects(open(as("shop_web")), code("ACCESS_DENIED"));
      await server.query(others, url.href);
      await using web = await open(as("shop_web"));
      worker.work([greet]);
      assert.equal((await web.jobs.wait(await web.enqueue(greet, "anna"))).output, "hello anna");
      web.work([greet]);
      await worker.close();
      assert.equal((await web.jobs.wait(await web.enqueue(greet, "otto"))).output, "hello otto");
      await assert.rejects(open(as("shop_web"), { schema: "other" }), code("NO_RIGHTS"));
    },
  );

  test("after a restore, what was handed out in the time that was lost is not handed out again", async () => {
    const url = await server.createDatabase();
    const at = { clock: testClock(), injected: true, random: () => 0.5 };
    await (await PostgresStore.open(url, at)).close();
    const backup = new URL(url).pathname.slice(1);
    const copyWith = async (name: string, steps: string) => {
      await server.query(`create database ${name} template ${backup}`);
      await server.query(`select 1; ${steps}`, server.url(name));
      return server.url(name);
    };
    const copies = [await copyWith(`${backup}_careless`, ""), await copyWith(`${backup}_careful`, restored)];
    // The time that is lost: a worker has a job, and lives on.
    const lost = await PostgresStore.open(url, at);
    await add(lost, {});
    const zombie = await claimOne(lost);
    await lost.close();
    const fates: LeaseState[] = [];
    for (const copy of copies) {
      const store = await PostgresStore.open(copy, at);
      await add(store, {});
      await claimOne(store);
      fates.push(...(await store.settle([{ job: zombie.job, fence: zombie.fence, outcome: SUCCEEDED }])));
      await store.close();
      await server.dropDatabase(copy);
    }
    assert.deepEqual(fates, ["held", "gone"], "without it, a stranger's job would be done");
  });

  test("a copy beside the original is another one: no key and no transaction is taken for the other's", async (t) => {
    const url = await server.createDatabase();
    const note = job<number, string>({ name: "note", run: ({ idempotencyKey }) => idempotencyKey });
    const { id } = await open(url).then(async (hf) => {
      const accepted = await hf.enqueue(note, 1);
      await hf.close();
      return accepted;
    });
    const name = new URL(url).pathname.slice(1);
    const [row] = await server.query("select database_id from holdfast.database", url);
    const databaseId = row?.["database_id"] as string;
    const answers: Record<string, unknown> = {};
    for (const [how, steps] of Object.entries({ careless: "", careful: copied })) {
      await server.query(`create database ${name}_${how} template ${name}`);
      const address = server.url(`${name}_${how}`);
      t.after(() => server.dropDatabase(address));
      await server.query(`select 1; ${steps}`, address);
      const copy = await open(address);
      copy.work([note]);
      const { output: theirKey } = await copy.jobs.wait(id);
      await copy.close();
      const theirs = postgres(address, { max: 1 });
      const original = await open(url);
      const refused = await theirs
        .begin((tx) => original.enqueue(note, 2, { tx }))
        .then(
          () => null,
          (error: { code: string }) => error.code,
        );
      await theirs.end();
      answers[how] = { refused, isTheSame: theirKey === `${databaseId}:${id}` };
      await original.close();
    }
    assert.deepEqual(answers, {
      careless: { refused: null, isTheSame: true },
      careful: { refused: "TX_OTHER_DATABASE", isTheSame: false },
    });
  });
});
