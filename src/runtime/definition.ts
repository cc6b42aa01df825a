import type { JobContext, JobDef, Run } from "../core/context.ts";
import { HoldfastError } from "../core/errors.ts";
import { checkFunction, checkName, describeValue, refuseUnknown } from "../core/options.ts";
import { checkRunOptions, type RunOptions, type RunSettings } from "../core/run-options.ts";
import type { StandardSchema } from "../core/schema.ts";
import { refusePipelineName } from "../core/work.ts";
import type { Attempt } from "./attempt.ts";
import { type Declared, declared, type QueueOptions } from "./declaration.ts";

export type { JobDef, Run, RunOptions };

export interface JobOptions<In = unknown> extends RunOptions<In> {
  name: string;
  /** Default: the job's name. */
  queue?: string | QueueOptions;
  /**
   * What becomes of it when its worker goes away in the middle: "resume" (the default) runs it again with its last
   * checkpoint, "retry" runs it again from the start, "fail" fails it.
   */
  onInterrupt?: "retry" | "fail" | "resume";
}

/** The definition as the engine reads it. */
export interface Definition extends JobDef, RunSettings {
  readonly input: StandardSchema | undefined;
  readonly output: StandardSchema | undefined;
  readonly run: Run<unknown, unknown> | undefined;
  readonly declared: Declared;
  /** Instead of `run`: the engine's own, which also says what belongs to the attempt's end. */
  readonly perform?: (attempt: Attempt, context: JobContext<unknown>) => Promise<void>;
  /** It is claimed from its queue only. */
  readonly bound?: boolean;
  /** What there is of it is for others, for now: it is not claimed. */
  readonly isResting?: () => boolean;
}

const JOB_OPTIONS = "name queue version retry crashes lease timeout concurrency limit onInterrupt input output run".split(" ");

/**
 * Defines a kind of job.
 *
 * ```ts
 * const resize = job({ name: "resize", input: z.object({ url: z.url() }), run: async ({ input, signal }) => fetch(input.url, { signal }) });
 * ```
 */
export function job<In, Parsed, Out = unknown>(
  options: JobOptions<Parsed> & { input: StandardSchema<In, Parsed>; output?: StandardSchema<Out>; run?: Run<Parsed, Out> },
): JobDef<In, Out, Parsed>;
export function job<In = unknown, Out = unknown>(options: JobOptions<In> & { run: Run<In, Out> }): JobDef<In, Out, In>;
export function job(
  options: JobOptions & { input?: StandardSchema; output?: StandardSchema; run?: Run<never, unknown> },
): JobDef<never, unknown, never> {
  refuseUnknown(options, JOB_OPTIONS, "job");
  const name = refusePipelineName(checkName(options.name, "A job's name"), "A job's name");
  const where = `job "${name}"`;
  const queue = options.queue === undefined ? name : checkQueue(queueName(options.queue), where);
  const definition: Definition = {
    name,
    queue,
    declared: declared(name, options.queue ?? queue, options.limit, where),
    ...checkRunOptions(options, where),
    input: checkSchema(options.input, `The input of ${where}`),
    output: checkSchema(options.output, `The output of ${where}`),
    run: checkRun(options.run, where),
    handle: (run) => ({ ...definition, run: checkRun(run, where) }),
  };
  return definition as unknown as JobDef<never, unknown, never>;
}

/** The engine's view of what a user passed. */
export function definitionOf(def: unknown): Definition {
  const candidate = def as Partial<Definition> | null;
  if (
    typeof candidate !== "object" ||
    candidate === null ||
    typeof candidate.policy !== "object" ||
    typeof candidate.name !== "string"
  ) {
    throw new HoldfastError("NOT_A_JOB", "This is not a job definition.", "Make one with job({ name, run }).");
  }
  return candidate as Definition;
}

function checkQueue(name: unknown, where: string): string {
  const what = `The queue of ${where}`;
  return refusePipelineName(checkName(name, what), what);
}

function checkRun(run: unknown, where: string): Run<unknown, unknown> | undefined {
  return run === undefined ? undefined : checkFunction(run as Run<unknown, unknown>, `\`run\` of ${where}`);
}

function queueName(queue: NonNullable<JobOptions["queue"]>): unknown {
  return typeof queue === "string" ? queue : queue?.name;
}

function checkSchema(schema: StandardSchema | undefined, what: string): StandardSchema | undefined {
  if (schema === undefined || typeof schema?.["~standard"]?.validate === "function") return schema;
  throw new HoldfastError(
    "OPTION_INVALID",
    `${what} must be a Standard Schema, got ${describeValue(schema)}.`,
    "Give a schema of zod, valibot, arktype or another (standardschema.dev).",
  );
}
