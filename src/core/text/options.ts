import { HoldfastError } from "./errors.ts";
import { isAsyncFunction } from "./text.ts";

export function checkName(name: unknown, what: string): string {
  // A line break would end the name inside the store's name-and-key text.
  // oxlint-disable-next-line no-control-regex
  if (typeof name === "string" && name.length > 0 && name.length <= 200 && name.isWellFormed() && !/[\u0000-\u001f]/.test(name))
    return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} must be a string of 1 to 200 characters, got ${describeValue(name)}.`,
    "Give a string of 1 to 200 characters without control characters.",
  );
}

/** Rejects unknown options, because a misspelled option would be ignored silently. */
export function refuseUnknown(options: unknown, known: readonly string[], what: string): void {
  // A Date or a Map has no keys, and would pass for an object without options.
  if (Object.prototype.toString.call(options) !== "[object Object]") {
    throw invalidOption(
      `${what} must be an object, got ${describeValue(options)}.`,
      `Give an object. Options: ${known.join(", ")}.`,
    );
  }
  for (const name of Object.keys(options as object)) {
    if (known.includes(name)) continue;
    throw invalidOption(
      `${what} has no option "${name}".`,
      `${counterpartOf(name, what) ?? didYouMean(name, known)}Options: ${known.join(", ")}.`,
    );
  }
}

const BULLMQ_OPTIONS: Readonly<Record<string, string>> = {
  attempts: "`retry: { attempts }` of job()",
  backoff: "`retry: { backoff, delay }` of job()",
  jobId: "`id` of hf.enqueue",
  repeat: "hf.schedule(job, { cron, input })",
  pattern: "`cron` of hf.schedule",
  limiter: '`limit: { rate: "10/s" }` of job()',
  removeOnComplete: "`queue: { name, keep: { succeeded: { age, count } } }` of job()",
  removeOnFail: "`queue: { name, keep: { failed: { age, count } } }` of job()",
  lifo: "`priority` of hf.enqueue: higher runs first",
};

function counterpartOf(name: string, what: string): string | null {
  if (/^`limit\b/.test(what) && (name === "max" || name === "duration"))
    return 'BullMQ\'s `max` and `duration` are `rate` here: { max: 10, duration: 1000 } is { rate: "10/s" }. ';
  const isAboutJobs = /\b(job|enqueue|schedule|work)\b/.test(what);
  return isAboutJobs && Object.hasOwn(BULLMQ_OPTIONS, name) ? `BullMQ's \`${name}\` is ${BULLMQ_OPTIONS[name]} here. ` : null;
}

export function checkCount(value: unknown, what: string, least: number, most = Number.MAX_SAFE_INTEGER): number {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= least && value <= most) return value;
  const range = most === Number.MAX_SAFE_INTEGER ? `≥ ${least}` : `from ${least} to ${most}`;
  throw new HoldfastError(
    "NUMBER_INVALID",
    `${what} must be a whole number ${range}, got ${describeValue(value)}.`,
    `Give a whole number ${range}.`,
  );
}

export function checkAtLeast(millis: number, least: number, what: string): number {
  if (millis >= least) return millis;
  throw new HoldfastError(
    "DURATION_INVALID",
    `${what} must be at least ${least} ms, got ${millis} ms.`,
    `Give at least ${least} ms.`,
  );
}

export function checkOneOf<T extends string>(value: T, allowed: readonly T[], what: string): T {
  if (allowed.includes(value)) return value;
  const choices = allowed.map((one) => `"${one}"`).join(", ");
  throw invalidOption(
    `${what} must be one of ${choices}, got ${describeValue(value)}.`,
    `${didYouMean(value, allowed)}Give one of ${choices}.`,
  );
}

export function didYouMean(given: unknown, known: readonly string[]): string {
  if (typeof given !== "string") return "";
  const nearest = new Nearest(given, 1);
  for (const one of known) nearest.offer(one);
  const [meant] = nearest.found;
  return meant === undefined ? "" : `Did you mean "${meant}"? `;
}

export function checkBoolean(value: unknown, what: string): boolean {
  if (typeof value === "boolean") return value;
  throw invalidOption(`${what} must be true or false, got ${describeValue(value)}.`, "Give true or false.");
}

export function checkFunction<F>(value: F, what: string): F {
  if (typeof value === "function") return value;
  throw invalidOption(`${what} must be a function, got ${describeValue(value)}.`, "Give a function.");
}

export function checkText(value: unknown, what: string): string {
  if (typeof value === "string" && value !== "") return value;
  throw invalidOption(
    `${what} must be a non-empty string, got ${describeValue(value)}.`,
    "Give a string with at least one character.",
  );
}

export function checkInstant(at: Date | number, what: string): number {
  const millis = at instanceof Date ? at.getTime() : at;
  if (Number.isFinite(millis) && Math.abs(millis) < 8.64e15) return Math.round(millis);
  throw invalidOption(`${what} must be a time, got ${describeValue(at)}.`, "Give a Date or milliseconds since 1970.");
}

export function checkSignal(value: unknown, what: string): AbortSignal {
  if (value instanceof AbortSignal) return value;
  throw invalidOption(`${what} must be an AbortSignal, got ${describeValue(value)}.`, "Give the `signal` of an AbortController.");
}

export function invalidOption(message: string, hint: string): HoldfastError {
  return new HoldfastError("OPTION_INVALID", message, hint);
}

const MAX_DESCRIPTION_LENGTH = 100;

/** Describes any value for an error message. It never throws. */
export function describeValue(value: unknown): string {
  switch (typeof value) {
    case "string":
      return value.length > MAX_DESCRIPTION_LENGTH ? `a string of ${value.length} characters` : JSON.stringify(value);
    case "bigint":
      return `the bigint ${value}n`;
    case "function":
      return "a function";
    case "object":
      if (value === null) return "null";
      return Array.isArray(value) ? "an array" : "an object";
    default:
      return String(value);
  }
}

export class Nearest {
  readonly #text: string;
  readonly #folded: string;
  readonly #most: number;
  #best: { text: string; distance: number }[] = [];

  constructor(text: string, most = 3) {
    this.#text = text;
    this.#folded = text.toLowerCase();
    this.#most = most;
  }

  get found(): string[] {
    return this.#best.map(({ text }) => text);
  }

  offer(text: string): void {
    const worst = this.#best.length < this.#most ? Number.POSITIVE_INFINITY : (this.#best.at(-1)?.distance as number);
    const distance = this.#distance(text, Math.min(worst - 1, Math.max(2, Math.floor(this.#text.length / 3))));
    if (distance === null || distance >= worst) return;
    this.#best.push({ text, distance });
    this.#best.sort((a, b) => a.distance - b.distance);
    this.#best.splice(this.#most);
  }

  #distance(text: string, limit: number): number | null {
    const folded = text.toLowerCase();
    if (folded === this.#folded) return 0;
    if (folded.endsWith(`/${this.#folded}`) || this.#folded.endsWith(`/${folded}`)) return 0.5;
    return editDistance(this.#folded, folded, limit);
  }
}

function editDistance(one: string, other: string, limit: number): number | null {
  if (limit < 1 || Math.abs(one.length - other.length) > limit) return null;
  let [from, end, otherEnd] = [0, one.length, other.length];
  while (from < end && from < otherEnd && one[from] === other[from]) from++;
  while (end > from && otherEnd > from && one[end - 1] === other[otherEnd - 1]) [end, otherEnd] = [end - 1, otherEnd - 1];
  const [a, b] = [one.slice(from, end), other.slice(from, otherEnd)];
  let above = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const changed = (above[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      row.push(Math.min(changed, (above[j] as number) + 1, (row[j - 1] as number) + 1));
    }
    if (Math.min(...row) > limit) return null;
    above = row;
  }
  const distance = above[b.length] as number;
  return distance <= limit ? distance : null;
}

/** Leaves out undefined properties, because optional properties must be absent. */
export function definedOnly<T extends object>(entries: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const defined = Object.entries(entries).filter(([, value]) => value !== undefined);
  return Object.fromEntries(defined) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

type MethodName<T> = { [K in keyof T]: T[K] extends (...args: never[]) => unknown ? K : never }[keyof T] & string;

type ArgumentCounts<T> = {
  [K in MethodName<T>]: T[K] extends (...args: infer A) => unknown ? Required<A>["length"] : never;
};

/** Makes methods reject surplus arguments. Each calls `before` first; an async generator calls it when it is read. */
export function limitArguments<T extends object>(
  methods: T,
  where: string,
  counts: ArgumentCounts<T>,
  before: (self: T) => void = () => {},
): T {
  for (const [name, count] of Object.entries(counts) as [string, number][]) {
    const method = (methods as Record<string, (...args: unknown[]) => unknown>)[name] as (...args: unknown[]) => unknown;
    const isGenerator = method.constructor.name === "AsyncGeneratorFunction";
    const limited = isAsyncFunction(method)
      ? async function (this: T, ...args: unknown[]) {
          rejectSurplus(args, count, `${where}.${name}`);
          before(this);
          return method.apply(this, args);
        }
      : function (this: T, ...args: unknown[]) {
          rejectSurplus(args, count, `${where}.${name}`);
          if (!isGenerator) before(this);
          return method.apply(this, args);
        };
    Object.defineProperty(methods, name, { ...Object.getOwnPropertyDescriptor(methods, name), value: limited });
  }
  return methods;
}

export function rejectSurplus(args: ArrayLike<unknown>, count: number, call: string): void {
  if (args.length <= count || args[count] === undefined) return;
  const takes = count === 0 ? "no arguments" : count === 1 ? "1 argument" : `${count} arguments`;
  throw invalidOption(`${call} takes ${takes}, but argument ${count + 1} is ${describeArgument(args[count])}.`, "Leave it out.");
}

function describeArgument(value: unknown): string {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  const keys = isObject ? Object.keys(value).slice(0, 5) : [];
  return keys.length === 0 ? describeValue(value) : `{ ${keys.join(", ")} }`;
}
