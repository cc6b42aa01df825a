import type { Dirent } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { compareIds } from "../../core/text/ids.ts";
import { invalidName, isGone, unreadable } from "./fingerprint-file.ts";

export type EntryKind = "file" | "folder" | "link";

export interface Entry {
  name: string;
  kind: EntryKind;
  /** What it is sorted by. A folder has a slash behind its name, as its files' ids have: so these come out in their order. */
  key: string;
}

/** What is in a folder, in the order in which ids are listed; null: it is gone. */
export async function readFolder(path: string): Promise<Entry[] | null> {
  let found: Dirent[];
  try {
    found = await readdir(path, { withFileTypes: true });
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
  const entries: Entry[] = [];
  for (const dirent of found) {
    const kind = kindOf(dirent);
    if (kind !== null) entries.push({ name: dirent.name, kind, key: kind === "folder" ? `${dirent.name}/` : dirent.name });
  }
  return entries.sort((a, b) => compareIds(a.key, b.key));
}

/** Null: a pipe, a socket, a device. */
function kindOf(dirent: Dirent): EntryKind | null {
  if (dirent.isFile()) return "file";
  if (dirent.isDirectory()) return "folder";
  return dirent.isSymbolicLink() ? "link" : null;
}

/** Names are bytes to most systems. Those that are no UTF-8 come with U+FFFD in the place of what is wrong. */
export function isDoubtful(name: string): boolean {
  return name.includes("\u{fffd}") || !name.isWellFormed();
}

/** U+FFFD may also be a character of the name. */
export async function checkName(folder: string, name: string): Promise<void> {
  const path = join(folder, name);
  if (!name.isWellFormed()) throw invalidName(path, "has half a character (a lone surrogate)");
  const raw = await readdir(folder, { encoding: "buffer" });
  const spelled = Buffer.from(name);
  if (raw.some((bytes) => bytes.toString() === name && !bytes.equals(spelled))) throw invalidName(path, "is not UTF-8");
}
