import {
  closeSync,
  fstatSync,
  fsync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";
import type { AuditHead } from "../../../core/recovery/audit.ts";
import type { Alive } from "../../alive.ts";
import { createFile, createFolder, modeLike } from "../faults.ts";
import { syncFolder } from "./backup/copy.ts";
import type { Known } from "./epoch.ts";

export interface Slot {
  token: string;
  seen: Seen & { turn: number };
}

/** The folder beside the database in which each process that has it open says what it has seen committed. */
export function witnessFolder(path: string): string {
  return `${path}-witness`;
}

/** What they say, the dead and those who have left among them. */
export function readSlots(path: string): Slot[] {
  const folder = witnessFolder(path);
  let names: string[];
  try {
    names = readdirSync(folder);
  } catch {
    return [];
  }
  return names.flatMap((token) => {
    try {
      const seen = fromRecords(readFileSync(join(folder, token)));
      return seen === null ? [] : [{ token, seen }];
    } catch {
      // Another process has just taken it over.
      return [];
    }
  });
}

/** The most that any process has seen of a database: a lower bound of what must be in it. Null: no process has written anything down. */
export function mostSeen(slots: readonly Slot[], databaseId?: string): Seen | null {
  const all = slots.filter(({ seen }) => databaseId === undefined || seen.databaseId === databaseId).map(({ seen }) => seen);
  // What is of an earlier epoch was given up.
  const epoch = Math.max(...all.map((seen) => seen.epoch));
  const [first, ...others] = all.filter((seen) => seen.epoch === epoch);
  if (first === undefined) return null;
  return others.reduce<Seen>((most, seen) => {
    const newer = seen.commits > most.commits || (seen.commits === most.commits && seen.key > most.key) ? seen : most;
    const audit = (seen.audit?.seq ?? 0) > (most.audit?.seq ?? 0) ? seen.audit : most.audit;
    const missed = seen.missed ?? most.missed;
    return { ...newer, key: Math.max(seen.key, most.key), audit, ...(missed === undefined ? {} : { missed }) };
  }, first);
}

/** For code that puts another database into this one's place: what it must go beyond. */
export function knownOutside(path: string): Known {
  const { epoch, commits, key } = mostSeen(readSlots(path)) ?? { epoch: 0, commits: 0, key: 0 };
  return { epoch, commits, key };
}

/**
 * A slot for the process of this token: that of one who is gone, with what stands in it, or a new one. So nothing that
 * was written down is lost on the way, and there are never more of them than there were processes at once.
 */
function takeSlot(path: string, token: string, alive: Alive): number {
  const folder = witnessFolder(path);
  createFolder(folder, modeLike(path));
  const own = join(folder, token);
  for (const { token: other } of readSlots(path)) {
    if (alive.isThere(other)) continue;
    try {
      renameSync(join(folder, other), own);
      return openSync(own, "r+");
    } catch {
      // Another process was faster.
    }
  }
  return makeSlot(path, token);
}

/** One with nothing in it. */
function makeSlot(path: string, token: string): number {
  const folder = witnessFolder(path);
  const mode = modeLike(path);
  createFolder(folder, mode);
  createFile(join(folder, token), mode);
  const fd = openSync(join(folder, token), "w+");
  syncFolder(folder);
  syncFolder(dirname(folder));
  return fd;
}

/** Those of processes that are gone, now that what they say stands in another, which is on the disk first. */
function dropSlots(path: string, own: number, token: string, alive: Alive): void {
  const gone = readSlots(path).filter((slot) => slot.token !== token && !alive.isThere(slot.token));
  if (gone.length === 0) return;
  fsyncSync(own);
  for (const slot of gone) rmSync(join(witnessFolder(path), slot.token), { force: true });
}

/** What a process has seen committed. */
interface Seen extends Known {
  databaseId: string;
  durability: string;
  /** The run of the host in which it was written. */
  boot: string;
  /** The last entry of the audit. */
  audit: AuditHead | null;
  /** One that was there once, and is not any more: it stays here whatever is written since, or a cut would heal by itself. */
  missed?: AuditHead;
}

/** One sector: it is written whole, or not. */
const RECORD = 512;
/** Two take turns, so that one that is torn leaves the other. */
const RECORDS = 2;

/** As people can read it, too: a checksum, then JSON, then blanks and a line's end. */
export function toRecord(seen: Seen, turn: number): Buffer {
  const text = JSON.stringify({ turn, ...seen });
  const line = Buffer.alloc(RECORD, " ");
  line.write(`${crc32(text).toString(16).padStart(8, "0")} ${text}`, "utf8");
  line[RECORD - 1] = 10;
  return line;
}

/** The newest that is whole, with the counts of after it; null: none is. */
export function fromRecords(bytes: Buffer): (Seen & { turn: number }) | null {
  let newest: (Seen & { turn: number }) | null = null;
  for (let i = 0; i < RECORDS; i++) {
    const line = bytes.toString("utf8", i * RECORD, (i + 1) * RECORD).trimEnd();
    const text = line.slice(9);
    if (text === "" || line.slice(0, 8) !== crc32(text).toString(16).padStart(8, "0")) continue;
    const record = JSON.parse(text) as Seen & { turn: number };
    if (newest === null || record.turn > newest.turn) newest = record;
  }
  return newest && { ...newest, ...counted(newest, bytes) };
}

/** After the records: what changes with every commit, as numbers, because a record costs four times what this does. */
const COUNTS = RECORD * RECORDS;
/** Two of these take turns, each in a sector of its own. */
const COUNTS_APART = RECORD;
const COUNT = 24;

/** The counts after a commit; they hold for one database and epoch. */
class Counts {
  readonly bytes = Buffer.alloc(COUNT);
  readonly #numbers = new Float64Array(this.bytes.buffer, this.bytes.byteOffset, 2);
  readonly #summed = this.bytes.subarray(0, 16);
  readonly #of: number;

  constructor(seen: Pick<Seen, "databaseId" | "epoch">) {
    this.#of = seedOf(seen);
  }

  set(commits: number, key: number): Buffer {
    this.#numbers[0] = commits;
    this.#numbers[1] = key;
    this.bytes.writeUInt32LE(crc32(this.#summed, this.#of), 16);
    return this.bytes;
  }
}

function counted(seen: Seen, bytes: Buffer): Pick<Seen, "commits" | "key"> {
  let { commits, key } = seen;
  for (let at = COUNTS; at + COUNT <= bytes.length; at += COUNTS_APART) {
    if (bytes.readUInt32LE(at + 16) !== crc32(bytes.subarray(at, at + 16), seedOf(seen))) continue;
    commits = Math.max(commits, bytes.readDoubleLE(at));
    key = Math.max(key, bytes.readDoubleLE(at + 8));
  }
  return { commits, key };
}

function seedOf({ databaseId, epoch }: Pick<Seen, "databaseId" | "epoch">): number {
  return crc32(`${databaseId} ${epoch}`);
}

/** It is synced at most this often, in milliseconds. */
const SYNC = 1_000;

/**
 * What this process has seen committed, written down outside the database after each commit of its own, before anybody
 * gets its answer. A process that opens the database later compares: a log that was cut off, a file that was put back, a disk that
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
    // It survives the death of the process; no caller waits for the sync.
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

  /** Another process may have removed it: what is written into a file without a name is lost. */
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

/** The first entry that a process has seen, and that is not there as it was. */
function missedIn(
  slots: readonly Slot[],
  { databaseId, epoch }: Seen,
  has: (entry: AuditHead) => boolean,
): AuditHead | undefined {
  const own = slots.filter(({ seen }) => seen.databaseId === databaseId && seen.epoch === epoch);
  return own.flatMap(({ seen }) => seen.audit ?? []).find((entry) => entry.seq > 0 && !has(entry));
}
