import assert from "node:assert/strict";
import { subscribe } from "node:diagnostics_channel";
import type { Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { HoldfastError, job, open } from "../../src/index.ts";
import { type JsonError, Place } from "../cli/holdfast.ts";
import { until } from "./handles.ts";
import { noRestart, type PostgresServer, startReplica, startServer } from "./server.ts";

const echo = job<number, number>({ name: "echo", run: async ({ input }) => input });

describe("a replica", { skip: noRestart, timeout: 120_000 }, () => {
  let primary: PostgresServer;
  let replica: PostgresServer;
  let url: URL;
  before(async () => {
    primary = await startServer();
    url = new URL(await primary.createDatabase());
    await using hf = await open(url.href);
    await hf.enqueue(echo, 0);
    replica = await startReplica(primary);
    await until(async () => (await stateOf("state")) === "streaming", "the replica is sent what is written");
  });
  after(async () => {
    await replica.close();
    await primary.close();
  });

  const stateOf = async (what: string) => (await primary.query("select * from pg_stat_replication"))[0]?.[what];
  /** The same database, on these servers. */
  const on = (servers: readonly PostgresServer[], attributes = "") =>
    url.href.replace(url.host, servers.map((server) => new URL(server.url()).host).join()) + attributes;

  test("a replica is reported as read-only when it is opened, with a hint", async (t) => {
    const untouched = new URL(await primary.createDatabase());
    untouched.port = new URL(replica.url()).port;
    await until(async () => replica.query("select 1", untouched.href).then(...SO), "it has the new database, too");
    for (const address of [on([replica]), on([replica], "?target_session_attrs=read-write"), untouched.href])
      await assert.rejects(open(address), isReadOnly, address);
    const place = await Place.make();
    t.after(() => place.remove());
    for (const args of [["status"], ["doctor"], ["enqueue", "echo", "1"]]) {
      const { error } = await place.json<JsonError>([...args, "--db", on([replica])], 1);
      assert.ok(isReadOnly(new HoldfastError(error.code, error.message, error.hint)));
    }
    const health = await place.json<{ ok: boolean; reasons: string[] }>(["health", "--db", on([replica])], 1);
    assert.match(JSON.stringify(health), /is read-only/);
  });

  test("a promoted replica is used from then on, and no synchronously replicated commit is lost", async (t) => {
    await primary.query("alter system set synchronous_standby_names = 'replica'");
    await primary.query("select pg_reload_conf()");
    await until(async () => (await stateOf("sync_state")) === "sync", "commits wait for it");
    const logged: string[] = [];
    const note = (message: string, data?: unknown) => void logged.push(`${message} ${JSON.stringify(data)}`);
    const log = { debug: note, info: note, warn: note, error: note };
    const worker = await open(on([primary, replica], "?target_session_attrs=read-write"), { log });
    t.after(() => worker.close());
    const producer = await open(on([primary, replica]), { log });
    t.after(() => producer.close());
    worker.work([echo]);
    const accepted: string[] = [];
    const enqueue = async () => void accepted.push((await producer.enqueue(echo, accepted.length)).id);
    while (accepted.length < 50) await enqueue();
    await replica.stop();
    const waits = enqueue();
    const waiting = "select 1 from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'holdfast writes'";
    await until(async () => (await primary.query(waiting)).length > 0, "a commit waits for it");
    assert.equal(accepted.length, 50, "nothing is answered that only one of them has");
    await replica.start();
    await waits;
    await primary.stop("immediate");
    // An enqueue that is sent over a connection whose end was not read yet is answered with COMMIT_UNKNOWN.
    await until(async () => openSockets(primary) === 0, "this process has read the end of its connections");
    // The other host answers; that it takes no writes is not known before one is tried.
    for (let i = 0; i < 3; i++) await assert.rejects(producer.enqueue(echo, -1), isReadOnly);
    await replica.query("select pg_promote()");
    for (const goal = accepted.length + 50; accepted.length < goal;) await enqueue();
    const jobs = await Promise.all(accepted.map((id) => producer.jobs.wait(id)));
    assert.deepEqual(
      jobs.map(({ state, output, attempt }) => [state, output, attempt]),
      jobs.map((_, i) => ["succeeded", i, 1]),
      logged.join("\n"),
    );
  });
});

/** Whether it came to something. */
const SO = [() => true, () => false] as const;

/** Every socket that this thread has opened: those that do not keep the process alive are in no list of Node's. */
const sockets = new Set<Socket>();
subscribe("net.client.socket", (message) => sockets.add((message as { socket: Socket }).socket));

function openSockets(server: PostgresServer): number {
  const port = Number(new URL(server.url()).port);
  return [...sockets].filter(({ destroyed, remotePort }) => !destroyed && remotePort === port).length;
}

function isReadOnly(error: unknown): true {
  assert.ok(error instanceof HoldfastError, String(error));
  assert.equal(error.code, "READ_ONLY", error.message);
  assert.match(error.message, /is read-only: it is a replica/);
  assert.match(error.hint, /address of the primary/);
  return true;
}
