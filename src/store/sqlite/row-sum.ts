import { crc32 } from "node:zlib";
import type { JobKey } from "../../core/ids.ts";

/** A job's sum holds two: of what never changes in its row, and above these bits, of what it has answered. */
const BITS = 27;
const HIGH = 2 ** BITS;

/** What sets the upper one, for a text that may be null: then it stays as it is. It needs one parameter. */
export const ANSWERED = `sum = coalesce((sum & ${HIGH - 1}) | ?, sum)`;

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
  return sum >>> (32 - BITS);
}

/** Of a job's output or error, for `ANSWERED`. */
export function answerSum(text: string | null): number | null {
  return text === null ? null : (add(0, text) >>> 6) * HIGH;
}

/** Whether a job's row is what was written there; one that is older than checksums has none. */
export function isWhole(stored: number | null, computed: number): boolean {
  return stored === null || stored % HIGH === computed;
}

/** The same of what it has answered. */
export function isAnswer(stored: number | null, text: string | null): boolean {
  return stored === null || text === null || stored - (stored % HIGH) === answerSum(text);
}

/** Of all that stands in one row of another table; which of them are null counts, too. */
export function rowSum(...values: readonly (string | number | null)[]): number {
  let sum = SEED;
  for (const [i, value] of values.entries()) if (value !== null) sum = crc32(String(value), mix(sum, i) >>> 0);
  return sum | 0;
}

export function isSame(stored: number | null, computed: number): boolean {
  return stored === null || stored === computed;
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
