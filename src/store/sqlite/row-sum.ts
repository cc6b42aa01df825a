import { crc32 } from "node:zlib";
import type { JobKey } from "../../core/ids.ts";

/**
 * A job's sum holds three: of what never changes in its row; above that, of what it has answered; and above that, of the
 * numbers in it that change with every attempt. So many bits that JavaScript can still read it as a number.
 */
const MADE = 26;
const ANSWER = 21;
const HIGH = 2 ** MADE;
const HIGHER = 2 ** (MADE + ANSWER);
/** Of a total: no single bit of any number in it can flip without changing what is left. */
const ODD = 61;

const NUMBERS = [
  "attempt",
  "errors",
  "crashes",
  "fence",
  "holder",
  "lease",
  "expires_at",
  "run_at",
  "started_at",
  "finished_at",
] as const;
type NumberOf = (typeof NUMBERS)[number];
const NULLABLE: ReadonlySet<NumberOf> = new Set(["holder", "lease", "expires_at", "started_at", "finished_at"]);
/** What null counts as: not as a zero or a one, which SQLite spells in as few bits. */
export const NOTHING = 7;
/** What a job has of these before it is claimed. */
export const UNCLAIMED = NULLABLE.size * NOTHING;
/** Also of one that runs. */
const WAITING: ReadonlySet<NumberOf> = new Set(["holder"]);

/** What has to be said by every statement that changes one of a job's numbers: which it sets, and the total of what to. */
interface Changed {
  /** Columns that it sets; they count as `total` says. */
  sets: readonly NumberOf[];
  /** Columns that are null afterwards. */
  clears?: readonly NumberOf[];
  /** SQL for the total of what they are set to; default one parameter, given with `total`. */
  total?: string;
  /** It sets what the job has answered, too: a parameter before the other, of `answerSum`; null leaves it as it is. */
  answers?: boolean;
  /** The job has no answer any more. */
  unanswers?: boolean;
  /** It runs: then it has a lease, and has started. */
  running?: boolean;
}

export function summing(changed: Changed): string {
  const { sets, clears = [], total = "?", answers = false, unanswers = false, running = false } = changed;
  const kept = `sum & ${(answers || unanswers ? HIGH : HIGHER) - 1}`;
  const answer = answers ? ` | coalesce(?, sum & ${HIGHER - HIGH})` : "";
  const all = clears.length === 0 ? total : `${total} + ${clears.length * NOTHING}`;
  return `sum = (${kept})${answer} | (${booked(all, [...sets, ...clears], "", running ? WAITING : NULLABLE)})`;
}

/** Of the numbers of a job's row, as SQL. */
export const BOOK = booked("0", [], "job.");
/** After numbers were set by a statement of their own. */
export const REBOOKED = `sum = (sum & ${HIGHER - 1}) | (${booked("0", [])})`;

function booked(total: string, but: readonly NumberOf[], row = "", nullable = NULLABLE): string {
  const others = NUMBERS.filter((name) => !but.includes(name)).map((name) =>
    nullable.has(name) ? `coalesce(${row}${name}, ${NOTHING})` : row + name,
  );
  return `((${[total, ...others].join(" + ")}) % ${ODD} & 63) << ${MADE + ANSWER}`;
}

/** The same where their total is known. */
export function bookSum(total: number): number {
  return ((total % ODD) & 63) * HIGHER;
}

/**
 * A checksum of what never changes in a job's row, its key among it, so that neither a flipped bit nor a row in another's
 * place passes: SQLite's pages have none. Numbers are mixed here, and only texts cross into native code: half the cost.
 */
export function jobSum(
  key: JobKey,
  lane: number,
  priority: number,
  policy: number,
  createdAt: number,
  id: string | null,
  slot: string | null,
  input: string | null,
  scheduledFor: number | null,
  limits: string | null,
): number {
  let sum = mix(mix(mix(mix(mix(SEED, key), lane), priority), policy), createdAt);
  if (scheduledFor !== null) sum = mix(sum, scheduledFor);
  if (input !== null) sum = add(sum, input);
  if (id !== null) sum = add(mix(sum, ID), id);
  if (slot !== null) sum = add(mix(sum, SLOT), slot);
  if (limits !== null) sum = add(mix(sum, LIMITS), limits);
  return sum >>> (32 - MADE);
}

/** Of a job's output or error. */
export function answerSum(text: string | null): number | null {
  return text === null ? null : (add(0, text) >>> (32 - ANSWER)) * HIGH;
}

/** Whether what never changes in a job's row is what was written there. */
export function isWhole(stored: number | null, computed: number): boolean {
  return stored !== null && stored % HIGH === computed;
}

/** Of all that stands in one row of another table; which of them are null counts, too. */
export function rowSum(...values: readonly (string | number | null)[]): number {
  let sum = SEED;
  for (const [i, value] of values.entries()) if (value !== null) sum = crc32(String(value), mix(sum, i) >>> 0);
  return sum | 0;
}

export function isSame(stored: number | null, computed: number): boolean {
  return stored === computed;
}

const SEED = 0x1db3_4f05;
/** One text must not pass for another. */
const ID = 1;
const SLOT = 2;
const LIMITS = 3;

/** One bit makes a blob of a text: the same bytes, but nothing that anybody here has written. */
function add(sum: number, text: string): number {
  return typeof text === "string" ? crc32(text, sum >>> 0) : ~sum;
}

/** Both halves of a number, up to 2^53. */
function mix(sum: number, n: number): number {
  let mixed = Math.imul(sum ^ (n | 0), 0x85eb_ca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13) ^ ((n / 0x1_0000_0000) | 0), 0xc2b2_ae35);
  return mixed ^ (mixed >>> 16);
}
