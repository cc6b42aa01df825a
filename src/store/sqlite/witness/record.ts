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

/** The newest that is whole; null: none is. */
export function fromRecords(bytes: Buffer): (Seen & { turn: number }) | null {
  let newest: (Seen & { turn: number }) | null = null;
  for (let i = 0; i < RECORDS; i++) {
    const line = bytes.toString("utf8", i * RECORD, (i + 1) * RECORD).trimEnd();
    const text = line.slice(9);
    if (text === "" || line.slice(0, 8) !== crc32(text).toString(16).padStart(8, "0")) continue;
    const record = JSON.parse(text) as Seen & { turn: number };
    if (newest === null || record.turn > newest.turn) newest = record;
  }
  return newest;
}
