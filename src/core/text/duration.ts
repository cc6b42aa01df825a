import { HoldfastError } from "./errors.ts";
import { describeValue } from "./options.ts";

/** Milliseconds, or a number with its unit: `"500ms"`, `"30s"`, `"10m"`, `"2h"`, `"7d"`. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;

const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

export function toMillis(duration: Duration, what: string): number {
  const millis = typeof duration === "number" ? duration : parse(duration);
  if (!Number.isFinite(millis) || millis < 0 || millis > Number.MAX_SAFE_INTEGER / 4) {
    throw new HoldfastError(
      "DURATION_INVALID",
      `${what} must be a duration, got ${describeValue(duration)}.`,
      // Options of commands are strings, in which milliseconds need their unit, too.
      typeof duration === "string"
        ? 'Give a number with its unit: "500ms", "30s", "10m", "2h", "7d".'
        : 'Give milliseconds from 0 on, or a number with its unit: "500ms", "30s", "10m", "2h", "7d".',
    );
  }
  return Math.round(millis);
}

/** Formats a duration in the largest unit, with at most one decimal: `1.5s`, `12m`, `3h`. */
export function durationText(millis: number): string {
  for (const unit of ["d", "h", "m", "s"] as const) {
    if (millis >= UNIT_MS[unit]) return `${Number((millis / UNIT_MS[unit]).toFixed(1))}${unit}`;
  }
  return `${Math.round(millis)}ms`;
}

function parse(text: unknown): number {
  const match = typeof text === "string" ? /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text) : null;
  if (!match) return Number.NaN;
  return Number(match[1]) * UNIT_MS[match[2] as keyof typeof UNIT_MS];
}

const STEPS = [
  [86_400_000, "d", 2],
  [3_600_000, "h", 1],
  [60_000, "m", 1],
  [1_000, "s", 1],
] as const;

export function ageText(millis: number): string {
  for (const [unit, letter, least] of STEPS) if (millis >= unit * least) return `${Math.floor(millis / unit)}${letter}`;
  return "0s";
}

/** Formats the time until an instant, to the nearest unit: 1h59m is `2h`. */
export function untilText(millis: number): string {
  const unit = STEPS.find(([size, , least]) => millis >= size * least)?.[0] ?? 1_000;
  return ageText(millis + unit / 2);
}

export function instantText(at: number, now: number): string {
  return `${clockText(at)} (${at > now ? `in ${untilText(at - now)}` : `${ageText(now - at)} ago`})`;
}

export function clockText(at: number): string {
  const date = new Date(at);
  const day = `${date.getFullYear()}-${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())}`;
  return `${day} ${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}:${twoDigits(date.getSeconds())}`;
}

function twoDigits(value: number): string {
  return String(value).padStart(2, "0");
}

/** Time as the engine reads it. With a test's own clock, no real time passes anywhere. */
export interface Clock {
  now(): number;
  /** Milliseconds that never jump; only differences have a meaning. */
  monotonic(): number;
  /** Calls back once after `millis`; the returned function cancels. The timer does not keep the process alive. */
  after(millis: number, call: () => void): () => void;
  /** Tells a fake clock that a server's answer is pending. The clock does not advance until then. */
  during?(work: Promise<unknown>): void;
}
