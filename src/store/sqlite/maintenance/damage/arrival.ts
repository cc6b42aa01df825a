import { statSync } from "node:fs";
import { type Circumstances, logDamage, type Loss, lossOf } from "../../../../core/recovery/loss.ts";
import { Alive } from "../../../alive.ts";
import type { Opening } from "../../../findings.ts";
import type { Damage } from "./damage.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { modeLike } from "../../modes.ts";
import type { OpenedSqlite } from "../../open.ts";
import { scanLog, type Scanned } from "../wal.ts";
import { mostSeen, readSlots, type Slot } from "../witness.ts";
import { knownIn, raiseEpoch } from "../epoch.ts";

export interface ArrivalOptions {
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
      // Somebody else has done it meanwhile.
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
