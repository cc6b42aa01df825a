import { checkCount, describeValue, invalidOption, refuseUnknown } from "../text/options.ts";
import { HoldfastError } from "../text/errors.ts";

export interface Rate {
  starts: number;
  per: number;
}

export interface LimitRule {
  of: "queue" | "job";
  position: number;
  keyed: boolean;
  concurrency: number | null;
  rate: Rate | null;
}

export interface Usage {
  running: number;
  /** Wall time in milliseconds, with fractions, until which the rate is used up. A time in the past means unused. */
  bucket: number;
}

/** Jobs of one key that are ready per lane at most, so that a million jobs of one key do not slow the claims of others. */
export const MAX_READY_JOBS = 100;

const UNIT_MS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

export function parseRate(text: unknown, what: string): Rate {
  const match = typeof text === "string" ? /^(\d+(?:\.\d+)?)\/(s|m|h|d)$/.exec(text) : null;
  const number = match === null ? Number.NaN : Number(match[1]);
  if (match === null || !(number > 0) || number > 1e9) {
    throw new HoldfastError(
      "RATE_INVALID",
      `${what} must look like "10/s" or "50/m", got ${describeValue(text)}.`,
      'Give a number and a period: "10/s", "50/m", "1000/h", "5/d".',
    );
  }
  const unit = UNIT_MS[match[2] as keyof typeof UNIT_MS];
  const starts = Math.max(1, Math.floor(number));
  return { starts, per: Math.round((unit * starts) / number) };
}

export function countFree(rule: LimitRule, usage: Usage, now: number): number {
  const slots = rule.concurrency === null ? Number.MAX_SAFE_INTEGER : Math.max(0, rule.concurrency - usage.running);
  return rule.rate === null ? slots : Math.min(slots, freeTokens(rule.rate, usage.bucket, now));
}

export function readyWindow(room: number): number {
  return Math.min(MAX_READY_JOBS, room);
}

export function canJoin(passed: number, window: number): boolean {
  return passed < window + MAX_READY_JOBS;
}

export function countStart(rule: LimitRule, usage: Usage, now: number): void {
  usage.running += 1;
  if (rule.rate !== null) usage.bucket = clampBucket(rule.rate, usage.bucket, now) + msPerStart(rule.rate);
}

export function countEnd(rule: LimitRule, usage: Usage, began: boolean): void {
  usage.running -= 1;
  if (rule.rate !== null && !began) usage.bucket -= msPerStart(rule.rate);
}

/** Returns when the rate has a token for one more than the ready jobs, or null if something else holds the job. */
export function opensAt(rule: LimitRule, usage: Usage, now: number, ready = 0): number | null {
  if (rule.rate === null || freeTokens(rule.rate, usage.bucket, now) > ready) return null;
  const { starts } = rule.rate;
  if (ready >= Math.min(starts, MAX_READY_JOBS) || (rule.concurrency !== null && usage.running + ready >= rule.concurrency))
    return null;
  return Math.ceil(clampBucket(rule.rate, usage.bucket, now) - refillMs(rule.rate) + (ready + 1) * msPerStart(rule.rate));
}

/** Caps a bucket, which must not be fuller than full after the clock was set back. */
export function capBucket(rule: LimitRule, bucket: number, now: number): number {
  return rule.rate === null ? Math.min(bucket, now) : Math.min(bucket, now + refillMs(rule.rate));
}

export function refillMs(rate: Rate): number {
  return rate.starts * msPerStart(rate);
}

export function freeTokens(rate: Rate, bucket: number, now: number): number {
  return Math.floor((now + refillMs(rate) - clampBucket(rate, bucket, now)) / msPerStart(rate));
}

function clampBucket(rate: Rate, bucket: number, now: number): number {
  return Math.min(Math.max(bucket, now), now + refillMs(rate));
}

/** Counts in 1,024ths, which doubles hold exactly. Rounds down so that starts return in time, and up if that raised the rate. */
function msPerStart({ starts, per }: Rate): number {
  const exact = (per * 1_024) / starts;
  return (exact < 1_024 ? Math.ceil(exact) : Math.floor(exact)) / 1_024;
}

/** A limit over all workers. */
export interface Limit<In = unknown> {
  /** Key of an input: each key is limited by itself. Default: one limit for all. */
  key?: (input: In) => string;
  /** How many run at once. */
  concurrency?: number;
  /** How many start per second, minute, hour or day, such as "50/m". */
  rate?: `${number}/${"s" | "m" | "h" | "d"}`;
}

export interface CheckedLimit {
  rule: LimitRule;
  key: ((input: unknown) => string) | undefined;
}

export function checkLimits(given: unknown, of: LimitRule["of"], where: string): CheckedLimit[] {
  return toArray(given).map((one, i) => {
    const path = Array.isArray(given) ? `limit[${i}]` : "limit";
    return checkLimit(one, of, i, (option?: string) => `\`${path}${option ?? ""}\` of ${where}`);
  });
}

function checkLimit(
  given: unknown,
  of: LimitRule["of"],
  position: number,
  nameOf: (option?: ".key" | ".concurrency" | ".rate") => string,
): CheckedLimit {
  refuseUnknown(given, ["key", "concurrency", "rate"], nameOf());
  const { key, concurrency, rate } = given as Limit;
  if (key !== undefined && typeof key !== "function") {
    throw invalidOption(
      `${nameOf(".key")} must be a function, got ${describeValue(key)}.`,
      "Give a function that takes the input and returns a string, or leave it out.",
    );
  }
  if (concurrency === undefined && rate === undefined) {
    throw invalidOption(`${nameOf()} has neither \`concurrency\` nor \`rate\`.`, "Give `concurrency`, `rate`, or both.");
  }
  const rule: LimitRule = {
    of,
    position,
    keyed: key !== undefined,
    concurrency: concurrency === undefined ? null : checkCount(concurrency, nameOf(".concurrency"), 1),
    rate: rate === undefined ? null : parseRate(rate, nameOf(".rate")),
  };
  return { rule, key };
}

function toArray(given: unknown): unknown[] {
  if (given === undefined) return [];
  return Array.isArray(given) ? given : [given];
}
