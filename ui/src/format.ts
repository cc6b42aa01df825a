const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const ABSOLUTE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });

export function count(n: number): string {
  return WHOLE.format(n);
}

/** `1.2K`, for an axis. */
export function compact(n: number): string {
  return COMPACT.format(n);
}

/** `12,345`, but `12.3M`: for a narrow place. */
export function short(n: number): string {
  return n < 100_000 ? count(n) : compact(n);
}

/** `1 job`, `2,000 jobs`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

const UNITS: [ms: number, unit: string][] = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

/** One or two units: `3 h 12 min`, `4.2 s`, `18 ms`. */
export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  const i = UNITS.findIndex(([size]) => ms >= size);
  const [size, unit] = UNITS[i] as [number, string];
  const [smaller, smallUnit] = UNITS[i + 1] ?? [0, ""];
  const whole = Math.floor(ms / size);
  const rest = smaller === 0 ? 0 : Math.floor((ms - whole * size) / smaller);
  return rest === 0 || whole >= 10 ? `${whole} ${unit}` : `${whole} ${unit} ${rest} ${smallUnit}`;
}

/** `12 s ago`, `in 3 min`. */
export function relative(at: number, now: number): string {
  const ms = now - at;
  if (Math.abs(ms) < 1_500) return "now";
  const whole = Math.abs(ms) < 10_000 ? `${Math.round(Math.abs(ms) / 1_000)} s` : duration(Math.abs(ms));
  return ms > 0 ? `${whole} ago` : `in ${whole}`;
}

export function absolute(at: number): string {
  return ABSOLUTE.format(at);
}

export function bytes(n: number): string {
  if (n < 1_000) return `${n} B`;
  const units = ["kB", "MB", "GB", "TB"];
  const i = Math.min(units.length - 1, Math.floor(Math.log10(n) / 3) - 1);
  const value = n / 1_000 ** (i + 1);
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[i]}`;
}

export interface Money {
  usd?: number;
  tokens?: number;
}

export function usd(n: number): string {
  const small = n !== 0 && Math.abs(n) < 0.1;
  return `$${small ? n.toFixed(4).replace(/0{1,2}$/, "") : n.toFixed(2)}`;
}

/** `$1.20, 3,000 tokens`; nothing spent is `$0.00`. */
export function cost({ usd: dollars, tokens }: Money): string {
  const parts = [
    ...(dollars === undefined || (dollars === 0 && (tokens ?? 0) > 0) ? [] : [usd(dollars)]),
    ...(tokens === undefined || tokens === 0 ? [] : [plural(tokens, "token")]),
  ];
  return parts.length === 0 ? usd(0) : parts.join(", ");
}

/** A word of a POSIX shell. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** The last words of a command, such as ids. The `--` keeps one that begins with a dash from being taken for an option. */
export function lastWords(...words: string[]): string {
  return [...(words.some((word) => word.startsWith("-")) ? ["--"] : []), ...words.map(quoted)].join(" ");
}

export function json(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "";
}

/** JSON whose numbers mean the same to JavaScript. Throws a sentence for people. */
export function parseExact(text: string): unknown {
  try {
    return JSON.parse(text, refuseChanged as (key: string, value: unknown) => unknown);
  } catch (error) {
    throw error instanceof RangeError ? error : new Error(`This is not JSON: ${(error as Error).message}`, { cause: error });
  }
}

function refuseChanged(_: string, value: unknown, { source = "" }: { source?: string } = {}): unknown {
  if (typeof value === "number" && /^-?\d+$/.test(source) && String(value) !== source)
    throw new RangeError(`${source} would become ${String(value)}. Write it as a text.`);
  return value;
}
