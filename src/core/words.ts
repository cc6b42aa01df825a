/** `1 job`, `2 jobs`, `12,000 jobs`. */
export function plural(count: number, one: string, many = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function number(value: number): string {
  // Most are small, and the first that is not costs a short command ten milliseconds.
  return Number.isInteger(value) && Math.abs(value) < 1_000 ? String(value) : value.toLocaleString("en-US");
}

/** `812 bytes`, `1.4 MB`. */
export function bytes(value: number): string {
  if (value < 1_000) return plural(value, "byte");
  const units = ["kB", "MB", "GB", "TB"];
  const power = Math.min(units.length, Math.floor(Math.log10(value) / 3));
  const amount = value / 1_000 ** power;
  return `${amount < 10 ? amount.toFixed(1) : Math.round(amount)} ${units[power - 1]}`;
}
