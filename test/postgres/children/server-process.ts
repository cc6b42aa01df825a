import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { openSync, readFileSync } from "node:fs";
import { chown, mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type Binaries, prepareBinaries, RUNS_AS } from "../binaries.ts";
import type { Answer, Job, Order, ServerPlace, StopMode } from "../server-process.ts";
import { configure, copyCluster, makeCluster, makeReplica, memoryFolder, template } from "../cluster.ts";

/**
 * Makes a PostgreSQL server, starts and stops it as its owner says, and clears everything away when the channel to the
 * owner closes: because the owner is done, or was killed. There is no other way to the end, so it is always tried.
 */

/** Generous: recovery after a crash may take a while on a busy machine. */
const START_LIMIT = 30_000;
const SIGNALS: Record<StopMode, NodeJS.Signals> = { fast: "SIGINT", immediate: "SIGQUIT" };

const { native, password, settings, replicaOf } = JSON.parse(process.argv[2] as string) as Job;

let folder: string | null = null;
/** Where its data and its log are: there too, or in memory. */
let home: string | null = null;
let binaries: Binaries;
let server: ChildProcess | null = null;

/** One thing at a time, in the order it was asked for. */
let turn: Promise<void> = answer(furnish);
process.on("message", (order: Order) => {
  turn = turn.then(() => answer(() => (order.do === "start" ? start() : stop(order.mode))));
});
process.on("disconnect", () => {
  turn = turn.then(clear);
});

async function answer(work: () => Promise<ServerPlace | void>): Promise<void> {
  const result = await work().then(
    (place): Answer => ({ place: place ?? null }),
    (error: unknown): Answer => ({ error: error instanceof Error ? error.message : String(error) }),
  );
  if (process.connected) process.send?.(result, () => {});
}

async function furnish(): Promise<ServerPlace> {
  const syncs = settings["fsync"] !== "off";
  folder = await mkdtemp(join((syncs && process.env["HOLDFAST_TEST_DISK"]) || tmpdir(), "holdfast-postgres-"));
  const { uid, gid } = RUNS_AS;
  await chown(folder, uid, gid);
  binaries = await prepareBinaries(native, folder);
  const memory = syncs ? null : memoryFolder();
  home = memory === null ? folder : await mkdtemp(join(memory, "holdfast-postgres-"));
  await chown(home, uid, gid);
  const original = replicaOf ?? template;
  await (original === undefined ? makeCluster(binaries, home, password) : copyCluster(binaries, original, home));
  if (replicaOf !== undefined) await makeReplica(home);
  const port = await freePort();
  await configure(home, { listen_addresses: "127.0.0.1", port, unix_socket_directories: folder, ...settings });
  const aliveFolder = join(folder, "alive");
  await mkdir(aliveFolder, { mode: 0o700 });
  await start();
  return { dataFolder: dataFolder(), aliveFolder, port };
}

/** Starts the server itself, not by pg_ctl, which looks only ten times a second whether it is ready. */
async function start(): Promise<void> {
  if (server !== null) throw new Error("The server is running already.");
  const log = openSync(logFile(), "a");
  const started = spawn(binaries.postgres, ["-D", dataFolder()], { ...binaries.how, stdio: ["ignore", log, log] });
  server = started;
  started.once("close", () => {
    server = null;
  });
  const deadline = performance.now() + START_LIMIT;
  while (!(await isReady(started))) {
    const over = server === null ? "has ended" : performance.now() > deadline ? "does not get ready" : null;
    if (over !== null) throw new Error(`The server ${over}:\n${readFileSync(logFile(), "utf8")}`);
    await delay(5);
  }
}

/** The last line of the server's own lock file says how it is, the first one whose it is: one from before may lie there. */
async function isReady({ pid }: ChildProcess): Promise<boolean> {
  const lines = await readFile(join(dataFolder(), "postmaster.pid"), "utf8").then(
    (text) => text.split("\n"),
    () => [],
  );
  return lines[0] === String(pid) && /^(ready|standby) *$/.test(lines[7] ?? "");
}

async function stop(mode: StopMode): Promise<void> {
  if (server === null) return;
  const ended = once(server, "close");
  server.kill(SIGNALS[mode]);
  await ended;
}

async function clear(): Promise<void> {
  await stop("immediate");
  for (const one of [folder, home]) if (one !== null) await rm(one, { recursive: true, force: true, maxRetries: 5 });
}

/**
 * A port that no process listens on, below those that outgoing connections are given: while the server is down, one of them
 * could take its port, or even connect to itself.
 */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 15_000 + Math.floor(Math.random() * 17_000);
    const probe = createServer();
    const free = await new Promise<boolean>((resolve) => {
      probe.once("error", () => resolve(false));
      probe.listen(port, "127.0.0.1", () => resolve(true));
    });
    if (!free) continue;
    await new Promise((resolve) => probe.close(resolve));
    return port;
  }
}

function dataFolder(): string {
  return join(home as string, "data");
}

function logFile(): string {
  return join(home as string, "log");
}
