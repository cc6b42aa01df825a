import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type PostgresServer, startServer } from "../../test/postgres/server.ts";
import { Cadence } from "../cadence.ts";
import { quantile } from "../measure.ts";
import { type Name, NAMES, type Purpose } from "./contender.ts";
import { Pair } from "./pair.ts";
import { Stage } from "./stage.ts";

/** What each of them did, round by round, or in all of them together. */
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
/**
 * So many pings come first, of which none is counted: in each round, and before all of them, without a pause. Until what
 * they run is compiled, threads that compile it keep the server from a processor for milliseconds, in every contender's turn.
 */
const WARM = 20;
const WARMING = 1_000;

/**
 * All of them on one server, in the same run, with `synchronous_commit` and `fsync` on. They take turns, round by round,
 * each time with an empty database and everything older on the disk, so that none pays for another.
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

  /**
   * A worker in another process, with nothing to do, gets one job at a time. All of them are there at once and are asked in
   * turn, ping by ping: what the disk or a neighbour does for a while happens to each. Of all pings together, since of the
   * few of one round the slowest are chance.
   */
  async #latency(): Promise<Contest[]> {
    const players = this.#stages.filter(({ name }) => name !== "raw SQL").map((producer) => new Pair(producer, this.#compiled));
    const cadence = new Cadence();
    try {
      for (let round = 0; round < this.#sizes.rounds; round++) {
        for (const pair of players) await pair.open(await this.#server.createDatabase());
        if (round === 0) for (const pair of players) for (let i = -WARMING; i < 0; i++) await pair.ping(i);
        await this.#server.query("checkpoint");
        for (let i = -WARM; i < this.#sizes.pings; i++) {
          for (const k of players.keys()) {
            await cadence.next();
            // The order changes, so that none always follows the same one.
            await (players[(k + i + WARM) % players.length] as Pair).ping(i);
          }
        }
        for (const pair of players) await this.#server.dropDatabase(await pair.close());
      }
    } finally {
      for (const { worker } of players) await worker.end();
    }
    return (["call", "answer"] as const).flatMap((since) =>
      [0.5, 0.99].map((share): Contest => {
        const results = Object.fromEntries(players.map(({ name, times }) => [name, [quantile(times[since], share)]]));
        return { what: `pick-up from the ${since}, p${share * 100}`, unit: "ms", results };
      }),
    );
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
