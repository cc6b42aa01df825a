import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { Alive } from "../../src/store/alive.ts";
import { findPlace, type Place, sweepOld } from "../../src/store/postgres/processes.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { type Life, registeredProcesses } from "../../src/store/processes.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const HERE = { pid: 1, host: "host", boot: "this boot", program: "a test" };
const WORKS = [{ queue: "work", name: "work", version: 1 }];

describe("who lives, on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  let clock: TestClock;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => {
    url = await server.createDatabase();
    clock = testClock();
  });

  const open = async (t: TestContext, where = url) => {
    const store = await PostgresStore.open(where, { clock, injected: true, random: () => 0.5 });
    t.after(() => store.close());
    return store;
  };
  const opened = async (t: TestContext, where = url) => {
    const store = await open(t, where);
    return { store, id: await store.processes.register(HERE), place: findPlace(store.databaseId) as Place };
  };
  /** A row as another process would have written it. */
  const enter = async (row: { place: string; alive: string; boot?: string; seenAt?: number }) => {
    const { place, alive, boot = HERE.boot, seenAt = 0 } = row;
    const [{ id }] = (await server.query(
      `insert into holdfast.processes (place, alive, identity, pid, host, boot, program, started_at, seen_at)
       values ('${place}', '${alive}', '', 2, 'host', '${boot}', 'another', 0, ${seenAt}) returning id::integer as id`,
      url,
    )) as [{ id: ProcessId }];
    return id;
  };
  const strikeOff = () => server.query("delete from holdfast.processes", url);
  /** The connections that live processes write over. */
  const backends = async () =>
    (await server.query(
      "select id::integer, activity.pid from holdfast.processes join pg_stat_activity as activity on activity.pid = backend",
      url,
    )) as { id: number; pid: number }[];
  /** The process writes over a connection that lives until the answer is called. */
  const connect = async (store: PostgresStore, id: ProcessId) => {
    await store.processes.probe();
    const ended = server
      .query(
        `update holdfast.processes set (backend, backend_role, backend_since) =
           (select pid, usesysid, backend_start from pg_stat_activity where pid = pg_backend_pid()) where id = ${id};
         commit; select pg_sleep(60)`,
        url,
      )
      .catch(() => []);
    while (!(await backends()).some((one) => one.id === id)) await passes(5);
    return async () => {
      await server.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where pid = (select backend from holdfast.processes where id = ${id})`,
        url,
      );
      await ended;
    };
  };

  test("a process of this host with a free lock file is dead, and after a reboot died with the host", async (t) => {
    const { store, place } = await opened(t);
    writeFileSync(join(place.folder, "a.lock"), "");
    writeFileSync(join(place.folder, "b.lock"), "");
    const [a, b] = [await enter({ place: place.id, alive: "a" }), await enter({ place: place.id, alive: "b", boot: "before" })];
    assert.deepEqual([await lifeOf(store, a), await lifeOf(store, b)], ["dead", "rebooted"]);
    assert.deepEqual([await store.processes.unregister(a), await store.processes.unregister(b)], [true, true]);
    const left = readdirSync(place.folder).filter((file) => file.endsWith(".lock"));
    assert.equal(left.length, 1, "what they left is gone with them");
  });

  test("a missing lock file proves nothing", async (t) => {
    const { store, place } = await opened(t);
    assert.equal(await lifeOf(store, await enter({ place: place.id, alive: "gone" })), "unknown");
  });

  test("a free lock file is a copy while its process's connection lives", async (t) => {
    const { store, place } = await opened(t);
    writeFileSync(join(place.folder, "a.lock"), "");
    const id = await enter({ place: place.id, alive: "a" });
    const disconnect = await connect(store, id);
    assert.equal(await lifeOf(store, id), "alive");
    await disconnect();
    while ((await lifeOf(store, id)) !== "dead") await passes(5);
  });

  test("a process elsewhere is alive while its connection is, then unknown", async (t) => {
    const { store, place } = await opened(t);
    // It would be dead here: the same name of a file, but another folder.
    writeFileSync(join(place.folder, "a.lock"), "");
    const id = await enter({ place: randomUUID(), alive: "a" });
    const disconnect = await connect(store, id);
    while ((await lifeOf(store, id)) !== "alive") await passes(5);
    await disconnect();
    while ((await lifeOf(store, id)) !== "unknown") await passes(5);
  });

  test("a process's row names the new connection after the old one is lost", async (t) => {
    const { store, id } = await opened(t);
    const [{ pid }] = (await backends()) as [{ id: number; pid: number }];
    await server.query(`select pg_terminate_backend(${pid})`, url);
    await store.processes.update(id, { works: WORKS });
    const [{ pid: another }] = (await backends()) as [{ id: number; pid: number }];
    assert.notEqual(another, pid);
  });

  for (const [what, change] of [
    ["another role's", "backend_role = 0"],
    ["a later one with the same number", "backend_since = backend_since - interval '1 s'"],
  ] as const) {
    test(`a process whose connection is now ${what} is not proven alive`, async (t) => {
      const { store } = await opened(t);
      const id = await enter({ place: randomUUID(), alive: "a" });
      const disconnect = await connect(store, id);
      while ((await lifeOf(store, id)) !== "alive") await passes(5);
      await server.query(`update holdfast.processes set ${change} where id = ${id}`, url);
      while ((await lifeOf(store, id)) !== "unknown") await passes(5);
      await disconnect();
    });
  }

  test("a process that was unregistered is registered again when it looks or works, with its details", async (t) => {
    const { store, id } = await opened(t);
    await store.processes.update(id, { works: WORKS });
    const before = await registeredProcesses(store.processes);
    await strikeOff();
    await store.processes.probe();
    assert.deepEqual(await registeredProcesses(store.processes), before);
    await strikeOff();
    await store.processes.update(id, { works: [] });
    assert.deepEqual(await registeredProcesses(store.processes), [{ ...before[0], works: [] }]);
    assert.equal(await store.processes.unregister(id), true);
    await store.processes.probe();
    assert.deepEqual(await registeredProcesses(store.processes), [], "who has left does not come back");
  });

  test("behind a pooler a process has no connection of its own, and stays by its heartbeat", async (t) => {
    const pooled = await opened(t, `${url}?pooler=transaction`);
    assert.equal((await backends()).length, 0);
    const { store } = await opened(t);
    // As if it were on another host.
    await server.query(`update holdfast.processes set place = 'elsewhere' where id = ${pooled.id}`, url);
    assert.equal(await lifeOf(store, pooled.id), "unknown");
    assert.equal(await store.processes.unregister(pooled.id), false, "it has just come");
    await clock.advance("1h");
    await pooled.store.processes.probe();
    assert.equal(await store.processes.unregister(pooled.id), false, "it has just said so");
    await clock.advance("1h");
    assert.equal(await store.processes.unregister(pooled.id), true);
  });
});

describe("the place of a host", () => {
  const id = randomUUID();

  test("the folder of a host is the same for its processes, per database, and different elsewhere", (t) => {
    const [base, other] = [made(t), made(t)];
    const place = findPlace(id, [base]);
    assert.deepEqual(findPlace(id, [base]), place);
    const second = findPlace(randomUUID(), [base]);
    assert.deepEqual([second?.id, second?.folder === place?.folder], [place?.id, false]);
    assert.notEqual(findPlace(id, [other])?.id, place?.id);
  });

  test("the folder of a host is never writable by others, and must exist", (t) => {
    const [base, other] = [made(t), made(t)];
    const mine = join(base, `holdfast-${process.getuid?.()}`);
    mkdirSync(mine);
    chmodSync(mine, 0o777);
    assert.equal(findPlace(id, [base]), null);
    assert.ok(findPlace(id, [base, other])?.folder.startsWith(other), "then it is the next");
    assert.equal(findPlace(id, [join(base, "missing")]), null);
    rmSync(mine, { recursive: true });
    writeFileSync(mine, "a file");
    assert.equal(findPlace(id, [base]), null);
  });

  test("HOLDFAST_ALIVE sets the folder of the host", (t) => {
    const [base, before] = [made(t), process.env["HOLDFAST_ALIVE"]];
    t.after(() => {
      if (before === undefined) delete process.env["HOLDFAST_ALIVE"];
      else process.env["HOLDFAST_ALIVE"] = before;
    });
    process.env["HOLDFAST_ALIVE"] = base;
    assert.deepEqual(findPlace(id), findPlace(id, [base]));
    assert.equal(statSync(join(base, `holdfast-${process.getuid?.()}`)).mode & 0o077, 0, "no other user may look into it");
    process.env["HOLDFAST_ALIVE"] = join(base, "missing");
    assert.equal(findPlace(id), null);
  });

  test("the folder of a host forgets databases that were not opened for long, but not live processes", (t) => {
    const base = made(t);
    const place = findPlace(id, [base]) as Place;
    const [gone, quiet, fresh] = [randomUUID(), randomUUID(), randomUUID()].map((other) => findPlace(other, [base]) as Place);
    assert.ok(gone && quiet && fresh);
    for (const { folder } of [place, gone, fresh]) {
      mkdirSync(folder);
      writeFileSync(join(folder, "a.lock"), "");
    }
    const alive = new Alive(quiet.folder, "node:sqlite");
    alive.hold();
    t.after(() => alive.close());
    const longAgo = new Date(Date.now() - 31 * 86_400_000);
    for (const { folder } of [place, gone, quiet]) utimesSync(folder, longAgo, longAgo);
    sweepOld(place, Date.now());
    const left = [place, gone, quiet, fresh].map(({ folder }) => existsSync(folder));
    assert.deepEqual(left, [true, false, true, true]);
    assert.equal(findPlace(id, [base])?.id, place.id);
  });

  test("a folder of a host without its name is not used", (t) => {
    const base = made(t);
    const place = findPlace(id, [base]) as Place;
    writeFileSync(join(place.folder, "..", "place"), "");
    assert.equal(findPlace(id, [base]), null);
  });
});

function made(t: TestContext): string {
  const base = mkdtempSync(join(tmpdir(), "holdfast-place-"));
  t.after(() => rmSync(base, { recursive: true, force: true }));
  return base;
}

async function lifeOf(store: PostgresStore, id: ProcessId): Promise<Life | undefined> {
  return (await store.processes.probe()).others.find(({ process }) => process.id === id)?.life;
}
