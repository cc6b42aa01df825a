import { existsSync, statSync } from "node:fs";
import { type OpenCircumstances, findLogDamage, type Loss, findLoss } from "../../../../core/recovery/loss.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { Alive } from "../../../alive.ts";
import type { NewFinding } from "../../../maintenance.ts";
import { type DriverName, inTransaction } from "../../driver.ts";
import { explain, fileSize, isDamage, modeLike } from "../../faults.ts";
import { type OpenedSqlite, patiently } from "../../open.ts";
import { knownIn, raiseEpoch } from "../epoch.ts";
import { scanLog, type Scanned } from "../wal.ts";
import { mostSeen, readSlots, type Slot, witnessFolder } from "../witness.ts";
import type { Damage } from "./damage.ts";

interface ArrivalOptions {
  driver: DriverName;
  identity: string;
  boot: string;
}

/** The files before SQLite touches them: opening replays the log as far as SQLite reads it, and closing drops the rest. */
interface Arrival {
  path: string;
  inode: number | null;
  hadLog: boolean;
  boot: string;
  rebooted: boolean;
  slots: Slot[];
  /** Null: there is no log, or another process has it open and has scanned it. */
  scanned: Scanned | null;
}

async function lookBeforeOpening(path: string, { driver, identity, boot }: ArrivalOptions): Promise<Arrival> {
  const inode = inodeOf(path);
  const log = fileSize(`${path}-wal`);
  // Read the witness files before the database: what they record was committed before.
  const slots = readSlots(path);
  const scanned = inode === null || log === 0 || isOpen(path, driver, identity) ? null : await scanLog(path);
  const rebooted = boot !== "" && slots.length > 0 && slots.every(({ seen }) => seen.boot !== boot);
  return { path, inode, hadLog: log > 0, boot, rebooted, slots, scanned };
}

function logFinding({ slots, scanned, rebooted }: Arrival): ReturnType<typeof findLogDamage> {
  const durability = mostSeen(slots)?.durability ?? "power";
  return findLogDamage(scanned?.bad ?? null, { durability, rebooted });
}

function logDamage(arrival: Arrival): NewFinding | null {
  const found = logFinding(arrival);
  // Ignore the finding if another file was put in its place during the scan.
  return found?.severity === "damage" && inodeOf(arrival.path) === arrival.inode ? found : null;
}

export async function isLogDamaged(path: string, options: ArrivalOptions): Promise<boolean> {
  return logDamage(await lookBeforeOpening(path, options)) !== null;
}

function lossIn(arrival: Arrival, { db, databaseId, durability }: OpenedSqlite): Loss | null {
  const { inode, hadLog, boot, rebooted, slots, scanned } = arrival;
  const seen = mostSeen(slots, databaseId) ?? mostSeen(slots);
  const log = !hadLog ? "missing" : (scanned?.bad ?? null) === null ? "there" : "cut";
  const isExact = boot !== "" && slots.every((slot) => slot.seen.boot === boot);
  const circumstances: OpenCircumstances = { durability, rebooted, isExact, isNew: inode === null, log };
  const loss = findLoss(seen, { databaseId, ...knownIn(db) }, circumstances);
  const cut = logFinding(arrival);
  if (cut === null || cut.severity === "damage") return loss;
  return loss !== null && loss.commitsMissing >= cut.commitsMissing ? loss : { ...cut, severity: "expected" };
}

/** Raises the epoch, so that the store never gives out a fence or key of a lost commit again. */
function goBeyond({ slots }: Arrival, { db }: OpenedSqlite): void {
  const seen = mostSeen(slots);
  if (seen === null) return;
  inTransaction(db, () => {
    if (knownIn(db).epoch <= seen.epoch) raiseEpoch(db, seen);
  });
}

function inodeOf(path: string): number | null {
  return statSync(path, { throwIfNoEntry: false })?.ino ?? null;
}

function isOpen(path: string, driver: DriverName, identity: string): boolean {
  using alive = new Alive(`${path}-alive`, driver, identity, () => modeLike(path));
  return alive.isAnyAlive();
}

export async function arrive(
  damage: Damage,
  path: string,
  options: Partial<ArrivalOptions> & { driver: DriverName; ownThread?: boolean; onlyReads?: boolean },
  open: () => Promise<OpenedSqlite>,
  leave: () => void,
): Promise<OpenedSqlite> {
  if (path === ":memory:" || options.ownThread) return open();
  const arrival = await lookBeforeOpening(path, { identity: "", boot: "", ...options });
  const found = logDamage(arrival);
  if (found !== null) damage.found(found);
  damage.logAtOpening = arrival.scanned;
  damage.isWitnessed = arrival.inode === null || arrival.slots.length > 0;
  const opened = await open();
  if (damage.damaged !== null) return opened;
  try {
    const loss = lossIn(arrival, opened);
    if (loss !== null && options.onlyReads) damage.report(loss);
    else if (loss !== null) {
      // Store the finding before the epoch rises, which would hide the loss.
      damage.found(loss);
      await patiently(opened.db, () => goBeyond(arrival, opened));
    }
    return opened;
  } catch (error) {
    opened.db.close();
    leave();
    if (!isDamage(error)) throw explain(error, path);
    damage.met(error);
    await damage.confirmed();
    return damage.damaged === null ? arrive(damage, path, options, open, leave) : open();
  }
}

export async function openDamaged<T>(damage: Damage, path: string, open: (damaged: boolean) => Promise<T>): Promise<T> {
  // Try twice, each time on a new connection, because one bad read is no proof.
  for (let tries = 0; damage.damaged === null; tries++) {
    try {
      return await open(false);
    } catch (error) {
      const cause = error instanceof HoldfastError ? error.cause : error;
      // A file that no process of Holdfast ever had open may be no database.
      if (!isDamage(cause) || !wasHere(path)) throw error;
      if (tries === 0) continue;
      damage.found({ severity: "damage", what: `It cannot be opened as it should: ${(cause as Error).message}.` });
    }
  }
  return open(true).catch((cause: unknown) => {
    if (cause instanceof HoldfastError && cause.code === "DAMAGED") throw cause;
    throw new HoldfastError(
      "DAMAGED",
      `${path} is so damaged that nothing can be read: ${(cause as Error).message}`,
      "Run `holdfast doctor --recheck` to try again. Otherwise run `holdfast salvage`, which reads what it can and takes the rest from the newest backup, or `holdfast restore`.",
      { cause },
    );
  });
}

function wasHere(path: string): boolean {
  return existsSync(`${path}-alive`) || existsSync(witnessFolder(path));
}
