import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { Socket } from "node:net";
import tls from "node:tls";
import postgres from "postgres";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { ConnectionLost, explain, isLost } from "../../src/store/postgres/connection/faults.ts";
import { systemClock } from "../../src/engine/host.ts";
import { refuseOld } from "../../src/store/postgres/connection/open.ts";
import { PostgresStore, type PostgresStoreOptions } from "../../src/store/postgres/postgres-store.ts";
import { install, nodeOutput } from "../bundles/project.ts";
import { add, addOne, claim, declaring, limitRule, running, seeAll, SUCCEEDED } from "../conformance/parts.ts";
import { testAllOnly } from "../selection.ts";
import { RUNS_AS } from "./binaries.ts";
import { noRestart, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

test("a write to a socket that the server has closed counts as a lost connection", async () => {
  for (const close of [(socket: Socket) => void socket.end(), (socket: Socket) => void socket.destroy()]) {
    const socket = new Socket();
    socket.on("error", () => {});
    close(socket);
    const { promise: failed, resolve } = Promise.withResolvers<unknown>();
    socket.write("select 1", resolve);
    const error = await failed;
    assert.ok(isLost(error), String(error));
    assert.equal((explain(error, "localhost/shop") as HoldfastError).code, "SERVER_GONE");
  }
});

describe("what goes wrong on PostgreSQL is said, with a hint", { skip: noRestart }, () => {
  let server: PostgresServer;
  let url: string;
  before(async () => void (server = await startServer({ settings: { fsync: "off" } })));
  after(() => server.close());
  beforeEach(async () => void (url = await server.createDatabase()));

  /** One whose patience is short, unless a test is about it; on a busy machine an answer may take a third of that. */
  const openAt = async (t: TestContext, where = url, options: Partial<PostgresStoreOptions> = {}) => {
    const store = await PostgresStore.open(where, {
      clock: systemClock,
      injected: false,
      random: Math.random,
      patience: 1_000,
      ...options,
    });
    t.after(() => store.close());
    return store;
  };

  let roles = 0;
  /** A role of its own, with default privileges only; and its address. */
  const makeRole = async (t: TestContext, how = "") => {
    const name = `tester_${++roles}`;
    await server.query(`create role ${name} login password 'r1ght' ${how}`, url);
    t.after(() => server.query(`drop owned by ${name} cascade; drop role ${name}`, url));
    const own = new URL(url);
    own.username = name;
    own.password = "r1ght";
    return { name, url: own.href };
  };

  const refuses = async (t: TestContext, where: string, ...what: Parameters<typeof says>) =>
    assert.rejects(openAt(t, where), says(...what));

  test("an error says that no server listens at the address", async (t) => {
    await refuses(
      t,
      "postgres://u:r1ght@127.0.0.1:1/d",
      "SERVER_GONE",
      /127\.0\.0\.1:1\/d cannot be reached \(.*ECONNREFUSED/,
      /Check that the server runs/,
    );
    // A name that stands for more than one address.
    await refuses(
      t,
      "postgres://u:r1ght@localhost:1/d",
      "SERVER_GONE",
      /localhost:1\/d cannot be reached \(.*ECONNREFUSED/,
      /Check that the server runs/,
    );
    await refuses(
      t,
      "postgres://u@/d?host=/nowhere",
      "SERVER_GONE",
      /\/nowhere\/d cannot be reached \(.*ENOENT/,
      /Check that the server runs/,
    );
    await refuses(
      t,
      "postgres://u@no-such-host.invalid/d",
      "SERVER_GONE",
      /no-such-host\.invalid\/d .*(ENOTFOUND|EAI_AGAIN)/,
      /address/,
    );
  });

  test("of several hosts, one that answers is used", testAllOnly, async (t) => {
    const port = new URL(url).port;
    const store = await openAt(t, url.replace(`127.0.0.1:${port}`, `127.0.0.1:1,127.0.0.1:${port}`));
    await addOne(store);
    await refuses(
      t,
      url.replace(`127.0.0.1:${port}`, "127.0.0.1:1,127.0.0.1:2"),
      "SERVER_GONE",
      /127\.0\.0\.1:1,127\.0\.0\.1:2\//,
      /Check that the server runs/,
    );
  });

  test("of several hosts, the one that accepts writes by now is used", { timeout: 60_000, ...testAllOnly }, async (t) => {
    const hosts: string[] = [];
    const stores: PostgresStore[] = [];
    const servers = [await startServer(), await startServer()] as const;
    for (const one of servers) {
      t.after(() => one.close());
      await one.query("create role everywhere login superuser password 'r1ght'");
      const { host, pathname } = new URL(one.url());
      hosts.push(host);
      stores.push(await openAt(t, `postgres://everywhere:r1ght@${host}${pathname}`));
    }
    const [first, second] = stores as [PostgresStore, PostgresStore];
    const { pathname } = new URL(servers[0].url());
    const address = `postgres://everywhere:r1ght@${hosts.join()}${pathname}?target_session_attrs=read-write`;
    const store = await openAt(t, address, { patience: 10_000 });
    await addOne(store);
    assert.deepEqual([(await countJobs(first.queries)).pending, (await countJobs(second.queries)).pending], [1, 0]);
    // Every connection stays, and fails at its next statement.
    await servers[0].query("alter system set default_transaction_read_only = on");
    await servers[0].query("select pg_reload_conf()");
    const shown = () => servers[0].query("show default_transaction_read_only");
    while ((await shown())[0]?.["default_transaction_read_only"] !== "on");
    await addOne(store);
    assert.equal((await countJobs(second.queries)).pending, 1);
    assert.equal((await countJobs(store.queries)).pending, 1, "and what is read is read there");
  });

  test("an error says that the password is wrong, the user unknown, or no password was given", async (t) => {
    const { url: right } = await makeRole(t);
    for (const [user, password] of [
      ["tester_1", "wr0ng"],
      ["absent", "wr0ng"],
      ["tester_1", ""],
    ] as const) {
      const wrong = Object.assign(new URL(right), { username: user, password });
      await refuses(t, wrong.href, "ACCESS_DENIED", /rejected this user \(.+\)/, /user and password/);
    }
  });

  test("an error says that the database does not exist", testAllOnly, async (t) => {
    await refuses(
      t,
      Object.assign(new URL(url), { pathname: "/nowhere" }).href,
      "NO_DATABASE",
      /\/nowhere has no such database/,
      /createdb/,
    );
  });

  test("an error says which setting of the address the server does not know or accept", async (t) => {
    for (const asked of ["shmeckel=1", "schema=other", "statement_timeout=soon"])
      await refuses(t, `${url}?${asked}`, "ADDRESS_INVALID", new RegExp(`parameter "${asked.split("=")[0]}"`), /leave it out/);
  });

  test("an error says that the user may not create a schema, or not write into one", testAllOnly, async (t) => {
    const { url: own, name } = await makeRole(t);
    await refuses(t, own, "NO_RIGHTS", /permission denied for database/, /grant create on database/);
    const direct = await openAt(t);
    await refuses(t, own, "NO_RIGHTS", /permission denied for (schema|table)/, /grant/);
    await server.query(
      `grant usage on schema holdfast to ${name}; grant select on all tables in schema holdfast to ${name}`,
      url,
    );
    const store = await openAt(t, own);
    await assert.rejects(addOne(store), says("NO_RIGHTS", /permission denied for/, /grant/));
    assert.deepEqual(await direct.queries.list({ limit: 10 }), { items: [] });
  });

  test("an error says that the user or the database is read-only", async (t) => {
    const { url: own, name } = await makeRole(t);
    await server.query(`grant create on database ${new URL(url).pathname.slice(1)} to ${name}`, url);
    const store = await openAt(t, own);
    await addOne(store);
    await server.query(`alter role ${name} set default_transaction_read_only = on`, url);
    await refuses(t, `${own}?target_session_attrs=read-write`, "READ_ONLY", /is read-only/, /primary/);
    const later = await openAt(t, own);
    await assert.rejects(addOne(later), says("READ_ONLY", /is read-only/, /primary/));
    await assert.rejects(claim(later), says("READ_ONLY", /is read-only/, /primary/));
    assert.equal((await later.queries.list({ limit: 10 })).items.length, 1, "looking is no writing");
    await addOne(store);
  });

  test("a rejected store continues by itself when the database is no longer read-only", testAllOnly, async (t) => {
    const { url: own, name } = await makeRole(t);
    await server.query(`grant create on database ${new URL(url).pathname.slice(1)} to ${name}`, url);
    await (await openAt(t, own)).close();
    await server.query(`alter role ${name} set default_transaction_read_only = on`, url);
    const store = await openAt(t, own);
    await assert.rejects(addOne(store), says("READ_ONLY", /is read-only/, /default_transaction_read_only/));
    // A connection that there is stays as it was made.
    await server.query(`alter role ${name} reset default_transaction_read_only`, url);
    for (const until = performance.now() + 20_000; ;) {
      const refused = await addOne(store).then(
        () => null,
        (error: unknown) => error,
      );
      if (refused === null) break;
      if (!(refused instanceof HoldfastError && refused.code === "READ_ONLY") || performance.now() > until) throw refused;
    }
    assert.equal((await countJobs(store.queries)).pending, 1);
  });

  test("an error says that a statement or a lock wait took too long, or was cancelled by an operator", testAllOnly, async (t) => {
    const direct = await openAt(t);
    const [held, locked] = [await running(direct, { name: "a" }), await running(direct, { name: "b" })];
    await server.query(
      `create function dawdle() returns trigger language plpgsql as $$ begin perform pg_sleep(30); return new; end $$;
       create trigger dawdle before update on holdfast.jobs for each row when (new.key = ${held.job}) execute function dawdle()`,
      url,
    );
    const impatient = await openAt(t, `${url}?statement_timeout=100&lock_timeout=50`);
    const settle = ({ job, fence }: typeof held, store = impatient) => store.settle([{ job, fence, outcome: SUCCEEDED }]);
    await assert.rejects(settle(held), says("STATEMENT_TIMEOUT", /due to statement timeout/, /statement_timeout/));
    // Its neighbours in the transaction have their answers.
    const [late, id] = await Promise.allSettled([settle(held), addOne(impatient, { name: "c" })]);
    assert.deepEqual([late.status, id.status], ["rejected", "fulfilled"]);

    const lock = server.query(
      `begin; select 1 from holdfast.jobs where key = ${locked.job} for update; select pg_sleep(1); commit`,
      url,
    );
    while ((await server.query("select 1 from pg_stat_activity where wait_event = 'PgSleep'", url)).length === 0) await passes(5);
    await assert.rejects(settle(locked), says("BUSY", /locked by another transaction/, /transaction that stays open/));
    await lock;
    assert.deepEqual(await settle(locked), ["held"]);

    const patient = await openAt(t);
    const cancelled = settle(held, patient);
    cancelled.catch(() => {});
    const asleep = "from pg_stat_activity where wait_event = 'PgSleep' and application_name = 'holdfast writes'";
    while ((await server.query(`select pg_cancel_backend(pid) ${asleep}`, url)).length === 0) await passes(5);
    await assert.rejects(cancelled, says("STATEMENT_CANCELLED", /due to user request/, /pg_cancel_backend/));
    assert.deepEqual(await direct.inspect([held, locked]), ["held", "lost"]);
  });

  test("an error says that there are too many connections, for good or for a while", async (t) => {
    const { url: own, name } = await makeRole(t);
    await server.query(
      `grant create on database ${new URL(url).pathname.slice(1)} to ${name}; alter role ${name} connection limit 3`,
      url,
    );
    const others = postgres(own, { max: 2 });
    t.after(() => others.end());
    await Promise.all([others`select pg_sleep(0.01)`, others`select pg_sleep(0.01)`]);
    await refuses(
      t,
      own,
      "TOO_MANY_CONNECTIONS",
      /accepts no more connections \(too many connections for role/,
      /max_connections/,
    );
    const there = async () => (await server.query(`select 1 from pg_stat_activity where usename = '${name}'`, url)).length;
    while ((await there()) > 2) await passes(5);
    const opening = openAt(t, own, { patience: 10_000 });
    opening.catch(() => {});
    while ((await there()) === 2) await passes(5);
    await others.end();
    await addOne(await opening);
  });

  test("an error says that the user or the database may have fewer connections than one process needs", async (t) => {
    const { url: own, name } = await makeRole(t);
    const database = new URL(url).pathname.slice(1);
    await server.query(`grant create on database ${database} to ${name}`, url);
    t.after(() => server.query(`alter database ${database} connection limit -1`, url));
    for (const [what, few] of [
      [`role ${name}`, 1],
      [`role ${name}`, 2],
      [`database ${database}`, 2],
    ] as const) {
      await server.query(`alter ${what} connection limit ${few}`, url);
      const since = performance.now();
      const patient = openAt(t, own, { patience: 60_000 });
      await assert.rejects(patient, (error: HoldfastError) => {
        assert.equal(error.code, "TOO_MANY_CONNECTIONS", error.message);
        assert.match(error.message, new RegExp(`allows ${few} connections? to the ${what}, `));
        assert.ok(error.hint.includes(`alter ${what} connection limit 7`), error.hint);
        return true;
      });
      assert.ok(performance.now() - since < 30_000, "no other connection is waited for");
      await server.query(`alter ${what} connection limit -1`, url);
    }
    await server.query(`alter role ${name} connection limit 3`, url);
    await addOne(await openAt(t, own));
  });

  test("a schema dropped under an open store is created again by the next process that opens it", testAllOnly, async (t) => {
    const store = await openAt(t);
    await addOne(store);
    await server.query("drop schema holdfast cascade", url);
    await assert.rejects(addOne(store), says("NO_DATABASE", /Tables of Holdfast are missing/, /backup/));
    await assert.rejects(add(store, { name: "new", id: "x" }), says("NO_DATABASE", /Tables of Holdfast are missing/, /backup/));
    await assert.rejects(claim(store), says("NO_DATABASE", /Tables of Holdfast are missing/, /backup/));
    await assert.rejects(countJobs(store.queries), says("NO_DATABASE", /Tables of Holdfast are missing/, /backup/));
    await addOne(await openAt(t));
  });

  test("a schema with another program's tables is rejected, and left unchanged", async (t) => {
    const theirs = [
      "create table holdfast.jobs (id integer primary key)",
      "create table holdfast.migrations (id integer primary key, name text)",
      "create table holdfast.migrations (version integer, name text, applied_at timestamptz); insert into holdfast.migrations values (1, 'users', now())",
      "create table holdfast.migrations (version integer, name text, applied_at timestamptz)",
      "create view holdfast.counter as select 1 as id",
    ];
    const seen = "select relname, relkind from pg_class where relnamespace = 'holdfast'::regnamespace order by relname";
    for (const sql of theirs) {
      await server.query(`create schema holdfast; ${sql}`, url);
      const before = await server.query(seen, url);
      await assert.rejects(openAt(t), (error) => {
        assert.ok(error instanceof HoldfastError, String(error));
        assert.equal(error.code, "SCHEMA_TAKEN", `${sql}: ${error.message}`);
        assert.match(error.message, /It was not changed/);
        assert.match(error.hint, /another schema/);
        return true;
      });
      assert.deepEqual(await server.query(seen, url), before, sql);
      await server.query("drop schema holdfast cascade", url);
    }
    await addOne(await openAt(t));
  });

  test("an error says that the database's encoding cannot store every text", testAllOnly, async (t) => {
    for (const encoding of ["LATIN1", "SQL_ASCII"]) {
      const name = `tester_${encoding.toLowerCase()}`;
      await server.query(`create database ${name} template template0 encoding '${encoding}' locale_provider libc locale 'C'`);
      t.after(() => server.query(`drop database ${name} with (force)`));
      await assert.rejects(openAt(t, server.url(name)), (error) => {
        assert.ok(error instanceof HoldfastError);
        assert.equal(error.code, "ENCODING_UNSUPPORTED");
        assert.match(error.message, new RegExp(`${encoding}.*needs UTF8`));
        assert.match(error.hint, /createdb --encoding=UTF8/);
        return true;
      });
      assert.equal((await server.query("select 1 from pg_namespace where nspname = 'holdfast'", server.url(name))).length, 0);
    }
  });

  test("a name, an id or a key with NUL is rejected", async (t) => {
    const store = await openAt(t);
    for (const bad of [{ name: "a\0b" }, { id: "a\0b" }, { key: "a\0b" }, { queue: "a\0b" }]) {
      const [refused, other] = await Promise.allSettled([addOne(store, bad), addOne(store)]);
      assert.ok(refused.status === "rejected");
      says("TEXT_INVALID", /which cannot be stored/, /U\+0000/)(refused.reason);
      assert.equal(other.status, "fulfilled");
    }
    // Those of several calls that are locked by name before anything else.
    const declares = declaring([limitRule({ concurrency: 1 })], { queue: "a\0b" });
    const lock = (name: string) => store.locks.acquire(name, "me", "token", 1_000);
    for (const bad of [() => lock("a\0b"), () => addOne(store, { queue: "a\0b", declares, limitKeys: [""] })]) {
      const [refused, ...others] = await Promise.allSettled([bad(), lock("c"), lock("d"), addOne(store)]);
      assert.ok(refused?.status === "rejected");
      says("TEXT_INVALID", /which cannot be stored/, /U\+0000/)(refused.reason);
      assert.deepEqual(
        others.map(({ status }) => status),
        ["fulfilled", "fulfilled", "fulfilled"],
      );
    }
    await assert.rejects(store.queries.get("a\0b"), says("TEXT_INVALID", /which cannot be stored/, /U\+0000/));
  });

  test("an error says that the disk is full", testAllOnly, async (t) => {
    const small = smallDisk();
    if (small === null) return t.skip("only root can make a small disk, where there is mount");
    const own = await startServer();
    t.after(async () => {
      await own.close();
      small.remove();
    });
    await own.query(`create tablespace small location '${small.folder}'`);
    await own.query("alter database postgres set default_tablespace = 'small'");
    const store = await openAt(t, own.url(), { patience: 10_000 });
    const answered: string[] = [];
    const fill = async () => {
      for (;;) answered.push(await addOne(store, { input: noise() }));
    };
    await assert.rejects(fill(), says("DISK_FULL", /No space left on device.*nothing was changed/s, /Free space/));
    const found = (await seeAll(store)).map(({ id }) => id);
    assert.deepEqual(found.toSorted(), answered.toSorted(), "nothing half done");
    small.enlarge();
    await addOne(store, { input: noise() });
  });

  test("an error of a full disk in a trigger is reported as such", async (t) => {
    const store = await openAt(t);
    await addOne(store);
    await server.query(
      `create function full_up() returns trigger language plpgsql as $$ begin raise 'could not extend file' using errcode = '53100'; end $$;
       create trigger full_up before insert on holdfast.jobs for each row execute function full_up()`,
      url,
    );
    await assert.rejects(addOne(store), says("DISK_FULL", /disk .* is full \(could not extend file\)/, /Free space/));
    await server.query("drop trigger full_up on holdfast.jobs", url);
    await addOne(store);
  });

  test("an error says that the driver is not installed", async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "holdfast-bare-"));
    t.after(() => rmSync(folder, { recursive: true }));
    await install(folder);
    const script = `import { open } from "holdfast"; await open(${JSON.stringify(url)}).catch((e) => console.log(e.code, e.message, e.hint))`;
    const { stdout, stderr } = await nodeOutput(folder, "--input-type=module", "-e", script);
    assert.match(stdout, /^DRIVER_MISSING .*`postgres`, which is not installed\. Run `npm install postgres`/, stderr);
  });

  test("an error says that the server is too old", () => {
    refuseOld(150_000);
    refuseOld(180_004);
    assert.throws(
      () => refuseOld(140_012),
      (error) =>
        error instanceof HoldfastError && error.code === "SERVER_TOO_OLD" && /14\.12/.test(error.message) && error.hint !== "",
    );
  });

  const noCertificate = spawnSync("openssl", ["version"]).status === 0 ? false : "there is no openssl here to make a certificate";
  test(
    "an error says that the certificate has no known issuer, and the connection may still be encrypted",
    { skip: noCertificate },
    async (t) => {
      const { url: plain, name } = await makeRole(t);
      for (const mode of ["require", "verify-full"])
        await refuses(t, `${url}?sslmode=${mode}`, "TLS_REFUSED", /does not offer encrypted connections/, /`ssl`/);
      await addOne(await openAt(t, `${url}?sslmode=prefer`, { schema: "plain" }));
      encrypt(server.dataFolder, name);
      await server.query("alter system set ssl = on", url);
      await server.query("select pg_reload_conf()", url);
      t.after(async () => {
        await server.query("alter system reset ssl", url);
        await server.query("select pg_reload_conf()", url);
      });
      while ((await server.query("show ssl", url))[0]?.["ssl"] !== "on") await passes(5);
      await server.query(`grant create on database ${new URL(url).pathname.slice(1)} to ${name}`, url);
      await refuses(t, plain, "ACCESS_DENIED", /no encryption/, /sslmode=require/);
      await refuses(
        t,
        `${plain}?sslmode=verify-full`,
        "CERTIFICATE_INVALID",
        /does not trust \(self-signed/,
        /NODE_EXTRA_CA_CERTS/,
      );
      const store = await openAt(t, `${plain}?sslmode=require`);
      const encrypted =
        "select pid from pg_stat_ssl join pg_stat_activity using (pid) where ssl and application_name = 'holdfast writes'";
      assert.equal((await server.query(encrypted, url)).length, 1);
      await addOne(store);
      // It is lost and made again like any other.
      await server.query(`select pg_terminate_backend(pid) from (${encrypted}) as mine`, url);
      await addOne(store);
      assert.equal((await countJobs(store.queries)).pending, 2);
      // Both would, and cannot agree on how.
      await server.query("alter system set ssl_min_protocol_version = 'TLSv1.3'", url);
      await server.query("select pg_reload_conf()", url);
      t.after(() => server.query("alter system reset ssl_min_protocol_version", url));
      while ((await server.query("show ssl_min_protocol_version", url))[0]?.["ssl_min_protocol_version"] !== "TLSv1.3")
        await passes(5);
      const { DEFAULT_MAX_VERSION } = tls;
      t.after(() => void (tls.DEFAULT_MAX_VERSION = DEFAULT_MAX_VERSION));
      tls.DEFAULT_MAX_VERSION = "TLSv1.2";
      await refuses(
        t,
        `${plain}?sslmode=require`,
        "TLS_FAILED",
        /No encrypted connection .* \(.*(version|alert)/,
        /ssl_min_protocol/,
      );
    },
  );

  test("an error says that the server is a replica, until it is promoted", { timeout: 60_000 }, async (t) => {
    const store = await openAt(t, url, { patience: 10_000 });
    const id = await addOne(store);
    await server.stop("fast");
    const signal = join(server.dataFolder, "standby.signal");
    writeFileSync(signal, "");
    chownSync(signal, RUNS_AS.uid, RUNS_AS.gid);
    await server.start();
    while (!(await isUp(server))) await passes(5);
    await refuses(t, `${url}?target_session_attrs=read-write`, "READ_ONLY", /is read-only/, /primary/);
    await refuses(t, await otherDatabase(url), "READ_ONLY", /is read-only/, /primary/);
    await assert.rejects(addOne(store), says("READ_ONLY", /is read-only/, /primary/));
    assert.equal((await store.queries.get(id))?.state, "pending", "looking is no writing");
    await server.query("select pg_promote()", url);
    await addOne(store);
    assert.equal((await countJobs(store.queries)).pending, 2);
  });
});

/** The reader of the error learns what happened, and what to do. */
function says(code: string, words: RegExp, hint: RegExp): (error: unknown) => true {
  return (error) => {
    assert.ok(error instanceof HoldfastError, `not explained: ${String(error)}`);
    const shown = `${error.message}\n${error.hint}`;
    assert.equal(error.code, code, shown);
    assert.match(error.message, words);
    assert.match(error.hint, hint);
    assert.doesNotMatch(shown, /r1ght|wr0ng|ADDRESS|SAID|undefined/, "no password, and no gap that was not filled");
    assert.ok(error.cause instanceof Error && !(error.cause instanceof ConnectionLost), "the cause is the driver's own");
    return true;
  };
}

/** Bytes that cannot be packed. */
function noise(): string {
  return JSON.stringify(Array.from({ length: 12_000 }, () => Math.random().toString(36)).join(""));
}

/** One in which Holdfast never was: there is always this. */
async function otherDatabase(url: string): Promise<string> {
  return Object.assign(new URL(url), { pathname: "/postgres" }).href;
}

async function isUp(server: PostgresServer): Promise<boolean> {
  return server.query("select 1").then(
    () => true,
    () => false,
  );
}

/** A self-signed certificate; the user gets in only over a connection that is encrypted with it. */
function encrypt(dataFolder: string, user: string): void {
  const [certificate, key] = [join(dataFolder, "server.crt"), join(dataFolder, "server.key")];
  const made = spawnSync("openssl", [
    "req",
    "-x509",
    "-nodes",
    "-newkey",
    "rsa:2048",
    "-subj",
    "/CN=127.0.0.1",
    "-keyout",
    key,
    "-out",
    certificate,
  ]);
  assert.equal(made.status, 0, String(made.stderr));
  chmodSync(key, 0o600);
  for (const file of [certificate, key]) chownSync(file, RUNS_AS.uid, RUNS_AS.gid);
  const rules = `hostssl all ${user} 127.0.0.1/32 scram-sha-256\nhostnossl all ${user} 127.0.0.1/32 reject\nhost all all 127.0.0.1/32 scram-sha-256\n`;
  writeFileSync(join(dataFolder, "pg_hba.conf"), rules);
}

/** Big enough for the tables, and not for much more. */
function smallDisk(): { folder: string; enlarge(): void; remove(): void } | null {
  const mount = mkdtempSync(join(tmpdir(), "holdfast-small-"));
  const remove = () => {
    spawnSync("umount", [mount]);
    rmSync(mount, { recursive: true, force: true });
  };
  process.once("exit", remove);
  if (spawnSync("mount", ["-t", "tmpfs", "-o", "size=24m", "tmpfs", mount]).status !== 0) return null;
  const folder = join(mount, "tablespace");
  mkdirSync(folder);
  chmodSync(mount, 0o755);
  chownSync(folder, RUNS_AS.uid, RUNS_AS.gid);
  const enlarge = () => assert.equal(spawnSync("mount", ["-o", "remount,size=48m", mount]).status, 0);
  return { folder, enlarge, remove };
}
