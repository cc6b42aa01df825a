import { closeSync, fstatSync, fsync, writeSync } from "node:fs";
import type { AuditHead } from "../../../../core/recovery/audit.ts";
import type { Alive } from "../../../alive.ts";
import {
  COUNT,
  Counts,
  COUNTS,
  COUNTS_APART,
  dropSlots,
  makeSlot,
  mostSeen,
  readSlots,
  RECORD,
  RECORDS,
  type Seen,
  type Slot,
  takeSlot,
  toRecord,
} from "./slots.ts";

/** It is synced at most this often, in milliseconds. */
const SYNC = 1_000;

/**
 * What this process has seen committed, written down outside the database after each commit of its own, before anybody
 * is told of it. Whoever opens the database later compares: a log that was cut off, a file that was put back, a disk that
 * forgot what it had synced.
 */
export class Witness {
  readonly #path: string;
  readonly #token: string;
  #fd: number;
  readonly #seen: Seen;
  readonly #counts: Counts;
  #turn: number;
  #timer: NodeJS.Timeout | null = null;
  #closed = false;

  private constructor(path: string, token: string, fd: number, seen: Seen, turn: number) {
    this.#path = path;
    this.#token = token;
    this.#fd = fd;
    this.#seen = seen;
    this.#counts = new Counts(seen);
    this.#turn = turn;
  }

  /** `here` is what is in the database now, as it was found to be all that should be; `has`: whether an entry of the audit is. */
  static open(
    path: string,
    { token, alive, here, has }: { token: string; alive: Alive; here: Seen; has: (entry: AuditHead) => boolean },
  ): Witness {
    const slots = readSlots(path);
    const most = mostSeen(slots, here.databaseId);
    const turn = Math.max(0, ...slots.map(({ seen }) => seen.turn));
    const fd = takeSlot(path, token, alive);
    const seen = { ...here };
    // Others go on meanwhile: what they have written down since is not less.
    if (most !== null && most.epoch === here.epoch) {
      seen.commits = Math.max(here.commits, most.commits);
      seen.key = Math.max(here.key, most.key);
      if ((most.audit?.seq ?? 0) > (here.audit?.seq ?? 0)) seen.audit = most.audit;
      const missed = most.missed ?? missedIn(slots, here, has);
      if (missed !== undefined) seen.missed = missed;
    }
    const witness = new Witness(path, token, fd, seen, turn);
    witness.#record();
    dropSlots(path, fd, token, alive);
    return witness;
  }

  /** After a commit of this process's own, not before. */
  saw(commits: number, key: number): void {
    const seen = this.#seen;
    if (commits <= seen.commits && key <= seen.key) return;
    if (commits > seen.commits) seen.commits = commits;
    if (key > seen.key) seen.key = key;
    // It survives the death of the process; the sync is nobody's to wait for.
    const at = COUNTS + (commits % 2) * COUNTS_APART;
    this.#write(this.#counts.set(seen.commits, seen.key), COUNT, at);
    this.#timer ??= setTimeout(() => this.#sync(), SYNC).unref();
  }

  sawAudit(head: AuditHead): void {
    const { audit } = this.#seen;
    // Numbers only rise: what had this one, or a higher one, was cut off.
    if (audit !== null && head.seq <= audit.seq) this.#seen.missed ??= audit;
    this.#seen.audit = head;
    this.#record();
    this.#timer ??= setTimeout(() => this.#sync(), SYNC).unref();
  }

  close(): void {
    if (this.#closed) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#comeBack();
    this.#record();
    this.#closed = true;
    closeSync(this.#fd);
  }

  /** Leaves the slot as it is, or as it was removed: its database is not the one at the path any more. */
  abandon(): void {
    if (this.#closed) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#closed = true;
    closeSync(this.#fd);
  }

  #sync(): void {
    this.#timer = null;
    if (this.#closed) return;
    this.#comeBack();
    this.#record();
    fsync(this.#fd, () => {});
  }

  /** Somebody may have removed it: what is written into a file without a name is written for nobody. */
  #comeBack(): void {
    try {
      if (fstatSync(this.#fd).nlink > 0) return;
      const fd = makeSlot(this.#path, this.#token);
      closeSync(this.#fd);
      this.#fd = fd;
    } catch {
      // Not now; it is tried again.
    }
  }

  #record(): void {
    this.#turn++;
    this.#write(toRecord(this.#seen, this.#turn), RECORD, (this.#turn % RECORDS) * RECORD);
  }

  #write(bytes: Buffer, length: number, at: number): void {
    if (this.#closed) return;
    try {
      writeSync(this.#fd, bytes, 0, length, at);
    } catch {
      // A full disk: the commit itself has happened, and what stands here is only a lower bound.
    }
  }
}

/** The first entry that somebody has seen, and that is not there as it was. */
function missedIn(
  slots: readonly Slot[],
  { databaseId, epoch }: Seen,
  has: (entry: AuditHead) => boolean,
): AuditHead | undefined {
  const own = slots.filter(({ seen }) => seen.databaseId === databaseId && seen.epoch === epoch);
  return own.flatMap(({ seen }) => seen.audit ?? []).find((entry) => entry.seq > 0 && !has(entry));
}
