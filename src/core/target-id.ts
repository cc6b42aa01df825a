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
  const wrong = wrongWith(id);
  if (wrong === null) return checkStorable(id as string, what);
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `${what} is ${wrong}.`,
    `Give a text of 1 to ${ID_BYTES} bytes, without half a character (a lone surrogate) and without U+001F.`,
  );
}

/** What it is and why that is no id: a build keeps the message of an error, not its hint. */
function wrongWith(id: unknown): string | null {
  if (typeof id !== "string") return `${JSON.stringify(id) ?? String(id)}, and an id is a text`;
  if (id === "") return '"", and an id has at least one character';
  if (!fits(id)) return `a text of ${Buffer.byteLength(id)} bytes, and an id may have ${ID_BYTES}`;
  const given = JSON.stringify(id.slice(0, 100));
  if (!id.isWellFormed()) return `${given}, and an id holds no half of a character (a lone surrogate)`;
  return id.includes(BETWEEN) ? `${given}, and an id does not hold U+001F` : null;
}

/** Whether an id is short enough. */
export function fits(id: string): boolean {
  // No character has more than three bytes for each of its halves.
  return id.length * 3 <= ID_BYTES || Buffer.byteLength(id) <= ID_BYTES;
}
