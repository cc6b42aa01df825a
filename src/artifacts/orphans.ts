import { existsSync } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { isOlder } from "./doomed.ts";
import { isHash } from "./layout.ts";

/** How many artifacts are in a folder, and how many of them nothing refers to, but for those that were stored just now. */
export async function countOrphans(
  folder: string,
  referenced: ReadonlySet<string>,
  cutoff: number,
): Promise<{ there: number; orphaned: number; missing: string[] }> {
  const there = new Set<string>();
  let orphaned = 0;
  for (const shelf of existsSync(folder) ? await readdir(folder) : []) {
    if (!/^[0-9a-f]{2}$/.test(shelf)) continue;
    for (const rest of await readdir(join(folder, shelf))) {
      const hash = shelf + rest;
      if (!isHash(hash)) continue;
      there.add(hash);
      if (referenced.has(hash)) continue;
      const found = await stat(join(folder, shelf, rest)).catch(() => null);
      if (found !== null && isOlder(found, cutoff)) orphaned++;
    }
  }
  return { there: there.size, orphaned, missing: [...referenced].filter((hash) => !there.has(hash)) };
}
