import { Pool } from "pg";
import type { Runner } from "graphile-worker";
import type { Contender, Payload, Purpose } from "./contender.ts";

// Read when it is loaded: a line for each job that succeeds costs more than the job.
process.env["NO_LOG_SUCCESS"] = "1";
const { Logger, makeWorkerUtils, run } = await import("graphile-worker");

/**
 * What was tried, drained jobs a second on two cores, tables analysed: `localQueue` of 250 / 500 / 1,000 / 2,000 / 5,000 with
 * one runner 33 / 44 / 43 / 40 / 51k; two runners with 500 each 57k (median of five), with 5,000 each 62k, four with 500
 * 56k: one fetches while another runs. Completions one by one (`completeJobBatchDelay: -1`) 8k, batched (0 or 5) as above. Concurrency between 4 and 100 makes no difference.
 */
const RUNNERS = 2;
const LOCAL_QUEUE = 5_000;
const CONCURRENCY = 24;

export async function open(url: string, purpose: Purpose): Promise<Contender> {
  const logger = new Logger(() => () => {});
  const pool = poolOn(url);
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  await utils.migrate();
  const runners: Runner[] = [];

  const start = (task: (job: Payload) => void): Promise<Runner> =>
    run({
      pgPool: poolOn(url),
      noHandleSignals: true,
      taskList: { noop: async (job) => task(job as Payload) },
      preset: {
        worker: {
          logger,
          concurrentJobs: CONCURRENCY,
          // Both make a single job wait: for the next batch of completions, and to be fetched by the pool.
          ...(purpose === "latency" ? {} : { localQueue: { size: LOCAL_QUEUE }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }),
        },
      },
    });

  return {
    // 1,000 one call after the other 50k a second, on four connections 58k; 2,000 on four 70k; 5,000 on four 57k.
    bulk: { batch: 2_000, atOnce: 4 },
    enqueue: (job) => utils.addJob("noop", job),
    enqueueMany: (jobs) => utils.addJobs(jobs.map((payload) => ({ identifier: "noop", payload }))),
    drain: async (jobs) => {
      let ran = 0;
      const all = Promise.withResolvers<void>();
      const count = (): void => void (++ran === jobs && all.resolve());
      runners.push(...(await Promise.all(Array.from({ length: RUNNERS }, () => start(count)))));
      await all.promise;
      // Jobs that are done are deleted, in batches.
      const left = "select 1 from graphile_worker._private_jobs limit 1";
      while ((await pool.query(left)).rows.length > 0);
    },
    listen: async (onStart) => {
      const many = purpose === "latency" ? 1 : RUNNERS;
      runners.push(...(await Promise.all(Array.from({ length: many }, () => start(({ i }) => onStart(i))))));
    },
    // Jobs that are done are deleted.
    left: async () => Number((await pool.query("select count(*) as n from graphile_worker._private_jobs")).rows[0].n),
    close: async () => {
      for (const runner of runners) await runner.stop();
      await utils.release();
      await pool.end();
    },
  };
}

function poolOn(url: string): Pool {
  // It complains of pools that do not heed these.
  return new Pool({ connectionString: url, max: 10 })
    .on("error", () => {})
    .on("connect", (client) => client.on("error", () => {}));
}
