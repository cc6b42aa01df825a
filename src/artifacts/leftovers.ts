import { readdir, readFile, rm, stat } from "node:fs/promises";
import { basename, isAbsolute, join } from "node:path";
import type { Doomed } from "./doomed.ts";
import { isAbsent } from "./faults.ts";
import { type Layout, tokenOf } from "./layout.ts";
import type { Liveness } from "./liveness.ts";

/**
 * Of writers that nobody here can prove dead, because they are on another host: so long without a byte. Should one live
 * after all, its file is gone and its put is refused; nothing wrong is stored.
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
    // The folder first: without its record nobody would find it.
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
