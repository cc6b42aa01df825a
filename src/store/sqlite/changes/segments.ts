import {
  closeSync,
  existsSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { syncFolder } from "../backup/files.ts";

/** One entry of the journal; of `commit`, `gap` and `drained` only the time is given. */
export interface Change {
  seq: number;
  kind: "put" | "set" | "gone" | "commit" | "gap" | "drained";
  name: string | null;
  key: string | null;
  row: string | null;
  at: number | null;
}

/** What a file of the journal belongs to. */
export interface SegmentHead {
  databaseId: string;
  epoch: number;
  /** Everything after this number, as far as it goes. */
  after: number;
}

/** A file is full then, and the next is begun. */
const FULL = 16 * 1024 * 1024;

export function changesFolder(path: string): string {
  return `${path}-changes`;
}

/** Appends to the newest file of an epoch, or begins one. What a crash has left of a last line is cut off. */
export class SegmentWriter {
  readonly #folder: string;
  readonly #full: number;
  readonly #head: Omit<SegmentHead, "after">;
  #file: string | null = null;
  #size = 0;
  /** The number of the last that is in the files. */
  last: number;

  constructor(folder: string, head: Omit<SegmentHead, "after">, full = FULL) {
    this.#full = full;
    this.#folder = folder;
    this.#head = head;
    const newest = segmentsIn(folder, head.databaseId, head.epoch).at(-1);
    this.last = newest?.head.after ?? 0;
    if (newest === undefined) return;
    this.#file = newest.path;
    const { changes, whole } = readSegment(newest.path);
    this.last = changes.at(-1)?.seq ?? newest.head.after;
    this.#size = whole;
    if (whole < statSync(newest.path).size) cut(newest.path, whole);
  }

  /** On the disk when it returns. */
  append(changes: readonly Change[], after: number): void {
    if (this.#file === null || this.#size > this.#full) this.#begin(after);
    const text = changes.map((change) => line(change)).join("");
    const fd = openSync(this.#file as string, "a");
    try {
      const bytes = Buffer.from(text);
      for (let at = 0; at < bytes.length;) at += writeSync(fd, bytes, at);
      fsyncSync(fd);
      this.#size += bytes.length;
    } finally {
      closeSync(fd);
    }
    this.last = changes.at(-1)?.seq ?? this.last;
  }

  #begin(after: number): void {
    const name = `${String(this.#head.epoch).padStart(5, "0")}-${String(after).padStart(16, "0")}.changes`;
    this.#file = join(this.#folder, name);
    const fd = openSync(this.#file, "wx", 0o600);
    try {
      const head = line({ ...this.#head, after } satisfies SegmentHead);
      writeSync(fd, head);
      fsyncSync(fd);
      this.#size = head.length;
    } finally {
      closeSync(fd);
    }
    syncFolder(this.#folder);
  }
}

/** The files of one database's epoch, in their order. */
export function segmentsIn(folder: string, databaseId: string, epoch: number): { path: string; head: SegmentHead }[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .filter((name) => name.endsWith(".changes"))
    .toSorted()
    .flatMap((name) => {
      const path = join(folder, name);
      const { head } = readSegment(path, { headOnly: true });
      return head !== null && head.databaseId === databaseId && head.epoch === epoch ? [{ path, head }] : [];
    });
}

/** Its lines up to the first that is not whole; `whole` is how many bytes they are. */
export function readSegment(
  path: string,
  { headOnly = false } = {},
): { head: SegmentHead | null; changes: Change[]; whole: number; damaged: boolean } {
  const bytes = readFileSync(path);
  const changes: Change[] = [];
  let head: SegmentHead | null = null;
  let whole = 0;
  for (let end = bytes.indexOf(10); end !== -1; end = bytes.indexOf(10, whole)) {
    const value = parse(bytes.toString("utf8", whole, end));
    if (value === null) return { head, changes, whole, damaged: true };
    if (head === null) head = value as SegmentHead;
    else changes.push(value as Change);
    whole = end + 1;
    if (headOnly) break;
  }
  return { head, changes, whole, damaged: false };
}

/** Those that nobody needs any more go. A backup needs what comes after it; without one, all of it may be needed. */
export function trimSegments(
  folder: string,
  now: { databaseId: string; epoch: number },
  backups: readonly { epoch: number; changes: number | null }[],
): void {
  for (let epoch = 0; epoch <= now.epoch; epoch++) {
    const from = backups
      .filter((one) => one.epoch === epoch && typeof one.changes === "number")
      .map(({ changes }) => changes as number);
    if (from.length === 0 && epoch === now.epoch) continue;
    // Of a time to which no backup leads any more, nothing.
    const upTo = from.length === 0 ? Number.POSITIVE_INFINITY : Math.min(...from);
    const segments = segmentsIn(folder, now.databaseId, epoch);
    for (const [i, { path }] of segments.entries()) {
      const next = segments[i + 1]?.head.after ?? (from.length === 0 ? 0 : Number.POSITIVE_INFINITY);
      if (next <= upTo) rmSync(path);
    }
  }
}

function line(value: object): string {
  const text = JSON.stringify(value);
  return `${crc32(text).toString(16).padStart(8, "0")} ${text}\n`;
}

function parse(text: string): unknown {
  const [sum, json] = [text.slice(0, 8), text.slice(9)];
  return Number.parseInt(sum, 16) === crc32(json) ? (JSON.parse(json) as unknown) : null;
}

function cut(path: string, size: number): void {
  const fd = openSync(path, "r+");
  try {
    ftruncateSync(fd, size);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}
