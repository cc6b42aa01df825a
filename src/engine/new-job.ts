import { toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toJson } from "../core/text/json.ts";
import { describeValue, invalidOption, refuseUnknown } from "../core/text/options.ts";
import { parse } from "../core/jobs/run-options.ts";
import { checkStorable } from "../core/text/text.ts";
import type { NewJob } from "../store/store.ts";
import type { EnqueueOptions } from "./context.ts";
import { type Definition, limitKeys } from "./definition.ts";

const NO_OPTIONS: EnqueueOptions = {};
const KNOWN: readonly (keyof EnqueueOptions)[] = ["id", "key", "priority", "delay", "runAt", "after"];

/**
 * Checks everything there is to check, before anything is written. The value as given is stored, so a schema that
 * transforms runs again at the claim. A promise only where the schema is asynchronous.
 */
export function newJob(def: Definition, input: unknown, options: EnqueueOptions = NO_OPTIONS): NewJob | Promise<NewJob> {
  const job = draft(def, input, options);
  if (def.input === undefined) return limited(def, job, input);
  const parsed = parse(def.input, input, `The input of job "${def.name}"`);
  return parsed instanceof Promise ? parsed.then((late) => limited(def, job, late)) : limited(def, job, parsed);
}

/** Limits see what the handler will see. */
function limited(def: Definition, job: NewJob, parsed: unknown): NewJob {
  if (def.declared.empty) return job;
  job.declares = def.declared.declaration;
  job.limitKeys = limitKeys(def.declared, parsed, def.name);
  return job;
}

function draft(def: Definition, input: unknown, options: EnqueueOptions): NewJob {
  const job: NewJob = {
    name: def.name,
    queue: def.queue,
    version: def.version,
    policy: def.policy,
    input: toJson(input, "The input"),
    priority: 0,
    delay: 0,
  };
  if (options === NO_OPTIONS) return job;
  refuseUnknown(options, KNOWN, "enqueue");
  if (options.priority !== undefined) job.priority = checkPriority(options.priority);
  if (options.id !== undefined) job.id = checkText(options.id, "id");
  if (options.key !== undefined) job.key = checkText(options.key, "key");
  if (options.delay !== undefined) job.delay = toMillis(options.delay, "delay");
  if (options.runAt !== undefined) job.runAt = checkInstant(options.runAt);
  if (options.after !== undefined) job.after = checkAfter(options.after);
  if (options.delay !== undefined && options.runAt !== undefined) {
    throw new HoldfastError("OPTION_INVALID", "Both delay and runAt were given.", "Give one of them.");
  }
  return job;
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
  // Half a surrogate pair would come back from the disk as another text, and two such ids as one.
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

function checkInstant(at: Date | number): number {
  const millis = at instanceof Date ? at.getTime() : at;
  if (Number.isFinite(millis) && Math.abs(millis) < 8.64e15) return Math.round(millis);
  throw invalidOption(`runAt must be a time, got ${describeValue(at)}.`, "Give a Date or milliseconds since 1970.");
}
