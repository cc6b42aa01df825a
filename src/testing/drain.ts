import { checkHandle } from "./validate-recovery.ts";
import { rejectSurplus } from "../core/text/arguments.ts";
import type { Job } from "../core/jobs/job.ts";
import type { Pipeline } from "../core/pipelines/pipeline.ts";
import type { JobDef } from "../engine/definition.ts";
import type { Holdfast } from "../holdfast.ts";
import type { WorkerLoop } from "../engine/worker.ts";

/**
 * Runs what is due with a real worker until nothing is, also what handlers enqueue meanwhile. No time is made to pass:
 * delayed jobs and retries stay for a later drain, after `clock.advance`. `ran` counts attempts; `failed` are the jobs
 * that ended failed or quarantined, in that order. A pipeline's work runs if its build has an orchestrator.
 *
 * ```ts
 * await hf.enqueue(invoice, { order: 7 });
 * assert.deepEqual(await drain(hf, [invoice, mail]), { ran: 2, failed: [] });
 * ```
 */
export async function drain(hf: Holdfast, defs: (JobDef | Pipeline)[]): Promise<{ ran: number; failed: Job[] }> {
  rejectSurplus(arguments, 2, "drain");
  checkHandle(hf, "drain");
  // A due tick counts as a due job.
  await hf.engine.scheduler.check();
  const worker = hf.work(defs) as WorkerLoop;
  try {
    const { ran, unsuccessful } = await worker.untilDrained();
    const ids = new Set(unsuccessful.map(({ claimed }) => claimed.id));
    const jobs = await Promise.all([...ids].map((id) => hf.jobs.get(id)));
    return {
      ran,
      failed: jobs.filter((job) => job !== null).filter(({ state }) => state === "failed" || state === "quarantined"),
    };
  } finally {
    await worker.stop();
  }
}
