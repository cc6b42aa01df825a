import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { type Doomed, type DoomedName, isOlder } from "./doomed.ts";
import { isAbsent } from "./faults.ts";
import { isHash, type Layout } from "./layout.ts";
import { passArtifactPoint } from "./points.ts";

/**
 * Which of these are referenced. It is asked a second time for those that are about to go; that answer must not come
 * before whatever transactions are under way which have asked `missing` already: SQLite's write lock does that, and on
 * PostgreSQL a lock that those share.
 */
export type IsReferenced = (hashes: string[]) => Promise<ReadonlySet<string>>;

export interface Swept {
  /** How many artifacts there were. */
  seen: number;
  removed: number;
  /** What that freed. */
  bytes: number;
}

/** So many are put aside at a time. */
const BATCH = 250;

/**
 * Removes what nobody references and nobody has stored for a while. First they are put aside, where no transaction finds
 * them any more; then references are looked at again, and what has one by now goes back. See docs/decisions/026.
 */
export async function sweep(
  parts: { layout: Layout; doomed: Doomed; token: string; cutoff: number },
  isReferenced: IsReferenced,
): Promise<Swept> {
  const swept: Swept = { seen: 0, removed: 0, bytes: 0 };
  let old: string[] = [];
  for (const shelf of (await readdir(parts.layout.root)).sort()) {
    if (!/^[0-9a-f]{2}$/.test(shelf)) continue;
    const hashes = (await readdir(join(parts.layout.root, shelf))).map((rest) => shelf + rest).filter(isHash);
    swept.seen += hashes.length;
    for (let at = 0; at < hashes.length; at += BATCH) {
      old.push(...(await untouched(parts.layout, hashes.slice(at, at + BATCH), parts.cutoff)));
      if (old.length < BATCH) continue;
      await sweepBatch(parts, old.slice(0, BATCH), isReferenced, swept);
      old = old.slice(BATCH);
    }
  }
  if (old.length > 0) await sweepBatch(parts, old, isReferenced, swept);
  return swept;
}

async function sweepBatch(
  { doomed, token, cutoff }: { doomed: Doomed; token: string; cutoff: number },
  old: string[],
  isReferenced: IsReferenced,
  swept: Swept,
): Promise<void> {
  const referenced = await isReferenced(old);
  const aside = new Set<DoomedName>();
  try {
    for (const hash of old) {
      const name = referenced.has(hash) ? null : doomed.doom(hash, token, cutoff);
      if (name !== null) aside.add(name);
    }
    if (aside.size === 0) return;
    passArtifactPoint("sweep:doomed");
    const again = await isReferenced([...aside].map(({ hash }) => hash));
    passArtifactPoint("sweep:checked");
    for (const name of aside) {
      if (!again.has(name.hash)) continue;
      doomed.restore(name);
      aside.delete(name);
      passArtifactPoint("sweep:restored");
    }
    for (const name of aside) {
      const bytes = doomed.remove(name);
      aside.delete(name);
      passArtifactPoint("sweep:removed");
      if (bytes === null) continue;
      swept.removed++;
      swept.bytes += bytes;
    }
  } finally {
    // Nobody could say whether they are referenced.
    for (const name of aside) doomed.restore(name);
  }
}

async function untouched(layout: Layout, hashes: string[], cutoff: number): Promise<string[]> {
  const old = await Promise.all(
    hashes.map(async (hash) => {
      try {
        return isOlder(await stat(layout.fileOf(hash)), cutoff);
      } catch (error) {
        // Another sweep has it.
        if (isAbsent(error)) return false;
        throw error;
      }
    }),
  );
  return hashes.filter((_, i) => old[i]);
}
