import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Build } from "../../src/index.ts";
import { openReadOnly } from "../../src/open-handle.ts";
import { fixture, Place } from "./holdfast.ts";

export const DOCS = fixture("docs.ts");

/** A folder with documents, for the pipeline of `fixtures/docs.ts`. */
export async function placeWith(texts: Record<string, string>): Promise<Place> {
  const place = await Place.make();
  await mkdir(join(place.folder, "docs"));
  for (const [name, text] of Object.entries(texts)) await writeDoc(place, name, text);
  return place;
}

export function writeDoc({ folder }: Place, name: string, text: string): Promise<void> {
  return writeFile(join(folder, "docs", `${name}.md`), text);
}

/** Lets the waiting handlers continue. */
export async function openGate({ folder }: Place): Promise<void> {
  await writeFile(join(folder, "go"), "");
}

export function shutGate({ folder }: Place): Promise<void> {
  return rm(join(folder, "go"), { force: true });
}

/** The lines of a run with --json. */
export function linesOf(stdout: string): ({ type: "progress" | "build" } & Build)[] {
  return stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { type: "progress" | "build" } & Build);
}

/** The newest build there is. */
export async function newest(place: Place): Promise<Build> {
  await using hf = await openReadOnly(place.db, {});
  return (await hf.builds.list()).items.at(-1) as Build;
}
