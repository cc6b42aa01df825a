import { HoldfastError } from "./errors.ts";
import { describeValue, invalidOption } from "./options.ts";

const ZERO = "\0";

/**
 * A text that every database can store. PostgreSQL takes anything but the character with the number zero, and some of
 * SQLite's functions take that for the end; so it is refused everywhere, before anything is written.
 */
export function checkStorable(text: string, what: string): string {
  if (typeof text !== "string") throw invalidOption(`${what} must be a string, got ${describeValue(text)}.`, "Give a string.");
  if (!text.includes(ZERO)) return text;
  throw new HoldfastError(
    "TEXT_INVALID",
    `${what} holds the character with the number zero, which cannot be stored.`,
    "Leave out the character with the number zero.",
  );
}

/** The same text, or one as much like it as can be stored: where losing a character is better than losing it all. */
export function storable(text: string): string {
  return text.toWellFormed().replaceAll(ZERO, "\u{fffd}");
}
