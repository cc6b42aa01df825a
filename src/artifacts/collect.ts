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

/**
 * Copies of these in a folder of the same shape, on the disk when it resolves. What is not there, or damaged, is left out
 * and said: who asks may be glad of the rest.
 */
export async function collect(
  hashes: readonly string[],
  { folder, pieces, tell }: { folder: string; pieces: (hash: string) => AsyncIterable<Buffer>; tell: (done: number) => void },
): Promise<Collected> {
  const layout = new Layout(folder);
  const shelves = new Set<string>();
  const collected: Collected = { bytes: 0, missing: [] };
  await makeFolder(folder);
  for (const [i, hash] of hashes.entries()) {
    const shelf = layout.shelfOf(hash);
    if (!shelves.has(shelf)) await makeFolder(shelf);
    shelves.add(shelf);
    const bytes = await copy(pieces(hash), layout.fileOf(hash));
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
  const layout = new Layout(folder);
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

async function copy(pieces: AsyncIterable<Buffer>, to: string): Promise<number | null> {
  try {
    return await writeNew(to, pieces, 0o444);
  } catch (error) {
    if (!["ARTIFACT_MISSING", "ARTIFACT_DAMAGED"].includes(faultOf(error) ?? "")) throw error;
  }
  await rm(to, { force: true });
  return null;
}
