import { payload } from "../scratch.ts";
import { peer, type Player } from "./player.ts";

type Job = { data: { i: number } };
interface BullMQ {
  Queue: new (
    name: string,
    options: object,
  ) => {
    add(name: string, data: unknown, options?: object): Promise<unknown>;
    addBulk(jobs: object[]): Promise<unknown>;
    getJobCounts(...states: string[]): Promise<Record<string, number>>;
    close(): Promise<void>;
  };
  Worker: new (
    name: string,
    run: (job: Job) => Promise<void>,
    options: object,
  ) => { waitUntilReady(): Promise<unknown>; close(): Promise<void>; on(event: "error", on: () => void): void };
}

/** `place`: the server's port, and the queue's name. Finished jobs are removed at once, which is the fastest. */
export async function open(place: string): Promise<Player> {
  const { Queue, Worker } = await peer<BullMQ>("bullmq");
  const [port, name] = place.split(" ") as [string, string];
  const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
  const removed = { removeOnComplete: true, removeOnFail: true };
  const queue = new Queue(name, { connection, defaultJobOptions: removed });
  const workers: InstanceType<BullMQ["Worker"]>[] = [];
  return {
    fill: async (jobs) => {
      for (let from = 0; from < jobs; from += 1_000)
        await queue.addBulk(Array.from({ length: 1_000 }, (_, k) => ({ name: "noop", data: payload(from + k), opts: removed })));
    },
    enqueue: (i) => queue.add("noop", payload(i)),
    work: async (onRun) => {
      // Of 1, 10, 50, 100 and 200 at once, 100 drained the most.
      const worker = new Worker(name, async ({ data }) => onRun(data.i), { connection, concurrency: 100 });
      worker.on("error", () => {});
      await worker.waitUntilReady();
      workers.push(worker);
    },
    left: async () => {
      const counts = await queue.getJobCounts("waiting", "active", "delayed", "prioritized");
      return Object.values(counts).reduce((sum, count) => sum + count, 0);
    },
    close: async () => {
      for (const worker of workers) await worker.close();
      await queue.close();
    },
  };
}
