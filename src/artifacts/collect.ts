import { open, rm } from "node:fs/promises";
import { faultOf, isAbsent } from "./faults.ts";
import { makeFolder, syncFolder } from "./folder.ts";
import { Layout } from "./layout.ts";
import { writeNew } from "./new-file.ts";
import { hashOf } from "./verified.ts";

export interface Collected {
  bytes: number;
  /** Those that are not there, or not whole. */
  missing: string[];
}

interface CollectOptions {
  folder: string;
  /** Of the copies' folder, less what only who writes needs. */
  mode: number;
  pieces: (hash: string) => AsyncIterable<Buffer>;
  tell: (done: number) => void;
}

/**
 * Copies of these in a folder of the same shape, on the disk when it resolves. What is not there, or damaged, is left out
 * and said: who asks may be glad of the rest.
 */
export async function collect(hashes: readonly string[], { folder, mode, pieces, tell }: CollectOptions): Promise<Collected> {
  const layout = new Layout(folder, mode);
  const shelves = new Set<string>();
  const collected: Collected = { bytes: 0, missing: [] };
  await makeFolder(folder, mode);
  for (const [i, hash] of hashes.entries()) {
    const shelf = layout.shelfOf(hash);
    if (!shelves.has(shelf)) await makeFolder(shelf, mode);
    shelves.add(shelf);
    const bytes = await copy(pieces(hash), layout.fileOf(hash), mode);
    if (bytes === null) collected.missing.push(hash);
    else collected.bytes += bytes;
    tell(i + 1);
  }
  for (const shelf of shelves) await syncFolder(shelf);
  await syncFolder(folder);
  return collected;
}

/** Those of these that are not in a folder of that shape, or not whole there. */
export async function lacking(hashes: readonly string[], folder: string, tell: (done: number) => void): Promise<string[]> {
  const layout = new Layout(folder, 0);
  const found: string[] = [];
  for (const [i, hash] of hashes.entries()) {
    if (!(await isWhole(layout.fileOf(hash), hash))) found.push(hash);
    tell(i + 1);
  }
  return found;
}

async function isWhole(path: string, hash: string): Promise<boolean> {
  const handle = await open(path, "r").catch((error: unknown) => {
    if (isAbsent(error)) return null;
    throw error;
  });
  try {
    return handle !== null && (await hashOf(handle)) === hash;
  } finally {
    await handle?.close();
  }
}

async function copy(pieces: AsyncIterable<Buffer>, to: string, mode: number): Promise<number | null> {
  try {
    return await writeNew(to, pieces, mode & 0o444);
  } catch (error) {
    if (!["ARTIFACT_MISSING", "ARTIFACT_DAMAGED"].includes(faultOf(error) ?? "")) throw error;
  }
  await rm(to, { force: true });
  return null;
}
