import Database from "better-sqlite3";
import { payload } from "../scratch.ts";
import { peer, type Player, type Purpose } from "./player.ts";

interface Plainjob {
  better(database: unknown): unknown;
  defineQueue(options: object): {
    add(type: string, data: unknown): unknown;
    addMany(type: string, data: unknown[]): unknown;
    countJobs(filter: { status: number }): number;
    close(): void;
  };
  defineWorker(
    type: string,
    run: (job: { data: string }) => void,
    options: object,
  ): { start(): Promise<void>; stop(): Promise<void> };
}

const PENDING = 0;
const PROCESSING = 1;
const silent = { error() {}, warn() {}, info() {}, debug() {} };

/** It commits without a sync (`synchronous = normal`), which it sets itself. A worker of several makes a drain no faster. */
export async function open(path: string, purpose: Purpose): Promise<Player> {
  const { better, defineQueue, defineWorker } = await peer<Plainjob>("plainjob");
  const queue = defineQueue({ connection: better(new Database(path)), logger: silent });
  const workers: ReturnType<Plainjob["defineWorker"]>[] = [];
  return {
    fill: async (jobs) => {
      for (let from = 0; from < jobs; from += 1_000)
        queue.addMany(
          "noop",
          Array.from({ length: 1_000 }, (_, k) => payload(from + k)),
        );
    },
    enqueue: async (i) => queue.add("noop", payload(i)),
    work: async (onRun) => {
      const run = ({ data }: { data: string }): void => onRun((JSON.parse(data) as { i: number }).i);
      // One that is idle looks again after this time; without a wait it takes a whole core.
      const worker = defineWorker("noop", run, { queue, logger: silent, pollIntervall: purpose === "latency" ? 1 : 10 });
      workers.push(worker);
      void worker.start();
    },
    left: async () => queue.countJobs({ status: PENDING }) + queue.countJobs({ status: PROCESSING }),
    close: async () => {
      for (const worker of workers) await worker.stop();
      queue.close();
    },
  };
}
