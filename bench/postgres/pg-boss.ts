import { Pool } from "pg";
import { PgBoss } from "pg-boss";
import type { Contender, Payload, Purpose } from "./contender.ts";

/**
 * What was tried, drained jobs a second on two cores, tables analysed: loops of `fetch` and `complete` of 500 jobs 32k with
 * four of them, 22k with one or two, the same with eight; 1,000 or 2,000 at once 29k; `work` with batches of 500 and
 * `burstWhenBatchFull` less; a partition of its own for the queue 24k.
 */
const LOOPS = 4;
const BATCH = 500;
/** Before an empty queue is asked again. */
const IDLE_MS = 10;

export async function open(url: string, purpose: Purpose): Promise<Contender> {
  const boss = new PgBoss({
    connectionString: url,
    max: 10,
    // Nothing but the jobs that are measured.
    supervise: false,
    schedule: false,
    useListenNotify: purpose === "latency",
  });
  boss.on("error", () => {});
  await boss.start();
  if ((await boss.getQueue("noop")) === null) await boss.createQueue("noop", { notify: purpose === "latency" });

  const pool = new Pool({ connectionString: url, max: 1 });
  const loops: Promise<void>[] = [];
  const state = { isClosed: false };
  const loop = async (onStart: (i: number) => void): Promise<void> => {
    while (!state.isClosed) {
      const held = await boss.fetch<Payload>("noop", { batchSize: BATCH });
      if (held.length === 0) {
        await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
        continue;
      }
      for (const { data } of held) onStart(data.i);
      await boss.complete(
        "noop",
        held.map(({ id }) => id),
      );
    }
  };

  return {
    // 1,000 one call after the other 39k a second, four at once 60k; 5,000 two or four at once 52k.
    bulk: { batch: 1_000, atOnce: 4 },
    enqueue: (job) => boss.send("noop", job),
    enqueueMany: (jobs) =>
      boss.insert(
        "noop",
        jobs.map((data) => ({ data })),
      ),
    drain: async (jobs) => {
      let done = 0;
      const drain = async (): Promise<void> => {
        for (;;) {
          const held = await boss.fetch("noop", { batchSize: BATCH });
          if (held.length === 0) return;
          await boss.complete(
            "noop",
            held.map(({ id }) => id),
          );
          done += held.length;
        }
      };
      await Promise.all(Array.from({ length: LOOPS }, drain));
      if (done !== jobs) throw new Error(`${done} jobs were completed, of ${jobs}.`);
    },
    listen: async (onStart) => {
      if (purpose === "throughput") return void loops.push(...Array.from({ length: LOOPS }, () => loop(onStart)));
      await boss.work<Payload>("noop", async (jobs) => {
        for (const { data } of jobs) onStart(data.i);
      });
    },
    left: async () => {
      const { rows } = await pool.query("select count(*) as n from pgboss.job where state < 'completed'");
      return Number(rows[0].n);
    },
    close: async () => {
      state.isClosed = true;
      await Promise.all(loops);
      await pool.end();
      await boss.stop();
    },
  };
}
