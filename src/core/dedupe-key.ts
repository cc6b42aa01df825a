import { hash } from "node:crypto";

/**
 * The same for every delivery of an event, and for no other event. Several databases may deliver to one place, and count
 * from one each: their events must not be taken for each other.
 */
export function dedupeKey(databaseId: string, transition: string): string {
  return hash("sha256", `${databaseId}|${transition}`);
}

/**
 * What makes an event of a build one of its kind: its type, the build, the number of the transition that it tells, and the
 * target's hash where it is about one. Only the last may hold a bar, so no two of them spell the same.
 */
export function buildTransition(type: string, build: string, seq: number, target = ""): string {
  return `${type}|${build}|${seq}|${target}`;
}
