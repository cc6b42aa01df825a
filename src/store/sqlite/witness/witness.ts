import { closeSync, fsync, writeSync } from "node:fs";
import type { AuditHead } from "../../../core/audit-chain.ts";
import type { Alive } from "../../alive.ts";
import { RECORD, RECORDS, type Seen, toRecord } from "./record.ts";
import { dropSlots, mostSeen, readSlots, takeSlot } from "./slots.ts";

/** It is synced at most this often, in milliseconds. */
const SYNC = 1_000;
/**
 * And written at most this often, in milliseconds: where commits follow each other closely, to write it down after each
 * would cost a tenth of them. So much may be missing after a crash without anybody noticing.
 */
const PAUSE = 5;

/**
 * What this process has seen committed, written down outside the database after each commit of its own. Whoever opens
 * the database later compares: a log that was cut off, a file that was put back, a disk that forgot what it had synced.
 */
export class Witness {
  readonly #fd: number;
  #seen: Seen;
  #turn: number;
  #writtenAt = Number.NEGATIVE_INFINITY;
  #syncedAt = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | null = null;
  #closed = false;

  private constructor(fd: number, seen: Seen, turn: number) {
    this.#fd = fd;
    this.#seen = seen;
    this.#turn = turn;
  }

  /** `here` is what is in the database now, as it was found to be all that should be. */
  static open(path: string, { token, alive, here }: { token: string; alive: Alive; here: Seen }): Witness {
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
    }
    const witness = new Witness(fd, seen, turn);
    witness.#write();
    dropSlots(path, fd, token, alive);
    return witness;
  }

  /** After a commit of this process's own, not before. */
  saw(commits: number, key: number): void {
    if (commits <= this.#seen.commits && key <= this.#seen.key) return;
    this.#seen.commits = Math.max(commits, this.#seen.commits);
    this.#seen.key = Math.max(key, this.#seen.key);
    this.#soon();
  }

  sawAudit(head: AuditHead): void {
    if (head.seq <= (this.#seen.audit?.seq ?? 0)) return;
    this.#seen.audit = head;
    this.#soon();
  }

  close(): void {
    if (this.#closed) return;
    if (this.#timer !== null) this.#write();
    this.#closed = true;
    closeSync(this.#fd);
  }

  #soon(): void {
    if (this.#timer !== null) return;
    if (performance.now() - this.#writtenAt >= PAUSE) return this.#write();
    this.#timer = setTimeout(() => this.#write(), PAUSE).unref();
  }

  #write(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#closed) return;
    this.#turn++;
    try {
      writeSync(this.#fd, toRecord(this.#seen, this.#turn), 0, RECORD, (this.#turn % RECORDS) * RECORD);
    } catch {
      // A full disk: the commit itself has happened, and what stands here is only a lower bound.
      return;
    }
    this.#writtenAt = performance.now();
    if (this.#writtenAt - this.#syncedAt < SYNC) return;
    this.#syncedAt = this.#writtenAt;
    // Nobody waits for it.
    fsync(this.#fd, () => {});
  }
}
