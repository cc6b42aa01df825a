import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import postgres from "postgres";
import { items, job, open, pipeline } from "../../src/index.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

describe("a role that may only connect", { skip: noServer, timeout: 60_000 }, () => {
  const name = "visitor_role";
  let server: PostgresServer;
  let url: string;
  let visitor: ReturnType<typeof postgres>;
  before(async () => {
    server = await startServer();
    url = await server.createDatabase();
    await server.query(`drop role if exists ${name}`, url);
    await server.query(`create role ${name} login password 'visits'`, url);
    visitor = postgres(Object.assign(new URL(url), { username: name, password: "visits" }).href, { max: 1, onnotice: () => {} });
  });
  after(async () => {
    await visitor.end({ timeout: 5 });
    await server.query(`drop role ${name}`, url);
    await server.close();
  });

  test("a role that may only connect cannot block limits, builds, artifacts, events, retention or a migration", async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "holdfast-"));
    t.after(() => rmSync(folder, { recursive: true }));
    for (const what of ["limits %s limited", "builds %s", "artifacts %s", "numbers %s", "expires %s", "migrates holdfast"])
      await visitor`select pg_advisory_lock(hashtextextended(${`holdfast ${what.replace("%s", '"holdfast"')}`}, 0))`;
    const hf = await open(url, { artifacts: folder });
    t.after(() => hf.close());
    const limited = job<number, number>({
      name: "limited",
      queue: { name: "limited", limit: { concurrency: 1 }, keep: { succeeded: "1d" } },
      run: ({ input }) => input,
    });
    const ended = new Promise<void>((resolve) => {
      hf.events.subscribe(({ type, build }) => void (type.startsWith("build.") && build !== undefined && resolve()), {
        name: "log",
      });
    });
    hf.work([limited]);
    const ids = await Promise.all([1, 2, 3].map((n) => hf.enqueue(limited, n)));
    for (const [i, id] of ids.entries()) assert.equal((await hf.jobs.wait(id)).output, i + 1);
    const docs = pipeline("docs")
      .source(items(() => ["a", "b"], { id: (id) => id }))
      .stage("copy", {}, ({ input }) => input);
    const build = await (await hf.builds.start(docs)).done();
    assert.equal(build.state, "SUCCESS");
    await ended;
    const held = await server.query(
      "select locktype from pg_locks join pg_stat_activity using (pid) where locktype = 'advisory'",
      url,
    );
    assert.equal(held.length, 6, "Holdfast itself takes no advisory lock");
  });

  test("a role that may only connect cannot lock a row or a table of the schema", async () => {
    await (await open(url)).close();
    for (const statement of [
      "select 1 from holdfast.mutexes for update",
      "lock table holdfast.artifacts in access share mode",
      "lock table holdfast.migrations in access share mode",
    ])
      await assert.rejects(
        visitor.begin((sql) => sql.unsafe(statement)),
        /permission denied/,
      );
  });
});
