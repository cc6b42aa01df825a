import { type Duration, toMillis } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import type { Policy } from "../core/retry.ts";
import type { StandardSchema } from "../core/schema.ts";
import type { JobContext } from "./context.ts";
import { type Declared, declared, type Limit, type QueueOptions } from "./declaration.ts";

/** What jobs say about how they run. */
export interface RunOptions<In = unknown> {
  /** A worker claims only versions that its own definitions have. Default 1. */
  version?: number;
  /** `attempts` counts all of them, the first too. Default: 3, exponential from 1 s, at most 10 min. */
  retry?: { attempts?: number; backoff?: "exponential" | "fixed"; delay?: Duration; maxDelay?: Duration };
  /** How many times it may take its worker down before it is quarantined. Default 3. */
  crashes?: number;
  /** How long a claim holds without being renewed. Default 30 s. */
  lease?: Duration;
  /** How long one attempt may take; there is no "none". Default 1 h. */
  timeout?: Duration;
  /** At once in one worker process. */
  concurrency?: number;
  /** Over all workers: how many at once, how many starts in how long, for each key by itself. */
  limit?: Limit<In> | Limit<In>[];
}

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

export type Run<Parsed, Out> = (context: JobContext<Parsed>) => Out | Promise<Out>;

/** A kind of job. What producers need is the definition; the handler may be given elsewhere. */
export interface JobDef<In = unknown, Out = unknown, Parsed = unknown> {
  readonly name: string;
  readonly queue: string;
  readonly types?: { input: In; output: Out };
  /** The same job with its handler: producers need not import it. */
  handle(run: Run<Parsed, Out>): JobDef<In, Out, Parsed>;
}

/** The definition as the engine reads it. */
export interface Definition extends JobDef {
  readonly version: number;
  readonly policy: Policy;
  readonly lease: number;
  readonly concurrency: number | undefined;
  readonly input: StandardSchema | undefined;
  readonly output: StandardSchema | undefined;
  readonly run: Run<unknown, unknown> | undefined;
  readonly declared: Declared;
}

const JOB_OPTIONS = "name queue version retry crashes lease timeout concurrency limit onInterrupt input output run".split(" ");

/** Renewed after a third of it, by a keeper that may be asleep for a tenth of a second. In milliseconds. */
const SHORTEST_LEASE = 300;

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
  const name = checkName(options.name, "A job's name");
  const where = `job "${name}"`;
  const queue = options.queue === undefined ? name : checkName(queueName(options.queue), `The queue of ${where}`);
  const definition: Definition = {
    name,
    queue,
    declared: declared(name, options.queue ?? queue, options.limit, where),
    version: checkCount(options.version ?? 1, `The version of ${where}`, 0),
    policy: policyOf(options, where),
    lease: checkAtLeast(toMillis(options.lease ?? "30s", `The lease of ${where}`), SHORTEST_LEASE, `The lease of ${where}`),
    concurrency:
      options.concurrency === undefined ? undefined : checkCount(options.concurrency, `The concurrency of ${where}`, 1),
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

export function checkName(name: unknown, what: string): string {
  // A line break would end the name inside the store's name-and-key text.
  // oxlint-disable-next-line no-control-regex
  if (typeof name === "string" && name.length > 0 && name.length <= 200 && name.isWellFormed() && !/[\u0000-\u001f]/.test(name))
    return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} is ${JSON.stringify(name) ?? String(name)}.`,
    "Give a text of 1 to 200 characters without control characters.",
  );
}

/** An option that is passed over in silence is a promise broken in silence. */
export function refuseUnknown(options: unknown, known: readonly string[], what: string): void {
  if (typeof options !== "object" || options === null) {
    throw new HoldfastError(
      "OPTION_INVALID",
      `The options of ${what} are ${String(options)}.`,
      "Give an object, or leave them out.",
    );
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    throw new HoldfastError("OPTION_INVALID", `${what} knows no option "${name}".`, `Give some of ${known.join(", ")}.`);
  }
}

export function checkCount(value: number, what: string, least: number): number {
  if (Number.isSafeInteger(value) && value >= least) return value;
  throw new HoldfastError("NUMBER_INVALID", `${what} is ${String(value)}.`, `Give a whole number of at least ${least}.`);
}

function policyOf(options: JobOptions, where: string): Policy {
  const retry = options.retry ?? {};
  return {
    attempts: checkCount(retry.attempts ?? 3, `retry.attempts of ${where}`, 1),
    backoff: checkOneOf(retry.backoff ?? "exponential", ["exponential", "fixed"], `retry.backoff of ${where}`),
    delay: toMillis(retry.delay ?? "1s", `retry.delay of ${where}`),
    maxDelay: toMillis(retry.maxDelay ?? "10m", `retry.maxDelay of ${where}`),
    crashes: checkCount(options.crashes ?? 3, `crashes of ${where}`, 1),
    onInterrupt: checkOneOf(options.onInterrupt ?? "resume", ["retry", "fail", "resume"], `onInterrupt of ${where}`),
    timeout: checkAtLeast(toMillis(options.timeout ?? "1h", `The timeout of ${where}`), 1, `The timeout of ${where}`),
  };
}

function checkRun(run: unknown, where: string): Run<unknown, unknown> | undefined {
  if (run === undefined || typeof run === "function") return run as Run<unknown, unknown> | undefined;
  throw new HoldfastError("OPTION_INVALID", `The handler of ${where} is no function.`, "Give `run` a function, or leave it out.");
}

function queueName(queue: NonNullable<JobOptions["queue"]>): unknown {
  return typeof queue === "string" ? queue : queue?.name;
}

function checkAtLeast(millis: number, least: number, what: string): number {
  if (millis >= least) return millis;
  throw new HoldfastError("DURATION_INVALID", `${what} is ${millis} ms.`, `Give at least ${least} ms.`);
}

export function checkOneOf<T extends string>(value: T, allowed: readonly T[], what: string): T {
  if (allowed.includes(value)) return value;
  throw new HoldfastError(
    "OPTION_INVALID",
    `${what} is ${JSON.stringify(value)}.`,
    `Give one of ${allowed.map((one) => `"${one}"`).join(", ")}.`,
  );
}

function checkSchema(schema: StandardSchema | undefined, what: string): StandardSchema | undefined {
  if (schema === undefined || typeof schema["~standard"]?.validate === "function") return schema;
  throw new HoldfastError(
    "OPTION_INVALID",
    `${what} is no Standard Schema.`,
    "Give a schema of zod, valibot, arktype or another (standardschema.dev).",
  );
}
