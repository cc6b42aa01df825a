import { existsSync, linkSync, readdirSync, renameSync, rmSync, statSync, utimesSync } from "node:fs";
import { readdir, readFile, rm, stat } from "node:fs/promises";
import { basename, isAbsolute, join } from "node:path";
import { faultOf, isAbsent, isHash, type Layout, nameFor, passArtifactPoint, syncFolderNow, tokenOf } from "./folder.ts";

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
 * Removes artifacts that have no reference and were not stored for a while. First it moves them to the trash, where no
 * transaction finds them; then it reads the references again and restores what has one by now. See docs/decisions/026.
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
    // Whether they are referenced is unknown.
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

/** A touch and a sweep in the same millisecond: the touch may have been later, and fractions of it are not kept. */
function isOlder({ mtimeMs }: { mtimeMs: number }, cutoff: number): boolean {
  return Math.round(mtimeMs) < cutoff;
}

/** One artifact that a sweep has put aside, under a name that is no other sweep's. */
interface DoomedName {
  name: string;
  hash: string;
  token: string;
}

/**
 * Holds what a sweep is about to remove. Only the sweep that put a file here removes it, by this name; any process may
 * restore it. Whichever comes first, the other finds nothing: a restored artifact can never be removed by that sweep.
 *
 * All of it is synchronous. It is a handful of files, and a store asks inside its transaction.
 */
export class Doomed {
  readonly #layout: Layout;
  readonly #now: () => number;

  constructor(layout: Layout, now: () => number) {
    this.#layout = layout;
    this.#now = now;
  }

  /**
   * Moves an artifact to the trash; null if it is missing, or was touched since `cutoff`. Reads its time after the rename:
   * a process that touches it by its own name did so before, which is seen here, or does not find it.
   */
  doom(hash: string, token: string, cutoff: number): DoomedName | null {
    const doomed = { name: `${hash}.${nameFor(token)}`, hash, token };
    try {
      renameSync(this.#layout.fileOf(hash), this.#fileOf(doomed));
    } catch (error) {
      if (isAbsent(error)) return null;
      throw error;
    }
    const found = statSync(this.#fileOf(doomed), { throwIfNoEntry: false });
    if (found !== undefined && isOlder(found, cutoff)) return doomed;
    this.restore(doomed);
    return null;
  }

  /** How many bytes that freed; null if another process has restored it. */
  remove(doomed: DoomedName): number | null {
    try {
      const { size } = statSync(this.#fileOf(doomed));
      rmSync(this.#fileOf(doomed));
      return size;
    } catch (error) {
      if (isAbsent(error)) return null;
      throw error;
    }
  }

  /** False when it is not here any more. */
  restore(doomed: DoomedName): boolean {
    const [from, to] = [this.#fileOf(doomed), this.#layout.fileOf(doomed.hash)];
    try {
      // A link replaces no file: a newer copy may be there, stored because this one was gone.
      linkSync(from, to);
    } catch (error) {
      if (isAbsent(error)) return false;
      if (faultOf(error) !== "EEXIST" && !this.#move(from, to)) return false;
    }
    syncFolderNow(this.#layout.shelfOf(doomed.hash));
    rmSync(from, { force: true });
    return true;
  }

  /** Restores an artifact that is needed, and protects it from the next sweeps. */
  rescue(hash: string): boolean {
    const found = this.list().filter((doomed) => doomed.hash === hash);
    // All of them: one that stays would outlive the sweep that has put it there.
    if (found.map((doomed) => this.restore(doomed)).every((restored) => !restored)) return false;
    try {
      const now = this.#now() / 1_000;
      utimesSync(this.#layout.fileOf(hash), now, now);
    } catch (error) {
      // The file belongs to another user, or is in the trash again; then the caller checks again.
      if (!isAbsent(error) && faultOf(error) !== "EPERM") throw error;
    }
    return true;
  }

  list(): DoomedName[] {
    return readdirSync(this.#layout.doomed).flatMap((name) => {
      const hash = name.slice(0, 64);
      const token = name[64] === "." ? tokenOf(name.slice(65)) : null;
      return isHash(hash) && token !== null ? [{ name, hash, token }] : [];
    });
  }

  /** For file systems without links. */
  #move(from: string, to: string): boolean {
    try {
      renameSync(from, to);
      return true;
    } catch (error) {
      if (isAbsent(error)) return false;
      throw error;
    }
  }

  #fileOf({ name }: DoomedName): string {
    return join(this.#layout.doomed, name);
  }
}

/**
 * A writer on another host cannot be proven dead: its file is removed after this time without a byte. If the writer is
 * alive after all, its put is rejected; nothing wrong is stored.
 */
const SILENCE = 7 * 86_400_000;

/** What an export's record in `tmp` is called, and the folder that it works in. */
export const RECORD = ".export";
export const WORKSHOP = ".holdfast-export-";

/**
 * Cleans up after the dead: what they were writing goes, what they had put aside goes back. How old a file is says
 * nothing while its writer may live: a slow stream is no dead one.
 */
export async function clearLeftovers(layout: Layout, doomed: Doomed, alive: Liveness, now: number): Promise<void> {
  const lives = new Map<string, ReturnType<Liveness["probe"]>>();
  const lifeOf = (token: string) => {
    const life = lives.get(token) ?? alive.probe(token);
    lives.set(token, life);
    return life;
  };

  // Also of those about whom nothing is known: to bring something back is never wrong.
  for (const name of doomed.list()) if (lifeOf(name.token) !== "alive") doomed.restore(name);

  for (const name of await readdir(layout.temporary)) {
    const token = tokenOf(name);
    if (token === null) continue;
    const life = lifeOf(token);
    const path = join(layout.temporary, name);
    if (life === "alive" || (life === "unknown" && !(await isSilent(path, now)))) continue;
    // The folder first: without its record it would never be found.
    if (name.endsWith(RECORD)) await clearWorkshop(path, name.slice(0, -RECORD.length));
    // Some are folders.
    await rm(path, { recursive: true, force: true });
  }

  // Last: a token that is forgotten proves nothing any more.
  for (const [token, life] of lives) if (life === "dead") alive.forget(token);
  alive.sweep(new Set(lives.keys()));
  alive.keepOnly(new Set());
}

async function isSilent(path: string, now: number): Promise<boolean> {
  try {
    return now - (await stat(path)).mtimeMs > SILENCE;
  } catch (error) {
    if (isAbsent(error)) return true;
    throw error;
  }
}

/** Removes a folder by what a file says; so it must be one of ours, and the one of this very record. */
async function clearWorkshop(record: string, name: string): Promise<void> {
  const path = await readFile(record, "utf8").catch(() => "");
  if (!isAbsolute(path) || basename(path) !== WORKSHOP + name) return;
  await rm(path, { recursive: true, force: true });
}

/**
 * Which of the writing processes are alive. That needs a lock which the kernel frees at death. This layer has none, so the
 * caller that opens the artifacts passes it in: the store's `Alive`.
 */
export interface Liveness {
  /** Takes a lock of this process's own; the token names it. */
  hold(): string;
  /** "dead" is proven; what is not known proves nothing. */
  probe(token: string): "alive" | "dead" | "unknown";
  /** It is dead, and nothing of it is left. */
  forget(token: string): void;
  /** Those that need no probing any more. */
  keepOnly(tokens: ReadonlySet<string>): void;
  /** Forgets the dead, but for these: something of them is left. */
  sweep(tokens: ReadonlySet<string>): void;
  close(): void;
}

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
