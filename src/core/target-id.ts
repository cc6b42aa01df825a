import { HoldfastError } from "./errors.ts";
import { checkStorable } from "./text.ts";

/** So many bytes an id may have, since it is indexed. */
export const ID_BYTES = 2_000;

/** The id of a target as a user's function answers it; `what` names that function. */
export function checkTargetId(id: unknown, what: string): string {
  if (typeof id === "string" && id !== "" && id.isWellFormed() && fits(id)) return checkStorable(id, what);
  const given = typeof id === "string" && !fits(id) ? `a text of ${Buffer.byteLength(id)} bytes` : JSON.stringify(id);
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `${what} is ${given ?? String(id)}.`,
    `Give a text of 1 to ${ID_BYTES} bytes, without half a character (a lone surrogate).`,
  );
}

/** Whether an id is short enough. */
export function fits(id: string): boolean {
  // No character has more than three bytes for each of its halves.
  return id.length * 3 <= ID_BYTES || Buffer.byteLength(id) <= ID_BYTES;
}
