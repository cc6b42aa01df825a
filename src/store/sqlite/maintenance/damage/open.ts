import { existsSync } from "node:fs";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { DriverName } from "../../driver.ts";
import { explain } from "../../faults.ts";
import { type OpenedSqlite, patiently } from "../../open.ts";
import { witnessFolder } from "../witness.ts";
import { Arrival, type ArrivalOptions } from "./arrival.ts";
import { type Damage, isDamage } from "./damage.ts";

/** Looks at what lies there, opens it, and compares it with what should be in it. */
export async function arrive(
  damage: Damage,
  path: string,
  options: Partial<ArrivalOptions> & { driver: DriverName; ownThread?: boolean; looks?: boolean },
  open: () => Promise<OpenedSqlite>,
  leave: () => void,
): Promise<OpenedSqlite> {
  if (path === ":memory:" || options.ownThread) return open();
  const arrival = await Arrival.at(path, { identity: "", boot: "", ...options });
  arrival.judgeLog(damage);
  damage.opening = arrival.opening;
  damage.isWitnessed = arrival.isWitnessed;
  const opened = await open();
  if (damage.damaged !== null) return opened;
  try {
    const loss = arrival.lossIn(opened);
    if (loss !== null && options.looks) damage.saw(loss);
    else if (loss !== null) {
      // What is found is written down before that which would find it again is gone.
      damage.found(loss);
      await patiently(opened.db, () => arrival.goBeyond(opened));
    }
    return opened;
  } catch (error) {
    opened.db.close();
    leave();
    if (!isDamage(error)) throw explain(error, path);
    // It cannot even be compared: it is read as far as it can be.
    damage.met(error);
    await damage.confirmed();
    return damage.damaged === null ? arrive(damage, path, options, open, leave) : open();
  }
}

/** Opens a database that is whole as such, and one that is damaged for reading only, whether that is known before or not. */
export async function openDamaged<T>(damage: Damage, path: string, open: (damaged: boolean) => Promise<T>): Promise<T> {
  // The second time on a new connection: one bad read is no proof.
  for (let tries = 0; damage.damaged === null; tries++) {
    try {
      return await open(false);
    } catch (error) {
      const cause = error instanceof HoldfastError ? error.cause : error;
      // What nobody has ever worked in may be anything, and is left alone.
      if (!isDamage(cause) || !wasHere(path)) throw error;
      if (tries === 0) continue;
      damage.found({ severity: "damage", what: `It cannot be opened as it should: ${(cause as Error).message}.` });
    }
  }
  return open(true).catch((error: unknown) => {
    throw error instanceof HoldfastError && error.code === "DAMAGED" ? error : unreadable(path, error);
  });
}

/** Whether Holdfast has had it open: its locks lie beside it, or what was seen in it. */
function wasHere(path: string): boolean {
  return existsSync(`${path}-alive`) || existsSync(witnessFolder(path));
}

function unreadable(path: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} is so damaged that nothing can be read: ${(cause as Error).message}`,
    "`holdfast doctor --recheck` tries again. If it stays so, let `holdfast salvage` read what it can, and take the rest from the newest backup; or go back to one: holdfast restore.",
    { cause },
  );
}
