import { crc32 } from "node:zlib";
import type { AuditHead } from "../../../core/audit-chain.ts";
import type { Known } from "../epoch.ts";

/** What a process has seen committed. */
export interface Seen extends Known {
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
export const RECORD = 512;
/** Two take turns, so that one that is torn leaves the other. */
export const RECORDS = 2;

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
export const COUNTS = RECORD * RECORDS;
/** Two of these take turns, each in a sector of its own. */
export const COUNTS_APART = RECORD;
export const COUNT = 24;

/** The counts after a commit; they hold for one database and epoch. */
export class Counts {
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
