import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { firstOf } from "../selection.ts";
import { until } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

/** What the server says to a claim, as a trigger makes believe. */
const CODES = {
  "a full disk": "53100",
  "a lack of memory": "53200",
  "a statement timeout": "57014",
  "a lock that another session has": "55P03",
  "a server that takes no writes": "25006",
  "rights that were taken away": "42501",
  "an unforeseen error": "XX000",
};

/** What cuts a role off, what lets it in again, and what is logged in between. */
const DOORS = {
  "too many connections": ["connection limit 0", "connection limit -1", /accepts no more connections/],
  "another password": ["password 'another'", "password 'r1ght'", /rejected this user/],
  "a user who may not log in": ["nologin", "login", /rejected this user/],
} as const;

describe("a worker that the server refuses", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  /** Those that were made, each with the address of its database. */
  const roles = new Map<string, string>();
  before(async () => void (server = await startServer()));
  after(async () => {
    // A role belongs to the whole server, which others may use too, and can go when nothing is left that it owns.
    for (const [name, database] of roles) {
      await server.dropDatabase(database);
      await server.query(`drop role ${name}`);
    }
    await server.close();
  });
  beforeEach(async () => void (url = await server.createDatabase()));

  const echo = job<number, number>({ name: "echo", run: ({ input }) => input });

  /** A worker, and what it has logged. */
  const start = async (t: TestContext, where = url) => {
    const logged: string[] = [];
    const note = (message: string, given?: object) => void logged.push(`${message} ${JSON.stringify(given)}`);
    const hf = await open(where, { log: { debug: note, info: note, warn: note, error: note } });
    t.after(() => hf.close());
    hf.work([echo]);
    await runs(hf, 1);
    return { hf, logged };
  };

  const runs = async (hf: Holdfast, n: number) => {
    assert.equal((await hf.jobs.wait(await hf.enqueue(echo, n), { timeout: "30s" })).output, n);
  };

  for (const [turn, [what, code]] of Object.entries(CODES).entries()) {
    test(
      `a worker rejected because of ${what} continues by itself when that is over`,
      { timeout: 60_000, ...firstOf(4, turn) },
      async (t) => {
        const { hf, logged } = await start(t);
        await server.query(
          `create function refuses() returns trigger language plpgsql as
           $$ begin raise 'refused for a test' using errcode = '${code}'; end $$;
         create trigger refuses before insert on holdfast.claims for each row execute function refuses()`,
          url,
        );
        const waiting = await hf.enqueue(echo, 2);
        await until(async () => logged.some((line) => /claiming failed/.test(line)), "it says so");
        await server.query("drop trigger refuses on holdfast.claims", url);
        const { state, attempt, output } = await hf.jobs.wait(waiting, { timeout: "30s" });
        assert.deepEqual([state, attempt, output], ["succeeded", 1, 2]);
        await runs(hf, 3);
        for (const line of logged.filter((one) => one.includes("tried again"))) assert.match(line, /"hint":"/);
      },
    );
  }

  for (const [turn, [what, [shut, opened, words]]] of Object.entries(DOORS).entries()) {
    test(
      `a worker rejected because of ${what} continues by itself when that is over`,
      { timeout: 60_000, ...firstOf(3, turn) },
      async (t) => {
        const name = `worker_${randomBytes(4).toString("hex")}`;
        const database = new URL(url).pathname.slice(1);
        await server.query(`create role ${name} login password 'r1ght'`, url);
        roles.set(name, url);
        await server.query(`grant create on database ${database} to ${name}`, url);
        const own = Object.assign(new URL(url), { username: name, password: "r1ght" }).href;
        // The role that opens it first owns it.
        await (await open(own)).close();
        const { logged } = await start(t, own);
        // Another role, which is let in all the while.
        const hf = await open(url);
        t.after(() => hf.close());
        await server.query(`alter role ${name} ${shut}`, url);
        const theirs = `from pg_stat_activity where usename = '${name}'`;
        await server.query(`select pg_terminate_backend(pid) ${theirs}`, url);
        await until(async () => (await server.query(`select 1 ${theirs}`, url)).length === 0, "it is cut off");
        const waiting = await hf.enqueue(echo, 2);
        await until(async () => logged.some((line) => words.test(line)), "it says so");
        await server.query(`alter role ${name} ${opened}`, url);
        const { state, attempt, output } = await hf.jobs.wait(waiting, { timeout: "30s" });
        assert.deepEqual([state, attempt, output], ["succeeded", 1, 2]);
        await runs(hf, 3);
        for (const line of logged.filter((one) => one.includes("tried again"))) assert.match(line, /"hint":"/);
      },
    );
  }

  test("a worker without the connections to renew leases claims nothing until it has them", { timeout: 60_000 }, async (t) => {
    const name = `worker_${randomBytes(4).toString("hex")}`;
    await server.query(`create role ${name} login password 'r1ght' connection limit 6`, url);
    roles.set(name, url);
    await server.query(`grant create on database ${new URL(url).pathname.slice(1)} to ${name}`, url);
    const own = Object.assign(new URL(url), { username: name, password: "r1ght" }).href;
    const logged: string[] = [];
    const note = (message: string, given?: object) => void logged.push(`${message} ${JSON.stringify(given)}`);
    const hf = await open(own, { log: { debug: note, info: note, warn: note, error: note } });
    t.after(() => hf.close());
    const waiting = await hf.enqueue(echo, 1);
    hf.work([echo]);
    const refused = new RegExp(`allows 6 connections to the role ${name}, and one that holds leases.* 7.*alter role ${name} `);
    await until(async () => logged.some((line) => refused.test(line)), "it says so");
    assert.equal((await hf.jobs.get(waiting.id))?.attempt, 0);
    await server.query(`alter role ${name} connection limit 7`, url);
    assert.equal((await hf.jobs.wait(waiting, { timeout: "30s" })).output, 1);
    await runs(hf, 2);
  });
});
