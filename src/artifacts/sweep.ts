import { existsSync, linkSync, readdirSync, renameSync, rmSync, statSync, utimesSync } from "node:fs";
import { readdir, readFile, rm, stat } from "node:fs/promises";
import { basename, isAbsolute, join } from "node:path";
import { faultOf, isAbsent, isHash, Layout, nameFor, passArtifactPoint, syncFolderNow, tokenOf } from "./folder.ts";

// The second call must wait for transactions that called `missing`: by SQLite's write lock, on PostgreSQL by a shared lock.
export type IsReferenced = (hashes: string[]) => Promise<ReadonlySet<string>>;

export interface Swept {
  seen: number;
  removed: number;
  bytes: number;
}

const BATCH = 250;

/** Moves old unreferenced artifacts to the trash, then reads references again: restores or removes. See docs/decisions/026. */
export async function sweep(
  parts: { layout: Layout; trash: Trash; token: string; cutoff: number },
  isReferenced: IsReferenced,
): Promise<Swept> {
  const swept: Swept = { seen: 0, removed: 0, bytes: 0 };
  let old: string[] = [];
  for await (const hashes of shelvesIn(parts.layout.root)) {
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
  { trash, token, cutoff }: { trash: Trash; token: string; cutoff: number },
  old: string[],
  isReferenced: IsReferenced,
  swept: Swept,
): Promise<void> {
  const referenced = await isReferenced(old);
  const aside = new Set<TrashedArtifact>();
  try {
    for (const hash of old) {
      const name = referenced.has(hash) ? null : trash.discard(hash, token, cutoff);
      if (name !== null) aside.add(name);
    }
    if (aside.size === 0) return;
    passArtifactPoint("sweep:trashed");
    const again = await isReferenced([...aside].map(({ hash }) => hash));
    passArtifactPoint("sweep:checked");
    for (const name of aside) {
      if (!again.has(name.hash)) continue;
      trash.restore(name);
      aside.delete(name);
      passArtifactPoint("sweep:restored");
    }
    for (const name of aside) {
      const bytes = trash.remove(name);
      aside.delete(name);
      passArtifactPoint("sweep:removed");
      if (bytes === null) continue;
      swept.removed++;
      swept.bytes += bytes;
    }
  } finally {
    // If an error came first, it is unknown whether these artifacts are referenced.
    for (const name of aside) trash.restore(name);
  }
}

async function* shelvesIn(root: string): AsyncGenerator<string[]> {
  for (const shelf of (await readdir(root)).sort())
    if (/^[0-9a-f]{2}$/.test(shelf)) yield (await readdir(join(root, shelf))).map((rest) => shelf + rest).filter(isHash);
}

async function untouched(layout: Layout, hashes: string[], cutoff: number): Promise<string[]> {
  const old = await Promise.all(
    hashes.map(async (hash) => {
      try {
        return isOlder(await stat(layout.fileOf(hash)), cutoff);
      } catch (error) {
        if (isAbsent(error)) return false;
        throw error;
      }
    }),
  );
  return hashes.filter((_, i) => old[i]);
}

/** Compares whole milliseconds, because a touch in the same millisecond as the sweep may be the later one. */
function isOlder({ mtimeMs }: { mtimeMs: number }, cutoff: number): boolean {
  return Math.round(mtimeMs) < cutoff;
}

interface TrashedArtifact {
  name: string;
  hash: string;
  token: string;
}

/**
 * Holds what a sweep is about to remove. Only that sweep removes a file, by the name that it has here; any process may restore
 * it. Whichever comes first, the other finds nothing. All of it is synchronous: a store calls it inside its transaction.
 */
export class Trash {
  readonly #layout: Layout;
  readonly #now: () => number;

  constructor(layout: Layout, now: () => number) {
    this.#layout = layout;
    this.#now = now;
  }

  // Returns null if missing, or touched since `cutoff`. The time is read after the rename: a process that touches the artifact by
  // its own name did so before, or does not find it.
  discard(hash: string, token: string, cutoff: number): TrashedArtifact | null {
    const artifact = { name: `${hash}.${nameFor(token)}`, hash, token };
    if (unlessAbsent(() => renameSync(this.#layout.fileOf(hash), this.#fileOf(artifact))) === null) return null;
    const found = statSync(this.#fileOf(artifact), { throwIfNoEntry: false });
    if (found !== undefined && isOlder(found, cutoff)) return artifact;
    this.restore(artifact);
    return null;
  }

  remove(artifact: TrashedArtifact): number | null {
    return unlessAbsent(() => {
      const { size } = statSync(this.#fileOf(artifact));
      rmSync(this.#fileOf(artifact));
      return size;
    });
  }

  restore(artifact: TrashedArtifact): boolean {
    const [from, to] = [this.#fileOf(artifact), this.#layout.fileOf(artifact.hash)];
    try {
      // Link instead of rename, so that a newer copy that was stored meanwhile is not replaced.
      linkSync(from, to);
    } catch (error) {
      if (isAbsent(error)) return false;
      // The disk has no links.
      if (faultOf(error) !== "EEXIST" && unlessAbsent(() => renameSync(from, to)) === null) return false;
    }
    syncFolderNow(this.#layout.shelfOf(artifact.hash));
    rmSync(from, { force: true });
    return true;
  }

  rescue(hash: string): boolean {
    const found = this.list().filter((artifact) => artifact.hash === hash);
    // Restore all copies, because one that stays would outlive its sweep.
    if (found.map((artifact) => this.restore(artifact)).every((restored) => !restored)) return false;
    try {
      const now = this.#now() / 1_000;
      utimesSync(this.#layout.fileOf(hash), now, now);
    } catch (error) {
      // The file belongs to another user, or is in the trash again. In both cases the caller checks again.
      if (!isAbsent(error) && faultOf(error) !== "EPERM") throw error;
    }
    return true;
  }

  list(): TrashedArtifact[] {
    return readdirSync(this.#layout.trash).flatMap((name) => {
      const hash = name.slice(0, 64);
      const token = name[64] === "." ? tokenOf(name.slice(65)) : null;
      return isHash(hash) && token !== null ? [{ name, hash, token }] : [];
    });
  }

  #fileOf({ name }: TrashedArtifact): string {
    return join(this.#layout.trash, name);
  }
}

function unlessAbsent<T>(run: () => T): T | null {
  try {
    return run();
  } catch (error) {
    if (isAbsent(error)) return null;
    throw error;
  }
}

/** A writer on another host cannot be proven dead, so its file is removed after this time. A live writer's put is rejected. */
const SILENCE_MS = 7 * 86_400_000;

/** The suffix of an export's record in `tmp`, and the prefix of its temporary folder. */
export const RECORD = ".export";
export const STAGING_PREFIX = ".holdfast-export-";

/** Removes what dead processes were writing, and restores what they had in the trash. A live writer's file may be old. */
export async function clearOrphanedFiles(layout: Layout, trash: Trash, alive: Liveness, now: number): Promise<void> {
  const lives = new Map<string, ReturnType<Liveness["probe"]>>();
  const lifeOf = (token: string) => {
    const life = lives.get(token) ?? alive.probe(token);
    lives.set(token, life);
    return life;
  };

  // Restore also for unknown processes: restoring does no harm.
  for (const name of trash.list()) if (lifeOf(name.token) !== "alive") trash.restore(name);

  for (const name of await readdir(layout.temporary)) {
    const token = tokenOf(name);
    if (token === null) continue;
    const life = lifeOf(token);
    const path = join(layout.temporary, name);
    if (life === "alive" || (life === "unknown" && !(await isSilent(path, now)))) continue;
    // Remove the folder first, because no process could find it without its record.
    if (name.endsWith(RECORD)) await removeStaging(path, name.slice(0, -RECORD.length));
    await rm(path, { recursive: true, force: true });
  }

  // Forget tokens last, because a forgotten token proves nothing any more.
  for (const [token, life] of lives) if (life === "dead") alive.forget(token);
  alive.sweep(new Set(lives.keys()));
  alive.keepOnly(new Set());
}

async function isSilent(path: string, now: number): Promise<boolean> {
  try {
    return now - (await stat(path)).mtimeMs > SILENCE_MS;
  } catch (error) {
    if (isAbsent(error)) return true;
    throw error;
  }
}

/** Removes a temporary folder, whose path comes from a file. Anything but the folder of this very record is left alone. */
async function removeStaging(record: string, name: string): Promise<void> {
  const path = await readFile(record, "utf8").catch(() => "");
  if (!isAbsolute(path) || basename(path) !== STAGING_PREFIX + name) return;
  await rm(path, { recursive: true, force: true });
}

/** Tells which writing processes are alive. The caller provides it, because it needs locks that the kernel frees (`Alive`). */
export interface Liveness {
  hold(): string;
  /** "dead" is proven. "unknown" proves nothing. */
  probe(token: string): "alive" | "dead" | "unknown";
  forget(token: string): void;
  keepOnly(tokens: ReadonlySet<string>): void;
  sweep(tokens: ReadonlySet<string>): void;
  close(): void;
}

export async function countOrphans(
  folder: string,
  referenced: ReadonlySet<string>,
  cutoff: number,
): Promise<{ there: number; orphaned: number; missing: string[] }> {
  const layout = new Layout(folder, 0);
  const missing = new Set(referenced);
  let [there, orphaned] = [0, 0];
  for await (const hashes of existsSync(folder) ? shelvesIn(folder) : []) {
    there += hashes.length;
    orphaned += (
      await untouched(
        layout,
        hashes.filter((hash) => !missing.delete(hash)),
        cutoff,
      )
    ).length;
  }
  return { there, orphaned, missing: [...missing] };
}
