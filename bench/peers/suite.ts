import { type ChildProcess, execFileSync, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type PostgresServer, startServer } from "../../test/postgres/server.ts";
import { bundle, ROOT } from "../../scripts/bundle.ts";
import { Cadence } from "../cadence.ts";
import { quantile } from "../measure.ts";
import type { Acts, Message } from "./player-process.ts";
import { labelOf, PLAYERS, type Purpose, type StoreKind } from "./player.ts";

/** What each player did, round by round. */
export interface Contest {
  part: string;
  what: string;
  unit: "jobs/s" | "targets/s" | "ms" | "%" | "MB";
  results: { player: string; rounds: number[] }[];
}

export interface Sizes {
  rounds: number;
  jobs: number;
  /** Jobs for each process that run before the clock starts: workers live for hours, and new code runs at half the speed. */
  warmJobs: number;
  processes: readonly number[];
  pings: number;
  targets: number;
  idleMs: number;
}

const HERE = import.meta.dirname;
const WARM_PINGS = 50;

/**
 * Holdfast and its peers in one run, in alternating rounds, each on an empty database. Every drain checks that each job ran
 * once, every pipeline that each step did.
 */
export class PeersSuite {
  readonly #sizes: Sizes;
  readonly #folder: string;
  readonly #postgres: PostgresServer;
  readonly #redis: Redis | null;
  #places = 0;

  static async open(sizes: Sizes): Promise<PeersSuite> {
    if (!existsSync(join(HERE, "node_modules")))
      execFileSync("npm", ["install", "--prefix", HERE, "--no-package-lock", "--no-audit", "--no-fund"], { stdio: "inherit" });
    const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
    // Below the project, so that it finds the PostgreSQL driver.
    const built = join(ROOT, "node_modules/.holdfast-bench");
    await bundle({ folder: built, minify: true });
    process.env["HOLDFAST_BUILT"] = join(built, "index.js");
    return new PeersSuite(sizes, folder, await startServer({ durable: true }), await Redis.start(folder));
  }

  private constructor(sizes: Sizes, folder: string, server: PostgresServer, redis: Redis | null) {
    this.#sizes = sizes;
    this.#folder = folder;
    this.#postgres = server;
    this.#redis = redis;
  }

  readonly parts: Record<string, () => Promise<Contest[]>> = {
    drain: () => this.#drains(),
    "pick-up": () => this.#pickUps(),
    pipelines: () => this.#pipelines(),
    idle: () => this.#idle(),
  };

  async #drains(): Promise<Contest[]> {
    const contests: Contest[] = [];
    for (const processes of this.#sizes.processes) {
      const what = `drain of no-op jobs, ${processes} worker ${processes === 1 ? "process" : "processes"}`;
      contests.push(await this.#rounds("drain", what, "jobs/s", "jobs", (index) => this.#drain(index, processes)));
    }
    return contests;
  }

  async #drain(index: number, processes: number): Promise<number[]> {
    const warm = processes * this.#sizes.warmJobs;
    const jobs = warm + this.#sizes.jobs;
    return this.#at(index, "throughput", processes, async (players, place) => {
      const [first] = players as [PlayerProcess];
      await first.tell("fill", jobs);
      if (place.startsWith("postgres")) await this.#postgres.query("vacuum analyze", place);
      await this.#postgres.query("checkpoint");
      let ran = 0;
      let start = { ran: 0, at: Number.NaN };
      const all = Promise.withResolvers<void>();
      const onRan = (count: number) => {
        ran += count;
        if (ran >= warm && start.ran === 0) start = { ran, at: performance.now() };
        if (ran >= jobs) all.resolve();
      };
      for (const player of players) player.onRan = onRan;
      await Promise.all(players.map((player) => player.tell("work", null)));
      await Promise.race([all.promise, ...players.map(({ died }) => died)]);
      while ((await first.tell("left", null)) > 0);
      const took = performance.now() - start.at;
      const numbers = (await Promise.all(players.map((player) => player.tell("ran", null)))).flat();
      if (numbers.length !== jobs || new Set(numbers).size !== jobs)
        throw new Error(`Of ${jobs} jobs ${new Set(numbers).size} ran, in ${numbers.length} runs.`);
      return [((jobs - start.ran) / took) * 1_000];
    });
  }

  async #pickUps(): Promise<Contest[]> {
    const times = await this.#rounds("pick-up", "", "ms", "jobs", (index) => this.#pickUp(index));
    return [0.5, 0.99].map((share) => ({
      part: "pick-up",
      what: `pick-up by a worker in another process, a job every 20–80 ms, p${share * 100}`,
      unit: "ms",
      results: times.results.map(({ player, rounds }) => ({ player, rounds: [quantile(rounds, share)] })),
    }));
  }

  async #pickUp(index: number): Promise<number[]> {
    return this.#at(index, "latency", 2, async ([producer, worker]) => {
      if (producer === undefined || worker === undefined) throw new Error("Two processes are needed.");
      await worker.tell("work", null);
      const times: number[] = [];
      const cadence = new Cadence();
      for (let i = -WARM_PINGS; i < this.#sizes.pings; i++) {
        await cadence.next();
        const started = worker.started(i);
        const acknowledged = await producer.tell("ping", i);
        const at = await Promise.race([started, worker.died]);
        if (i >= 0) times.push(Math.max(0, at - acknowledged));
      }
      return times;
    });
  }

  async #pipelines(): Promise<Contest[]> {
    const { targets } = this.#sizes;
    const what = `pipeline of three steps, ${targets.toLocaleString("en")} targets`;
    const measure = (index: number) =>
      this.#at(index, "throughput", 1, async ([player]) => {
        const { took, steps } = await (player as PlayerProcess).tell("pipeline", targets);
        if (steps !== 3 * targets) throw new Error(`${steps} steps ran, of ${3 * targets}.`);
        return [(targets / took) * 1_000];
      });
    return [await this.#rounds("pipelines", what, "targets/s", "pipelines", measure)];
  }

  async #idle(): Promise<Contest[]> {
    const cpu: Contest = { part: "idle", what: "idle worker, share of a core", unit: "%", results: [] };
    const memory: Contest = { part: "idle", what: "idle worker, resident memory", unit: "MB", results: [] };
    for (const [index, entry] of this.#players("jobs")) {
      const { cpu: share, rss } = await this.#at(index, "latency", 1, ([player]) =>
        (player as PlayerProcess).tell("idle", this.#sizes.idleMs),
      );
      cpu.results.push({ player: labelOf(entry), rounds: [share] });
      memory.results.push({ player: labelOf(entry), rounds: [rss] });
    }
    return [cpu, memory];
  }

  async #rounds(
    part: string,
    what: string,
    unit: Contest["unit"],
    does: "jobs" | "pipelines",
    measure: (index: number) => Promise<number[]>,
  ): Promise<Contest> {
    const players = this.#players(does);
    const results = players.map(([, entry]) => ({ player: labelOf(entry), rounds: [] as number[] }));
    for (let round = 0; round < this.#sizes.rounds; round++)
      for (const [i, [index]] of players.entries()) results[i]?.rounds.push(...(await measure(index)));
    return { part, what, unit, results };
  }

  #players(does: "jobs" | "pipelines") {
    const isInstalled = (store: StoreKind) => store !== "Redis" || this.#redis !== null;
    return [...PLAYERS.entries()].filter(([, entry]) => entry.does.includes(does) && isInstalled(entry.store));
  }

  async #at<T>(
    index: number,
    purpose: Purpose,
    processes: number,
    run: (players: PlayerProcess[], place: string) => Promise<T>,
  ): Promise<T> {
    const place = await this.#place((PLAYERS[index] as (typeof PLAYERS)[number]).store);
    const players: PlayerProcess[] = [];
    try {
      // One after the other: the first creates the tables.
      for (let i = 0; i < processes; i++) players.push(await PlayerProcess.start(index, place, purpose));
      const answer = await run(players, place);
      for (const player of players) await player.tell("close", null);
      return answer;
    } finally {
      for (const player of players) await player.end();
      if (place.startsWith("postgres")) await this.#postgres.dropDatabase(place);
    }
  }

  async #place(store: StoreKind): Promise<string> {
    this.#places++;
    if (store === "PostgreSQL") return this.#postgres.createDatabase();
    return store === "SQLite" ? join(this.#folder, `${this.#places}.db`) : `${this.#redis?.port} queue${this.#places}`;
  }

  async close(): Promise<void> {
    await this.#redis?.stop();
    await this.#postgres.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

class PlayerProcess {
  onRan: (count: number) => void = () => {};
  readonly died: Promise<never>;
  readonly #child: ChildProcess;
  readonly #answers: { resolve: (answer: unknown) => void; reject: (error: Error) => void }[] = [];
  readonly #started = new Map<number, (at: number) => void>();

  static async start(index: number, place: string, purpose: Purpose): Promise<PlayerProcess> {
    const player = new PlayerProcess(
      fork(join(HERE, "player-process.ts"), [String(index), place, purpose], { stdio: ["ignore", "ignore", "inherit", "ipc"] }),
    );
    await player.#answer();
    return player;
  }

  private constructor(child: ChildProcess) {
    this.#child = child;
    child.on("message", (message: Message) => this.#heard(message));
    this.died = once(child, "exit").then(([code]) => {
      const error = new Error(`The process ended with ${String(code)}.`);
      for (const { reject } of this.#answers.splice(0)) reject(error);
      throw error;
    });
    this.died.catch(() => {});
  }

  tell<K extends keyof Acts>(act: K, ask: Acts[K]["ask"]): Promise<Acts[K]["answer"]> {
    this.#child.send({ act, ask });
    return this.#answer() as Promise<Acts[K]["answer"]>;
  }

  /** Resolves with the time at which the job of this number starts. */
  started(i: number): Promise<number> {
    return new Promise((resolve) => this.#started.set(i, resolve));
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    if (this.#child.connected) this.#child.disconnect();
    await this.died.catch(() => {});
  }

  #answer(): Promise<unknown> {
    return new Promise((resolve, reject) => this.#answers.push({ resolve, reject }));
  }

  #heard(message: Message): void {
    if ("ran" in message) this.onRan(message.ran);
    else if ("started" in message) this.#started.get(message.started.i)?.(message.started.at);
    else if ("error" in message) this.#answers.shift()?.reject(new Error(message.error));
    else this.#answers.shift()?.resolve(message.answer);
  }
}

/** Writes each change to its log, and syncs that once a second, as its documentation advises. */
class Redis {
  readonly port: number;
  readonly #child: ChildProcess;

  static async start(folder: string): Promise<Redis | null> {
    const port = await freePort();
    const child = spawn("redis-server", ["--port", String(port), "--dir", folder, "--appendonly", "yes", "--save", ""], {
      stdio: ["ignore", "pipe", "ignore"],
    });
    const isReady = await new Promise<boolean>((resolve) => {
      child.once("error", () => resolve(false));
      child.once("exit", () => resolve(false));
      child.stdout.on("data", (text: Buffer) => void (text.includes("Ready to accept connections") && resolve(true)));
    });
    return isReady ? new Redis(port, child) : null;
  }

  private constructor(port: number, child: ChildProcess) {
    this.port = port;
    this.#child = child;
  }

  async stop(): Promise<void> {
    const ended = once(this.#child, "exit");
    this.#child.kill();
    await ended;
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}
