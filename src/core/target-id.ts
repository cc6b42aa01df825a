import { HoldfastError } from "./errors.ts";
import { checkStorable } from "./text.ts";

/** So many bytes an id may have, since it is indexed. */
export const ID_BYTES = 2_000;

/** Between a target's id and those of its parents. No id holds it. */
const BETWEEN = "\u001f";

/** What names a target in its segment: its id, behind those of its parents. */
export function pathOf(parent: string | null, id: string): string {
  if (parent === null) return id;
  const path = parent + BETWEEN + id;
  if (fits(path)) return path;
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `The id ${JSON.stringify(id.slice(0, 100))} has, with those of its parents, ${Buffer.byteLength(path)} bytes.`,
    `Give shorter ids: all of them together may have ${ID_BYTES} bytes.`,
  );
}

/** For people: the ids one behind the other. */
export function sayPath(path: string): string {
  return path.replaceAll(BETWEEN, "/");
}

/** A target's id, behind those of its parents. */
export function idsOf(path: string): string[] {
  return path.split(BETWEEN);
}

/** The id of a target as a user's function answers it; `what` names that function. */
export function checkTargetId(id: unknown, what: string): string {
  if (typeof id === "string" && id !== "" && id.isWellFormed() && !id.includes(BETWEEN) && fits(id))
    return checkStorable(id, what);
  const given = typeof id === "string" && !fits(id) ? `a text of ${Buffer.byteLength(id)} bytes` : JSON.stringify(id);
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `${what} is ${given ?? String(id)}.`,
    `Give a text of 1 to ${ID_BYTES} bytes, without half a character (a lone surrogate) and without U+001F.`,
  );
}

/** Whether an id is short enough. */
export function fits(id: string): boolean {
  // No character has more than three bytes for each of its halves.
  return id.length * 3 <= ID_BYTES || Buffer.byteLength(id) <= ID_BYTES;
}
