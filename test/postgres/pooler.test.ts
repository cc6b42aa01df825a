import assert from "node:assert/strict";
import { type ChildProcess, fork, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import postgres from "postgres";
import { HoldfastError, job, type JobContext, open } from "../../src/index.ts";
import { pooled } from "./pooled.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const skip = noServer || (spawnSync("pgbouncer", ["--version"]).status === 0 ? false : "pgbouncer is not installed here");
let server: PostgresServer;
let folder: string;
let pooler: ChildProcess;
let address: string;

before(async () => {
  if (skip) return;
  server = await startServer();
  folder = await mkdtemp(join(tmpdir(), "holdfast-pooler-"));
  await chmod(folder, 0o755);
  const at = new URL(server.url());
  const port = await freePort();
  await writeFile(join(folder, "users"), `"${at.username}" "${at.password}"\n`);
  // Fewer connections than there are clients, so that each transaction gets another.
  const settings = `[databases]
roomy = host=127.0.0.1 port=${at.port} dbname=${at.pathname.slice(1)} pool_size=6
* = host=127.0.0.1 port=${at.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
auth_type = plain
auth_file = ${join(folder, "users")}
pool_mode = transaction
default_pool_size = 3
unix_socket_dir =
`;
  await writeFile(join(folder, "pgbouncer.ini"), settings);
  const runsAs = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : {};
  pooler = spawn("pgbouncer", ["-q", join(folder, "pgbouncer.ini")], { stdio: "ignore", ...runsAs });
  await answers(port);
  at.port = String(port);
  at.searchParams.set("pooler", "transaction");
  address = at.href;
});

after(async () => {
  if (skip) return;
  pooler.kill("SIGKILL");
  await server.close();
  await rm(folder, { recursive: true });
});

test(
  "behind a pooler in transaction mode, jobs are enqueued, run, limited, locked and announced as usual",
  { skip },
  async () => {
    const hf = await open(address);
    const ran: number[] = [];
    const most = { running: 0, seen: 0 };
    const work = job({
      name: "work",
      queue: { name: "work", events: true },
      limit: { concurrency: 2 },
      run: async ({ input }: JobContext<number>) => {
        most.seen = Math.max(most.seen, ++most.running);
        await new Promise((resolve) => setImmediate(resolve));
        most.running--;
        ran.push(input);
      },
    });
    const worker = hf.work([work], { concurrency: 4 });
    const jobs = await Promise.all(Array.from({ length: 20 }, (_, n) => hf.enqueue(work, n)));
    for (const { id } of jobs) assert.equal((await hf.jobs.wait(id)).state, "succeeded");
    assert.deepEqual(
      ran.toSorted((a, b) => a - b),
      jobs.map((_, n) => n),
    );
    assert.equal(most.seen, 2);
    const lock = await hf.lock("l").acquire("me", "1m");
    assert.notEqual(lock, null);
    assert.equal(await hf.lock("l").acquire("you", "1m"), null);
    await worker.stop();
    await hf.close();
  },
);

test(
  "behind a pooler, one process is a build's orchestrator and two others work, each step once",
  { skip, timeout: 120_000 },
  async (t) => {
    // Still fewer connections than three processes have.
    const roomy = new URL(address);
    roomy.pathname = "/roomy";
    await using hf = await open(roomy.href, { schema: "built", log: quiet });
    const entry = new URL("./children/pooled.ts", import.meta.url);
    const how = { env: { ...process.env, POOLED_LASTS: "5" } };
    const workers = [fork(entry, [roomy.href], how), fork(entry, [roomy.href], how)];
    t.after(() => workers.forEach((worker) => worker.kill("SIGKILL")));
    await Promise.all(workers.map((worker) => once(worker, "message")));
    const handle = await hf.builds.start(pooled, { concurrency: 1 });
    const { state, reason, spent, stages } = await handle.done();
    assert.deepEqual([state, spent.usd], ["SUCCESS", 0.5], reason);
    const done = { ran: 50, cached: 0, failed: 0, left: 0 };
    assert.deepEqual(stages, { square: done, say: done });
    const texts: string[] = [];
    const pids = new Set<number>();
    for await (const { output } of handle.outputs("say")) {
      texts.push(output.text);
      for (const pid of output.pids) pids.add(pid);
    }
    assert.deepEqual(
      texts,
      Array.from({ length: 50 }, (_, n) => `it is ${n * n}`),
    );
    for (const { pid } of workers) assert.ok(pids.has(pid as number), "each worker has had its share");
    const again = await (await hf.builds.start(pooled)).done();
    assert.deepEqual(again.stages["say"], { ran: 0, cached: 50, failed: 0, left: 0 });
  },
);

test("behind a pooler, concurrent reads each get their answer", { skip, timeout: 60_000 }, async () => {
  await using hf = await open(address);
  const looks = [() => hf.jobs.counts(), () => hf.jobs.list(), () => hf.queues.list(), () => hf.schedules.list()];
  const seen = await Promise.all(Array.from({ length: 300 }, (_, n) => looks[n % looks.length]?.()));
  assert.equal(seen.length, 300);
});

test("behind a pooler, two durabilities work on the same connections", { skip }, async () => {
  await using hf = await open(address, { schema: "process", durability: "process" });
  const work = job<number>({ name: "work", run: () => {} });
  hf.work([work]);
  await hf.jobs.wait(await hf.enqueue(work, 1));
  const at = new URL(address);
  at.searchParams.delete("pooler");
  // More than the pooler has connections.
  const others = Array.from({ length: 6 }, () => postgres(at.href, { max: 1, prepare: false, fetch_types: false }));
  const said = await Promise.all(
    others.map(async (sql) => (await sql.begin((tx) => [tx`select pg_sleep(0.05)`, tx`show synchronous_commit`]))[1]?.[0]),
  );
  assert.deepEqual(
    said.map((row) => row?.["synchronous_commit"]),
    said.map(() => "on"),
  );
  await Promise.all(others.map((sql) => sql.end({ timeout: 1 })));
});

test("without ?pooler=transaction, the error names it", { skip, timeout: 60_000 }, async () => {
  const at = new URL(address);
  at.searchParams.delete("pooler");
  const codes = new Set<string>();
  // Sooner or later one gets a connection of the server's that another client had before.
  for (let round = 0; round < 50 && !codes.has("POOLER_UNDECLARED"); round++) {
    const handles = await Promise.allSettled(
      Array.from({ length: 4 }, (_, n) => open(at.href, { schema: `undeclared_${n}`, log: quiet })),
    );
    for (const handle of handles) {
      if (handle.status === "rejected") codes.add(codeOf(handle.reason));
      else {
        await handle.value.jobs.counts().catch((error: unknown) => codes.add(codeOf(error)));
        await handle.value.close().catch((error: unknown) => codes.add(codeOf(error)));
      }
    }
  }
  assert.ok(codes.has("POOLER_UNDECLARED"), [...codes].join());
});

const quiet = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

function codeOf(error: unknown): string {
  return error instanceof HoldfastError ? error.code : String(error);
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => probe.once("listening", resolve));
  const { port } = probe.address() as { port: number };
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

async function answers(port: number): Promise<void> {
  for (;;) {
    const socket = connect(port, "127.0.0.1");
    const up = await new Promise((resolve) => socket.once("connect", () => resolve(true)).once("error", () => resolve(false)));
    socket.destroy();
    if (up) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
