import { checkInstant, checkOneOf, describeValue, invalidOption, refuseUnknown } from "../text/options.ts";
import { checkStorable } from "../text/text.ts";
import { type Job, JOB_STATES, type JobState } from "./job.ts";

/** Selects the jobs that match all of its parts. */
export interface JobFilter {
  queue?: string;
  name?: string;
  state?: JobState | JobState[];
  key?: string;
  tag?: string;
  /** Substring of the last error's name, code or message, in any case. */
  error?: string;
  /** JSON paths of the input and their values: `{ "user.id": 7, "items.0.sku": "a-1" }`. */
  input?: Record<string, string | number | boolean | null>;
  /** Created at this time or later. */
  createdAfter?: Date | number;
  createdBefore?: Date | number;
  finishedAfter?: Date | number;
  finishedBefore?: Date | number;
}

export interface JobSelection extends Omit<
  JobFilter,
  "state" | "createdAfter" | "createdBefore" | "finishedAfter" | "finishedBefore"
> {
  state?: JobState | readonly JobState[];
  createdAfter?: number;
  createdBefore?: number;
  finishedAfter?: number;
  finishedBefore?: number;
}

const TEXTS = ["queue", "name", "key", "tag", "error"] as const;
const TIMES = ["createdAfter", "createdBefore", "finishedAfter", "finishedBefore"] as const;
export const FILTER_OPTIONS: readonly (keyof JobFilter)[] = [...TEXTS, ...TIMES, "state", "input"];

export function checkJobFilter(filter: JobFilter, what: string): JobSelection {
  refuseUnknown(filter, FILTER_OPTIONS, what);
  const selection: JobSelection = {};
  for (const name of TEXTS) {
    const text: unknown = filter[name];
    if (text === undefined) continue;
    if (typeof text !== "string")
      throw invalidOption(`\`${name}\` must be a string, got ${describeValue(text)}.`, "Give a string.");
    selection[name] = checkStorable(text, `The ${name}`);
  }
  for (const name of TIMES) {
    const time = filter[name];
    if (time !== undefined) selection[name] = checkInstant(time, name);
  }
  const { state, input } = filter;
  if (state !== undefined) {
    for (const one of Array.isArray(state) ? state : [state]) checkOneOf(one, JOB_STATES, "state");
    selection.state = state;
  }
  if (input !== undefined) selection.input = checkInput(input);
  return selection;
}

function checkInput(input: unknown): NonNullable<JobFilter["input"]> {
  const isObject = typeof input === "object" && input !== null && !Array.isArray(input);
  const values = isObject ? Object.values(input) : [];
  if (isObject && values.every(isScalar)) return input as NonNullable<JobFilter["input"]>;
  const wrong: unknown = isObject ? values.find((value) => !isScalar(value)) : input;
  throw invalidOption(
    `\`input\` must be an object of paths with strings, numbers, booleans or null, got ${describeValue(wrong)}.`,
    'Give paths and values, e.g. { "user.id": 7 }.',
  );
}

function isScalar(value: unknown): boolean {
  return value === null || typeof value === "string" || typeof value === "boolean" || Number.isFinite(value);
}

/** Whether a job that was read matches. The store narrows the search by `textsOf`, which lets some jobs through that do not. */
export function matchesTexts({ tag, error, input = {} }: JobSelection, job: Job): boolean {
  if (tag !== undefined && !(job.tags ?? []).includes(tag)) return false;
  if (error !== undefined && !hasError(job, error.toLowerCase())) return false;
  return Object.entries(input).every(([path, value]) => hasValue(job.input, path, value));
}

function hasError({ error }: Job, text: string): boolean {
  if (error === undefined) return false;
  return [error.name, error.code, error.message].some((part) => part?.toLowerCase().includes(text));
}

/** Tries each way to split the path, because a property's name may contain dots. */
function hasValue(value: unknown, path: string, expected: unknown): boolean {
  if (typeof value !== "object" || value === null) return false;
  if (Object.hasOwn(value, path) && (value as Record<string, unknown>)[path] === expected) return true;
  for (let dot = path.indexOf("."); dot !== -1; dot = path.indexOf(".", dot + 1)) {
    const name = path.slice(0, dot);
    if (!Object.hasOwn(value, name)) continue;
    if (hasValue((value as Record<string, unknown>)[name], path.slice(dot + 1), expected)) return true;
  }
  return false;
}

/** Returns texts that the stored JSON of every matching job contains. Those of `error` are in lower case. */
export function textsOf({ tag, error, input = {} }: JobSelection): { meta: string[]; error: string[]; input: string[] } {
  return {
    meta: tag === undefined ? [] : [JSON.stringify(tag)],
    error: error === undefined ? [] : [longestPlainRun(error).toLowerCase()],
    input: Object.entries(input).map(([path, value]) => {
      const name = path.slice(path.lastIndexOf(".") + 1);
      // An item of an array has no name. A name's part behind its last dot is enough. Zero may be stored as `-0`.
      const before = /^\d+$/.test(name) ? "" : `${JSON.stringify(name).slice(1)}:`;
      return before + (value === 0 ? "" : JSON.stringify(value));
    }),
  };
}

/** Returns the longest run without characters that JSON escapes, or whose lower case differs between databases. */
function longestPlainRun(text: string): string {
  return (text.match(/[ !#-[\]-~]+/g) ?? [""]).reduce((longest, run) => (run.length > longest.length ? run : longest));
}

/** Parses `user.id=7` into a path and a value: a JSON number, boolean, null or string, or else the text itself. */
export function parseInputPair(text: string): [path: string, value: string | number | boolean | null] | null {
  const at = text.indexOf("=");
  if (at < 1) return null;
  const given = text.slice(at + 1);
  return [text.slice(0, at), parseScalar(given)];
}

function parseScalar(text: string): string | number | boolean | null {
  try {
    const value: unknown = JSON.parse(text);
    return isScalar(value) ? (value as string | number | boolean | null) : text;
  } catch {
    return text;
  }
}
