import { HoldfastError } from "./errors.ts";
import { describeValue } from "./options.ts";

/** Milliseconds, or a number with its unit: `"500ms"`, `"30s"`, `"10m"`, `"2h"`, `"7d"`. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** Whole milliseconds; `what` names the option in the error. */
export function toMillis(duration: Duration, what: string): number {
  const millis = typeof duration === "number" ? duration : parse(duration);
  if (!Number.isFinite(millis) || millis < 0 || millis > Number.MAX_SAFE_INTEGER / 4) {
    throw new HoldfastError(
      "DURATION_INVALID",
      `${what} must be a duration, got ${describeValue(duration)}.`,
      'Give milliseconds, or a number with its unit: "500ms", "30s", "10m", "2h", "7d".',
    );
  }
  return Math.round(millis);
}

/** The longest unit that says it without a remainder worth mentioning: `1.5s`, `12m`, `3h`. */
export function sayMillis(millis: number): string {
  for (const unit of ["d", "h", "m", "s"] as const) {
    if (millis >= UNITS[unit]) return `${Number((millis / UNITS[unit]).toFixed(1))}${unit}`;
  }
  return `${Math.round(millis)}ms`;
}

function parse(text: unknown): number {
  const match = typeof text === "string" ? /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text) : null;
  if (!match) return Number.NaN;
  return Number(match[1]) * UNITS[match[2] as keyof typeof UNITS];
}
