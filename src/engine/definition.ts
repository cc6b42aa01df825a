import type { Keep, QueueSettings } from "../core/jobs/claiming.ts";
import { MAX_LOGS_KEPT } from "../core/jobs/attempts.ts";
import { FINISHED_STATES, type FinishedState, isFinished, JOB_STATES, type JobState, toJobError } from "../core/jobs/job.ts";
import { checkRunOptions, parse, type RunOptions, type RunSettings, type StandardSchema } from "../core/jobs/run-options.ts";
import { checkLimits, type Limit } from "../core/limits/limit.ts";
import type { EnqueueOptions, JobContext, JobDef, Run } from "../core/pipelines/stage.ts";
import { checkOwnName } from "../core/pipelines/work.ts";
import { type Duration, toMillis } from "../core/text/duration.ts";
import {
  checkBoolean,
  checkCount,
  checkFunction,
  checkInstant,
  checkOneOf,
  describeValue,
  invalidOption,
  refuseUnknown,
  rejectSurplus,
} from "../core/text/options.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toJson } from "../core/text/json.ts";
import { checkStorable } from "../core/text/text.ts";
import type { Claimed, Declaration, NewJob } from "../store/store.ts";
import type { Attempt } from "./attempt.ts";

export type { JobDef, Run, RunOptions };

export interface JobOptions<In = unknown> extends RunOptions<In> {
  /** Name of the job, by which workers find its handler. */
  name: string;
  /** Queue of the job, by name or with its settings. Default: the job's name. */
  queue?: string | QueueOptions;
  /**
   * What happens when the worker dies during an attempt: "resume" runs the job again with its last checkpoint, "retry" without
   * it, "fail" fails the job. Default: "resume".
   */
  onInterrupt?: "retry" | "fail" | "resume";
}

export interface Definition extends JobDef, RunSettings {
  readonly input: StandardSchema | undefined;
  readonly output: StandardSchema | undefined;
  readonly run: Run<unknown, unknown> | undefined;
  readonly declared: DeclaredLimits;
  readonly perform?: (attempt: Attempt, context: JobContext<unknown>) => Promise<void>;
  /** Called for each claimed job before its attempt starts, which may be much later: reads for many jobs become one. */
  readonly prefetch?: (claimed: Claimed) => void;
  readonly isBoundToQueue?: boolean;
  /** True while this process leaves these jobs to other processes. */
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
  options: JobOptions & {
    /** Schema of the input, checked by `enqueue` and before each attempt. */
    input?: StandardSchema;
    /** Schema of the output, checked before the success is recorded. */
    output?: StandardSchema;
    /** Handler. Leave it out where jobs are only enqueued; `handle(run)` adds it. */
    run?: Run<never, unknown>;
  },
): JobDef<never, unknown, never> {
  if (typeof options === "string")
    throw invalidOption(`job takes an object, got ${describeValue(options)}.`, "Call job({ name, run }).");
  refuseUnknown(options, JOB_OPTIONS, "job");
  rejectSurplus(arguments, 1, "job");
  const name = checkOwnName(options.name, "A job's name");
  const where = `job "${name}"`;
  const queue =
    options.queue === undefined
      ? name
      : checkOwnName(typeof options.queue === "string" ? options.queue : options.queue?.name, `The queue of ${where}`);
  const definition: Definition = {
    name,
    queue,
    declared: declareQueue(name, options.queue ?? queue, options.limit, where),
    ...checkRunOptions(options, where),
    input: checkSchema(options.input, `The input of ${where}`),
    output: checkSchema(options.output, `The output of ${where}`),
    run: checkRun(options.run, where),
    handle(run) {
      rejectSurplus(arguments, 1, "handle");
      return { ...definition, run: checkRun(run, where) };
    },
  };
  return definition as unknown as JobDef<never, unknown, never>;
}

export function definitionOf(def: unknown, call?: string): Definition {
  const candidate = def as Partial<Definition> | null;
  if (
    typeof candidate !== "object" ||
    candidate === null ||
    typeof candidate.policy !== "object" ||
    typeof candidate.name !== "string"
  ) {
    const what = call === undefined ? "Expected" : `${call} needs`;
    throw new HoldfastError(
      "NOT_A_JOB",
      `${what} a job definition, got ${describeValue(def)}.`,
      // A user of a library that enqueues by name may pass the name.
      isVariableName(def)
        ? `Define it with const ${def} = job({ name: "${def}", run }), and pass ${def} instead of "${def}".`
        : "Create one with job({ name, run }).",
    );
  }
  return candidate as Definition;
}

function isVariableName(value: unknown): value is string {
  return typeof value === "string" && /^[A-Za-z_$][\w$]{0,99}$/.test(value);
}

function checkRun(run: unknown, where: string): Run<unknown, unknown> | undefined {
  return run === undefined ? undefined : checkFunction(run as Run<unknown, unknown>, `\`run\` of ${where}`);
}

function checkSchema(schema: StandardSchema | undefined, what: string): StandardSchema | undefined {
  if (schema === undefined || typeof schema?.["~standard"]?.validate === "function") return schema;
  throw invalidOption(
    `${what} must be a Standard Schema, got ${describeValue(schema)}.`,
    "Give a schema of zod, valibot, arktype or another (standardschema.dev).",
  );
}

export type { Limit };

/** A queue and the settings of all its jobs. The last process to declare them wins. */
export interface QueueOptions {
  /** Name of the queue. */
  name: string;
  /** Limits over all workers and all jobs of the queue. */
  limit?: Limit | Limit[];
  /** True: sinks and subscribers get the events of the queue's jobs. Default: false. */
  events?: boolean;
  /** How long and how many finished jobs are kept, by state. Default: all, for ever. */
  keep?: Partial<Record<JobState, Duration | { age?: Duration; count?: number }>>;
  /** How many attempts that did not succeed are kept of each job, for `jobs.attempts`. Default: 20. */
  attempts?: number;
  /** How many lines of the handler's `log` are stored with each attempt, the newest; at most 1,000. Default: 0. */
  logs?: number;
}

export interface DeclaredLimits {
  declaration: Declaration;
  logs?: number;
  isEmpty: boolean;
  keys: readonly (((input: unknown) => string) | undefined)[];
}

function declareQueue(name: string, queue: string | QueueOptions, limit: unknown, where: string): DeclaredLimits {
  const options = typeof queue === "string" ? undefined : queue;
  if (options !== undefined)
    refuseUnknown(options, ["name", "limit", "events", "keep", "attempts", "logs"], `The queue of ${where}`);
  const logs = checkCount(options?.logs ?? 0, `\`logs\` of the queue of ${where}`, 0, MAX_LOGS_KEPT);
  const hasSettings = options !== undefined && Object.keys(options).some((key) => key !== "name" && key !== "logs");
  const all = [...checkLimits(limit, "job", where), ...checkLimits(options?.limit, "queue", `the queue of ${where}`)];
  // Keyed limits first: a job that waits for its own key must not block others at a wide limit.
  const limits = [...all.filter(({ rule }) => rule.keyed), ...all.filter(({ rule }) => !rule.keyed)];
  const declaration: Declaration = { queue: options?.name ?? (queue as string), name, limits: limits.map(({ rule }) => rule) };
  if (hasSettings) declaration.settings = settingsOf(options, where);
  return { declaration, logs, isEmpty: limits.length === 0 && !hasSettings, keys: limits.map(({ key }) => key) };
}

export function limitKeys({ keys }: DeclaredLimits, input: unknown, name: string): string[] {
  return keys.map((key) => (key === undefined ? "" : checkKey(keyOf(key, input, name), name)));
}

function settingsOf(options: QueueOptions, where: string): QueueSettings {
  const { keep: given = {}, events = false } = options;
  const keep: QueueSettings["keep"] = {};
  const what = `\`keep\` of the queue of ${where}`;
  const unfinished = JOB_STATES.find((state) => !isFinished(state) && Object.hasOwn(given ?? {}, state));
  if (unfinished !== undefined) {
    throw invalidOption(
      `${what} names "${unfinished}", but only finished jobs are removed.`,
      `Give one or more of ${FINISHED_STATES.join(", ")}.`,
    );
  }
  refuseUnknown(given, FINISHED_STATES, what);
  for (const [state, one] of Object.entries(given)) keep[state as FinishedState] = checkKeep(one, state, where);
  const settings: QueueSettings = { events: checkBoolean(events, `\`events\` of the queue of ${where}`), keep };
  if (options.attempts !== undefined)
    settings.attempts = checkCount(options.attempts, `\`attempts\` of the queue of ${where}`, 0);
  return settings;
}

function checkKeep(given: NonNullable<QueueOptions["keep"]>[JobState], state: string, where: string): Keep {
  const what = `keep.${state} of the queue of ${where}`;
  if (typeof given !== "object") return { age: toMillis(given as Duration, what) };
  refuseUnknown(given, ["age", "count"], what);
  const keep: Keep = {};
  if (given.age !== undefined) keep.age = toMillis(given.age, what);
  if (given.count !== undefined) keep.count = checkCount(given.count, what, 0);
  return keep;
}

function keyOf(key: (input: unknown) => unknown, input: unknown, name: string): unknown {
  try {
    return key(input);
  } catch (cause) {
    throw new HoldfastError(
      "LIMIT_KEY_INVALID",
      `\`limit.key\` of job "${name}" threw for this input: ${toJobError(cause).message}`,
      "Make `key` return a string for every input of the job.",
      { cause },
    );
  }
}

function checkKey(key: unknown, name: string): string {
  if (typeof key === "string" && key.length <= 1_000 && key.isWellFormed())
    return checkStorable(key, `\`limit.key\` of job "${name}"`);
  // No caller awaits this promise, and an unhandled rejection would end the process.
  if (key instanceof Promise) key.catch(() => {});
  const got =
    typeof key === "string"
      ? `a string of ${key.length} characters that cannot be stored`
      : key instanceof Promise
        ? "a promise"
        : describeValue(key);
  throw new HoldfastError(
    "LIMIT_KEY_INVALID",
    `\`limit.key\` of job "${name}" must return a string, got ${got}.`,
    "Make `key` return a well-formed string of at most 1,000 characters, synchronously.",
  );
}

const NO_OPTIONS: EnqueueOptions = {};
const ENQUEUE_OPTIONS: readonly (keyof EnqueueOptions)[] = [
  "id",
  "key",
  "priority",
  "delay",
  "runAt",
  "after",
  "tags",
  "onDuplicate",
];

/** Makes a job of checked values. It stores the given input, so a schema that transforms runs again before each attempt. */
export function newJob(def: Definition, input: unknown, options: EnqueueOptions = NO_OPTIONS): NewJob | Promise<NewJob> {
  const job: NewJob = {
    name: def.name,
    queue: def.queue,
    version: def.version,
    policy: def.policy,
    input: toJson(input, "The input"),
    priority: 0,
    delay: 0,
  };
  if (options !== NO_OPTIONS) addOptions(job, options);
  if (def.input === undefined) return withLimits(def, job, input);
  const parsed = parse(def.input, input, `The input of job "${def.name}"`);
  return parsed instanceof Promise ? parsed.then((late) => withLimits(def, job, late)) : withLimits(def, job, parsed);
}

/** Adds limit keys, which are computed from the parsed input that the handler will get. */
function withLimits(def: Definition, job: NewJob, parsed: unknown): NewJob {
  if (def.declared.isEmpty) return job;
  job.declares = def.declared.declaration;
  job.limitKeys = limitKeys(def.declared, parsed, def.name);
  return job;
}

function addOptions(job: NewJob, options: EnqueueOptions): void {
  refuseUnknown(options, ENQUEUE_OPTIONS, "enqueue");
  if (options.priority !== undefined) job.priority = checkPriority(options.priority);
  if (options.id !== undefined) job.id = checkText(options.id, "id");
  if (options.key !== undefined) job.key = checkText(options.key, "key");
  if (options.delay !== undefined) job.delay = toMillis(options.delay, "delay");
  if (options.runAt !== undefined) job.runAt = checkInstant(options.runAt, "runAt");
  if (options.after !== undefined) job.after = checkAfter(options.after);
  if (options.tags !== undefined) job.tags = checkTags(options.tags);
  if (options.onDuplicate !== undefined) checkOneOf(options.onDuplicate, ["keep", "replace"], "onDuplicate");
  if (options.onDuplicate === "replace") job.replaces = checkReplacing(job);
  if (options.delay !== undefined && options.runAt !== undefined) {
    throw invalidOption("Both delay and runAt were given.", "Give one of them.");
  }
}

function checkPriority(priority: number): number {
  if (Number.isInteger(priority) && priority === (priority | 0)) return priority;
  throw new HoldfastError(
    "NUMBER_INVALID",
    `priority must be a whole number of at most 32 bits, got ${describeValue(priority)}.`,
    "Give a whole number of at most 32 bits; higher runs first, the default is 0.",
  );
}

function checkText(text: string, what: string): string {
  // Reject lone surrogates: the disk returns them as another text, so two such ids would become one.
  if (typeof text === "string" && text.length > 0 && text.length <= 1_000 && text.isWellFormed())
    return checkStorable(text, what);
  throw invalidOption(
    `${what} must be a string of 1 to 1,000 characters, got ${describeValue(text)}.`,
    "Give a well-formed string of 1 to 1,000 characters.",
  );
}

function checkAfter(after: unknown): string[] {
  if (Array.isArray(after)) return [...new Set(after.map((id: string) => checkText(id, "an id of `after`")))];
  throw invalidOption(
    `\`after\` must be an array of ids, got ${describeValue(after)}.`,
    "Give the ids that enqueue returned, in an array.",
  );
}

function checkReplacing({ key, id, after }: NewJob): true {
  if (key !== undefined && id === undefined && after === undefined) return true;
  const what = key === undefined ? "without `key`" : `with \`${id === undefined ? "after" : "id"}\``;
  throw invalidOption(`\`onDuplicate: "replace"\` was given ${what}.`, "Give `key`, and neither `id` nor `after`.");
}

const MAX_TAGS = 20;
const MAX_TAG_LENGTH = 200;

function isTag(tag: unknown): boolean {
  return typeof tag === "string" && tag !== "" && tag.length <= MAX_TAG_LENGTH && tag.isWellFormed();
}

function checkTags(tags: unknown): string[] {
  if (!Array.isArray(tags) || !tags.every(isTag)) {
    const wrong: unknown = Array.isArray(tags) ? tags.find((tag) => !isTag(tag)) : tags;
    throw invalidOption(
      `\`tags\` must be an array of strings of 1 to ${MAX_TAG_LENGTH} characters, got ${describeValue(wrong)}.`,
      'Give well-formed strings, e.g. ["urgent"].',
    );
  }
  const unique = [...new Set(tags.map((tag: string) => checkStorable(tag, "A tag")))];
  if (unique.length <= MAX_TAGS) return unique;
  throw invalidOption(`A job can have ${MAX_TAGS} tags, got ${unique.length}.`, `Give at most ${MAX_TAGS} tags.`);
}
