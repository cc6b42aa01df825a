import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type PostgresServer, startServer } from "../../test/postgres/server.ts";
import { quantile } from "../measure.ts";
import { type Name, NAMES, type Purpose } from "./contender.ts";
import { Stage } from "./stage.ts";

/** What each of them did, round by round. */
export interface Contest {
  what: string;
  /** Of rates more is better, of times less. */
  unit: "jobs/s" | "ms";
  results: Partial<Record<Name, number[]>>;
}

export interface Sizes {
  rounds: number;
  /** Enqueued one after the other. */
  singles: number;
  /** Enqueued by a hundred callers at once. */
  concurrent: number;
  /** Enqueued in bulk, then drained. */
  jobs: number;
  pings: number;
}

const CALLERS = 100;
/** For so long nothing happens before a ping: the worker sleeps again. */
const REST = 5;

/**
 * All of them on one server, in the same run, with `synchronous_commit` and `fsync` on. They take turns, round by round,
 * each time with an empty database and everything older on the disk, so that nobody pays for another.
 */
export class Contests {
  readonly #server: PostgresServer;
  readonly #sizes: Sizes;
  /** The others come as JavaScript; ours would be stripped of its types again by each thread. */
  readonly #compiled = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  readonly #stages = NAMES.map((name) => new Stage(name, this.#compiled));

  static async begin(sizes: Sizes): Promise<Contests> {
    const server = await startServer({ durable: true });
    for (const setting of ["synchronous_commit", "fsync", "full_page_writes"]) {
      const [row] = await server.query(`show ${setting}`);
      if (row?.[setting] !== "on")
        throw new Error(`${setting} is ${row?.[setting]} on this server, which makes figures worthless.`);
    }
    return new Contests(server, sizes);
  }

  private constructor(server: PostgresServer, sizes: Sizes) {
    this.#server = server;
    this.#sizes = sizes;
  }

  readonly parts: Record<string, () => Promise<Contest[]>> = {
    single: () => this.#enqueue("enqueue, one by one", this.#sizes.singles, 1),
    concurrent: () => this.#enqueue(`enqueue, ${CALLERS} callers at once`, this.#sizes.concurrent, CALLERS),
    throughput: () => this.#throughput(),
    latency: () => this.#latency(),
  };

  async #enqueue(what: string, jobs: number, atOnce: number): Promise<Contest[]> {
    const contest: Contest = { what, unit: "jobs/s", results: {} };
    await this.#rounds("throughput", async (stage) => {
      note(contest, stage, await stage.tell("enqueue", { jobs, atOnce }));
    });
    return [contest];
  }

  async #throughput(): Promise<Contest[]> {
    const { jobs } = this.#sizes;
    const bulk: Contest = { what: "enqueue, in bulk", unit: "jobs/s", results: {} };
    const drain: Contest = { what: "drain of no-op jobs", unit: "jobs/s", results: {} };
    await this.#rounds("throughput", async (stage, url) => {
      note(bulk, stage, await stage.tell("bulk", { jobs }));
      // As any database does by itself after a while: some are six times slower with statistics of the empty table.
      await this.#server.query("vacuum analyze", url);
      await this.#server.query("checkpoint");
      note(drain, stage, await stage.tell("drain", { jobs }));
    });
    return [bulk, drain];
  }

  /** A worker in another process, with nothing to do, gets one job at a time. */
  async #latency(): Promise<Contest[]> {
    const since = { call: "from the call", commit: "from its answer" };
    const contests = Object.values(since).flatMap((from): [Contest, Contest] => [
      { what: `pick-up ${from}, p50`, unit: "ms", results: {} },
      { what: `pick-up ${from}, p99`, unit: "ms", results: {} },
    ]);
    await this.#rounds("latency", async (stage, url) => {
      if (stage.name === "raw SQL") return;
      const worker = new Stage(stage.name, this.#compiled);
      try {
        await worker.tell("open", { url, purpose: "latency" });
        await worker.tell("listen", null);
        const times = await this.#pings(stage, worker);
        await worker.tell("close", null);
        const figures = [times.call, times.commit].flatMap((of) => [quantile(of, 0.5), quantile(of, 0.99)]);
        for (const [k, figure] of figures.entries()) note(contests[k] as Contest, stage, figure);
      } finally {
        await worker.end();
      }
    });
    return contests;
  }

  async #pings(producer: Stage, worker: Stage): Promise<{ call: number[]; commit: number[] }> {
    const times = { call: [] as number[], commit: [] as number[] };
    for (let i = -20; i < this.#sizes.pings; i++) {
      await pause(REST);
      const started = worker.started(i);
      const [{ called, acknowledged }, at] = await Promise.all([producer.tell("ping", { i }), started]);
      // The first few are for warming up.
      if (i < 0) continue;
      times.call.push(at - called);
      times.commit.push(Math.max(0, at - acknowledged));
    }
    return times;
  }

  async #rounds(purpose: Purpose, measure: (stage: Stage, url: string) => Promise<void>): Promise<void> {
    for (let round = 0; round < this.#sizes.rounds; round++) {
      for (const stage of this.#stages) {
        const url = await this.#server.createDatabase();
        await stage.tell("open", { url, purpose });
        await this.#server.query("checkpoint");
        await measure(stage, url);
        await stage.tell("close", null);
        await this.#server.dropDatabase(url);
      }
    }
  }

  /** On an empty database, which is gone afterwards. */
  readonly fresh = async <T>(run: (url: string) => Promise<T>): Promise<T> => {
    const url = await this.#server.createDatabase();
    try {
      return await run(url);
    } finally {
      await this.#server.dropDatabase(url);
    }
  };

  async close(): Promise<void> {
    for (const stage of this.#stages) await stage.end();
    rmSync(this.#compiled, { recursive: true, force: true });
    await this.#server.close();
  }
}

function note({ results }: Contest, { name }: Stage, figure: number): void {
  (results[name] ??= []).push(figure);
}
