import { HoldfastError } from "./errors.ts";
import { describeValue, invalidOption } from "./options.ts";

const NUL = "\0";

/** Rejects U+0000 before anything is written: PostgreSQL cannot store it, and some of SQLite's functions end a text there. */
export function checkStorable(text: string, what: string): string {
  if (typeof text !== "string") throw invalidOption(`${what} must be a string, got ${describeValue(text)}.`, "Give a string.");
  if (!text.includes(NUL)) return text;
  throw new HoldfastError(
    "TEXT_INVALID",
    `${what} contains the character U+0000, which cannot be stored.`,
    "Remove the character U+0000.",
  );
}

/** Replaces what cannot be stored, for texts where losing a character is better than losing the text. */
export function toStorable(text: string): string {
  return text.toWellFormed().replaceAll(NUL, "\u{fffd}");
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${numberText(count)} ${count === 1 ? one : many}`;
}

export function firstOf(texts: readonly string[], shown = 5): string {
  const more = texts.length > shown ? ` and ${numberText(texts.length - shown)} more` : "";
  return texts.slice(0, shown).join(", ") + more;
}

export function numberText(value: number): string {
  // `toLocaleString` costs a short command ten milliseconds.
  return Number.isInteger(value) && Math.abs(value) < 1_000 ? String(value) : value.toLocaleString("en-US");
}

export function bytesText(value: number): string {
  if (value < 1_000) return plural(value, "byte");
  const units = ["kB", "MB", "GB", "TB"];
  const power = Math.min(units.length, Math.floor(Math.log10(value) / 3));
  const amount = value / 1_000 ** power;
  return `${amount < 10 ? amount.toFixed(1) : Math.round(amount)} ${units[power - 1]}`;
}

export function isThenable(value: unknown): value is PromiseLike<unknown> {
  if (value === null || (typeof value !== "object" && typeof value !== "function")) return false;
  return typeof (value as { then?: unknown }).then === "function";
}

/** Whether a call certainly returns a promise: an `async` function that no build step has rewritten. */
export function isAsyncFunction(run: unknown): boolean {
  return Object.prototype.toString.call(run) === "[object AsyncFunction]";
}

/** Mode of files beside a database, unless `open({ mode })` or the database's own mode says otherwise. */
export const DEFAULT_FILE_MODE = 0o600;

const PERMISSIONS = 0o666;
const READ = 0o444;

export function fileModeOf(mode: number): number {
  return mode & PERMISSIONS;
}

/** Returns the mode of a folder: a user who may read its files may enter it. */
export function folderModeOf(fileMode: number): number {
  return fileModeOf(fileMode) | ((fileMode & READ) >> 2);
}

/** Receives a program's log lines. */
export interface Log {
  debug(message: string, data?: object): void;
  info(message: string, data?: object): void;
  warn(message: string, data?: object): void;
  error(message: string, data?: object): void;
}
