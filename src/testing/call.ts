import { refuseUnknown, rejectSurplus } from "../core/text/options.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { fromJson, toJson } from "../core/text/json.ts";
import { parse } from "../core/jobs/run-options.ts";
import { addFollowUp, checkCommit } from "../engine/attempt.ts";
import { checkFraction } from "../engine/progress.ts";
import type { JobContext } from "../core/pipelines/stage.ts";
import { type Definition, definitionOf, type JobDef, newJob } from "../engine/definition.ts";
import { jobLog, quietLog } from "../engine/log.ts";
import type { NewJob } from "../store/store.ts";
import { checkHandle } from "./validate-recovery.ts";
import type { Job } from "../core/jobs/job.ts";
import type { Pipeline } from "../core/pipelines/pipeline.ts";
import type { Holdfast } from "../holdfast.ts";
import type { WorkerLoop } from "../engine/worker.ts";

let calls = 0;

const CONTEXT_PARTS = Object.keys({
  input: 0,
  id: 0,
  attempt: 0,
  scheduledFor: 0,
  idempotencyKey: 0,
  log: 0,
  signal: 0,
  checkpoint: 0,
  progress: 0,
  commit: 0,
  enqueue: 0,
} satisfies Record<keyof JobContext<unknown>, 0>);

/**
 * Runs one handler without a database. Input and output are validated and parsed as a database would store them. Rethrows what
 * the handler throws. `context` replaces parts of the handler's context, but not the input.
 *
 * ```ts
 * assert.equal(await call(greet, { name: "Anna" }), "hello Anna");
 * ```
 */
export async function call<In, Out>(
  def: JobDef<In, Out>,
  input: NoInfer<In>,
  context: Partial<JobContext<unknown>> = {},
): Promise<Out> {
  rejectSurplus(arguments, 3, "call");
  const definition = definitionOf(def);
  refuseUnknown(context, CONTEXT_PARTS, "The context of call()");
  const { run, name } = definition;
  if (run === undefined) {
    throw new HoldfastError("NO_HANDLER", `Job "${name}" has no handler.`, "Give `run` in job({ … }), or call def.handle(run).");
  }
  // Rejects what enqueue rejects; then parses the stored text as a worker does.
  const stored = fromJson((await newJob(definition, input)).input);
  const parsed = definition.input === undefined ? stored : await parse(definition.input, stored, `The input of job "${name}"`);
  const output = await run({ ...contextOf(definition, context), ...context, input: parsed });
  const checked =
    definition.output === undefined ? output : await parse(definition.output, output, `The output of job "${name}"`);
  return fromJson(toJson(checked, "The output")) as Out;
}

/** Everything but the input. Another `id` is in the key and in the log too. */
function contextOf({ name }: Definition, { id = `call-${++calls}`, attempt = 1 }: Partial<JobContext<unknown>>) {
  const followUps: NewJob[] = [];
  let saved: string | null = null;
  return {
    id,
    attempt,
    scheduledFor: null,
    idempotencyKey: `test:${id}`,
    log: jobLog(quietLog, { id, name, attempt }),
    signal: new AbortController().signal,
    checkpoint: {
      load: async () => fromJson(saved),
      save: async (value) => void (saved = toJson(value, "The checkpoint")),
    },
    progress: checkFraction,
    // There is no transaction here; a test that checks the callback passes its own `commit` in `context`.
    commit: (run) => void checkCommit(run),
    enqueue: (def, input, options) => addFollowUp(followUps, definitionOf(def), input, options, (index) => `${id}-${index + 1}`),
  } satisfies Omit<JobContext<unknown>, "input">;
}

/**
 * Runs due jobs with a real worker until none is left, including those that handlers enqueue. No time passes: delayed jobs and
 * retries wait for a later drain, after `clock.advance`. `ran` counts attempts; `failed` has the jobs that ended failed or
 * quarantined, in order. A pipeline's work runs if its build has an orchestrator.
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
