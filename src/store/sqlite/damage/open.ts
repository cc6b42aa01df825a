import { existsSync } from "node:fs";
import { HoldfastError } from "../../../core/errors.ts";
import type { Damage } from "./damage.ts";
import { isDamage } from "./damage.ts";

/** Opens a database that is whole as such, and one that is damaged for reading only, whether that is known before or not. */
export async function openDamaged<T>(damage: Damage, path: string, open: (damaged: boolean) => Promise<T>): Promise<T> {
  if (damage.damaged !== null) return open(true);
  try {
    return await open(false);
  } catch (error) {
    const cause = error instanceof HoldfastError ? error.cause : error;
    // What nobody has ever worked in may be anything, and is left alone.
    if (!isDamage(cause) || !wasHere(path)) throw error;
    damage.found({ severity: "damage", what: `It cannot be opened as it should: ${(cause as Error).message}.` });
  }
  return open(true).catch((error: unknown) => {
    throw error instanceof HoldfastError && error.code === "DAMAGED" ? error : unreadable(path, error);
  });
}

/** Whether Holdfast has had it open: its locks lie beside it. */
function wasHere(path: string): boolean {
  return existsSync(`${path}-alive`);
}

function unreadable(path: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} is so damaged that nothing can be read: ${(cause as Error).message}`,
    "Let `holdfast salvage` read what it can, and take the rest from the newest backup; or go back to one: holdfast restore.",
    { cause },
  );
}
