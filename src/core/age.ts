const STEPS = [
  [86_400_000, "d", 2],
  [3_600_000, "h", 1],
  [60_000, "m", 1],
  [1_000, "s", 1],
] as const;

/** `12s`, `3m`, `7h`, `2d`: one unit, rounded down. */
export function age(millis: number): string {
  for (const [unit, letter, least] of STEPS) if (millis >= unit * least) return `${Math.floor(millis / unit)}${letter}`;
  return "0s";
}

/** How long until then, to the nearest unit: what is due in 1h59m is due in `2h`. */
export function ahead(millis: number): string {
  const unit = STEPS.find(([size, , least]) => millis >= size * least)?.[0] ?? 1_000;
  return age(millis + unit / 2);
}

/** `2026-03-01 14:05:09 (3m ago)`, in local time. */
export function instant(at: number, now: number): string {
  return `${clock(at)} (${at > now ? `in ${ahead(at - now)}` : `${age(now - at)} ago`})`;
}

/** `2026-03-01 14:05:09`, in local time. */
export function clock(at: number): string {
  const date = new Date(at);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}
