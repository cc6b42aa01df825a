import { existsSync, statSync } from "node:fs";
import { type Circumstances, logDamage, type Loss, lossOf } from "../../../../core/recovery/loss.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { Alive } from "../../../alive.ts";
import type { Opening } from "../../../maintenance.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { explain, modeLike } from "../../faults.ts";
import { type OpenedSqlite, patiently } from "../../open.ts";
import { knownIn, raiseEpoch } from "../epoch.ts";
import { scanLog, type Scanned } from "../wal.ts";
import { mostSeen, readSlots, type Slot, witnessFolder } from "../witness.ts";
import { type Damage, isDamage } from "./damage.ts";

interface ArrivalOptions {
  driver: DriverName;
  /** Of this process, and of this run of the host; "": not known. */
  identity: string;
  boot: string;
}

/**
 * What lay there before SQLite touched it: opening a database replays its log as far as it goes, and closing it drops
 * the rest, with whatever could have been seen or saved in it.
 */
export class Arrival {
  readonly #path: string;
  /** Null: it is not there yet. */
  readonly #inode: number | null;
  readonly #hadLog: boolean;
  readonly #boot: string;
  readonly #slots: Slot[];
  /** Null: there is no log, or others have it open, and have looked. */
  readonly #scanned: Scanned | null;

  static async at(path: string, { driver, identity, boot }: ArrivalOptions): Promise<Arrival> {
    const inode = inodeOf(path);
    const isNew = inode === null;
    const log = statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0;
    // First these, then the database: what stands in them was committed before.
    const slots = readSlots(path);
    const scanned = isNew || log === 0 || isOpen(path, driver, identity) ? null : await scanLog(path);
    return new Arrival(path, { inode, hadLog: log > 0, boot, slots, scanned });
  }

  private constructor(
    path: string,
    found: { inode: number | null; hadLog: boolean; boot: string; slots: Slot[]; scanned: Scanned | null },
  ) {
    this.#path = path;
    this.#inode = found.inode;
    this.#hadLog = found.hadLog;
    this.#boot = found.boot;
    this.#slots = found.slots;
    this.#scanned = found.scanned;
  }

  /** Before it is opened: whether its log may be replayed at all. */
  judgeLog(damage: Damage): void {
    const found = this.#logFinding();
    if (found !== null && this.isLogDamaged) damage.found(found);
  }

  get isLogDamaged(): boolean {
    // Another may have been put into its place while it was read.
    return this.#logFinding()?.severity === "damage" && inodeOf(this.#path) === this.#inode;
  }

  #logFinding(): ReturnType<typeof logDamage> {
    const seen = mostSeen(this.#slots);
    const durability = seen?.durability === "process" ? "process" : "power";
    return logDamage(this.#scanned?.bad ?? null, { durability, rebooted: this.#rebooted });
  }

  /** When it is open: what should be there, and is not. */
  lossIn({ db, databaseId, durability }: OpenedSqlite): Loss | null {
    const seen = mostSeen(this.#slots, databaseId) ?? mostSeen(this.#slots);
    const log: Circumstances["log"] = !this.#hadLog
      ? "missing"
      : this.#scanned === null || this.#scanned.bad === null
        ? "there"
        : "cut";
    const isExact = this.#boot !== "" && this.#slots.every(({ seen }) => seen.boot === this.#boot);
    const circumstances = { durability, rebooted: this.#rebooted, isExact, isNew: this.#inode === null, log };
    const loss = lossOf(seen, { databaseId, ...knownIn(db) }, circumstances);
    const cut = this.#logFinding();
    if (cut === null || cut.severity === "damage") return loss;
    // The same loss, seen from two sides.
    return loss !== null && loss.commitsMissing >= cut.commitsMissing ? loss : { ...cut, severity: "expected" };
  }

  /** So that neither a fence nor a key of what is gone is ever given out again. */
  goBeyond({ db }: OpenedSqlite): void {
    const seen = mostSeen(this.#slots);
    if (seen === null) return;
    immediately(db, () => {
      const here = knownIn(db);
      // Another process has done it meanwhile.
      if (here.epoch > seen.epoch) return;
      raiseEpoch(db, seen);
    });
  }

  get isWitnessed(): boolean {
    return this.#inode === null || this.#slots.length > 0;
  }

  get opening(): Opening | null {
    return this.#scanned === null ? null : { walBytes: this.#scanned.bytes, walFrames: this.#scanned.frames };
  }

  get #rebooted(): boolean {
    const boots = this.#slots.map(({ seen }) => seen.boot);
    return this.#boot !== "" && boots.length > 0 && boots.every((boot) => boot !== this.#boot);
  }
}

function inodeOf(path: string): number | null {
  return statSync(path, { throwIfNoEntry: false })?.ino ?? null;
}

function isOpen(path: string, driver: DriverName, identity: string): boolean {
  const alive = new Alive(`${path}-alive`, driver, identity, () => modeLike(path));
  try {
    return alive.isAnybodyThere();
  } finally {
    alive.close();
  }
}

function immediately(db: Connection, run: () => void): void {
  db.exec("begin immediate");
  try {
    run();
    db.exec("commit");
  } finally {
    if (db.inTransaction) db.exec("rollback");
  }
}

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
      // What no process has ever worked in may be anything, and is left alone.
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
    "Run `holdfast doctor --recheck` to try again. Otherwise run `holdfast salvage`, which reads what it can and takes the rest from the newest backup, or `holdfast restore`.",
    { cause },
  );
}
