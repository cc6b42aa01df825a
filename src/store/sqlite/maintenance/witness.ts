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
import type { Durability } from "../../store.ts";
import { createFile, createFolder, modeLike } from "../faults.ts";
import { syncFolder } from "./backup/copy.ts";
import type { Known } from "./epoch.ts";

export interface Slot {
  token: string;
  seen: Seen & { turn: number };
}

/** The folder in which each process that has the database open records what it has seen committed. */
export function witnessFolder(path: string): string {
  return `${path}-witness`;
}

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
      return [];
    }
  });
}

/** Returns the most that any process has seen of a database, which it must contain at least. Null: nothing is recorded. */
export function mostSeen(slots: readonly Slot[], databaseId?: string): Seen | null {
  const all = slots.filter(({ seen }) => databaseId === undefined || seen.databaseId === databaseId).map(({ seen }) => seen);
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

export function knownOutside(path: string): Known {
  const { epoch, commits, key } = mostSeen(readSlots(path)) ?? { epoch: 0, commits: 0, key: 0 };
  return { epoch, commits, key };
}

/** Takes over a dead process's slot with its content, or makes one, so that no record is lost and slots do not pile up. */
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
      // Another process has taken this slot.
    }
  }
  return makeSlot(path, token);
}

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

/** Removes slots of dead processes, after it has synced this process's slot, which has their content. */
function dropSlots(path: string, own: number, token: string, alive: Alive): void {
  const gone = readSlots(path).filter((slot) => slot.token !== token && !alive.isThere(slot.token));
  if (gone.length === 0) return;
  fsyncSync(own);
  for (const slot of gone) rmSync(join(witnessFolder(path), slot.token), { force: true });
}

interface Seen extends Known {
  databaseId: string;
  durability: Durability;
  boot: string;
  audit: AuditHead | null;
  /** Audit entry that has vanished. It stays recorded, or the next entry would hide that the audit was cut off. */
  missed?: AuditHead;
}

/** Size of a record: one sector, which a disk writes whole or not at all. */
const RECORD_BYTES = 512;
/** Two records take turns, so that a torn one leaves the other. */
const RECORDS = 2;

function fromRecords(bytes: Buffer): (Seen & { turn: number }) | null {
  let newest: (Seen & { turn: number }) | null = null;
  for (let i = 0; i < RECORDS; i++) {
    // The text behind the line break is the end of an earlier, longer record.
    const [line = ""] = bytes.toString("latin1", i * RECORD_BYTES, (i + 1) * RECORD_BYTES).split("\n", 1);
    const text = line.slice(CHECKSUM_CHARS + 1);
    if (text === "" || line.slice(0, CHECKSUM_CHARS) !== toHex(crc32(text))) continue;
    const record = JSON.parse(text) as Seen & { turn: number };
    if (newest === null || record.turn > newest.turn) newest = record;
  }
  return newest;
}

const CHECKSUM_CHARS = 8;

function toHex(checksum: number): string {
  return checksum.toString(16).padStart(CHECKSUM_CHARS, "0");
}

const SYNC_INTERVAL_MS = 1_000;

/** Records commits before callers are answered. This reveals a cut log, a replaced file, or a disk that lost writes. */
export class Witness {
  readonly token: string;
  readonly #path: string;
  #fd: number;
  readonly #seen: Seen;
  /** Beginning of the record's JSON text, which does not change with each commit. */
  #beginning = "";
  #beginningChecksum = 0;
  #turn: number;
  #timer: NodeJS.Timeout | null = null;
  #closed = false;

  /** `here` is the content of the database, which was found complete. `has` tells whether it contains an entry of the audit. */
  constructor(
    path: string,
    { token, alive, here, has }: { token: string; alive: Alive; here: Seen; has: (entry: AuditHead) => boolean },
  ) {
    const slots = readSlots(path);
    const most = mostSeen(slots, here.databaseId);
    const seen = (this.#seen = { ...here });
    this.#path = path;
    this.token = token;
    this.#turn = Math.max(0, ...slots.map((slot) => slot.seen.turn));
    this.#fd = takeSlot(path, token, alive);
    if (most !== null && most.epoch === here.epoch) {
      seen.commits = Math.max(here.commits, most.commits);
      seen.key = Math.max(here.key, most.key);
      if ((most.audit?.seq ?? 0) > (here.audit?.seq ?? 0)) seen.audit = most.audit;
      const missed = most.missed ?? missedIn(slots, here, has);
      if (missed !== undefined) seen.missed = missed;
    }
    this.#begin();
    dropSlots(path, this.#fd, token, alive);
  }

  /** Called after each commit. One that only replaces jobs raises no number, but the record also wakes other processes. */
  record(commits: number, key: number): void {
    const seen = this.#seen;
    if (commits > seen.commits) seen.commits = commits;
    if (key > seen.key) seen.key = key;
    // The write survives the death of the process, so no caller waits for the sync.
    this.#write();
    this.#timer ??= setTimeout(() => this.#sync(), SYNC_INTERVAL_MS).unref();
  }

  recordAudit(head: AuditHead): void {
    const { audit } = this.#seen;
    // Numbers only rise, so an entry with this number, or a higher one, was cut off.
    if (audit !== null && head.seq <= audit.seq) this.#seen.missed ??= audit;
    this.#seen.audit = head;
    this.#begin();
    this.#timer ??= setTimeout(() => this.#sync(), SYNC_INTERVAL_MS).unref();
  }

  close(): void {
    if (this.#closed) return;
    this.#restoreFile();
    this.abandon();
  }

  /** Closes without a last record, because the file at the path is not this database any more. */
  abandon(): void {
    if (this.#closed) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#closed = true;
    closeSync(this.#fd);
  }

  #sync(): void {
    this.#timer = null;
    if (this.#closed) return;
    this.#restoreFile();
    fsync(this.#fd, () => {});
  }

  /** Makes a new slot if another process has removed it: writes into a file without a name would be lost. */
  #restoreFile(): void {
    try {
      if (fstatSync(this.#fd).nlink > 0) return;
      const fd = makeSlot(this.#path, this.token);
      closeSync(this.#fd);
      this.#fd = fd;
      this.#write();
    } catch {
      // The next sync tries again.
    }
  }

  #begin(): void {
    const { commits: _, key: __, ...others } = this.#seen;
    this.#beginning = JSON.stringify(others).slice(0, -1);
    this.#beginningChecksum = crc32(this.#beginning);
    this.#write();
  }

  #write(): void {
    if (this.#closed) return;
    this.#turn++;
    const { commits, key } = this.#seen;
    const counts = `,"turn":${this.#turn},"commits":${commits},"key":${key}}`;
    const line = `${toHex(crc32(counts, this.#beginningChecksum))} ${this.#beginning}${counts}\n`;
    try {
      writeSync(this.#fd, line, (this.#turn % RECORDS) * RECORD_BYTES, "latin1");
    } catch {
      // Ignore a full disk: the commit itself has happened, and the record is only a lower bound.
    }
  }
}

function missedIn(
  slots: readonly Slot[],
  { databaseId, epoch }: Seen,
  has: (entry: AuditHead) => boolean,
): AuditHead | undefined {
  const own = slots.filter(({ seen }) => seen.databaseId === databaseId && seen.epoch === epoch);
  return own.flatMap(({ seen }) => seen.audit ?? []).find((entry) => entry.seq > 0 && !has(entry));
}
