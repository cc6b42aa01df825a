import {
  closeSync,
  existsSync,
  fchmodSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";
import { modeLike } from "../../faults.ts";
import { syncFolder } from "../backup/copy.ts";

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
/** A head is shorter than this. */
const HEAD = 512;

export function changesFolder(path: string): string {
  return `${path}-changes`;
}

/**
 * Appends to the newest file of an epoch, or begins one. Where an append has failed it is of no more use: another one finds
 * out how far the files go.
 */
export class SegmentWriter {
  readonly #folder: string;
  readonly #full: number;
  readonly #head: Omit<SegmentHead, "after">;
  #file: string | null = null;
  #size = 0;
  /** The number of the last that is in the files. */
  last: number;

  /**
   * `kept` is the first that the database still has: from there on, what is in the newest file may have been cut off by a
   * crash or a full disk, in any place, so it is written anew.
   */
  constructor(folder: string, head: Omit<SegmentHead, "after">, kept: number | null, full = FULL) {
    this.#full = full;
    this.#folder = folder;
    this.#head = head;
    removeUnbegun(folder);
    const newest = segmentsIn(folder, head.databaseId, head.epoch).at(-1);
    this.last = newest?.head.after ?? 0;
    if (newest === undefined) return;
    this.#file = newest.path;
    const { changes, ends, whole } = readSegment(newest.path);
    const first = kept === null ? -1 : changes.findIndex(({ seq }) => seq >= kept);
    const good = first === -1 ? changes.length : first;
    this.last = changes[good - 1]?.seq ?? newest.head.after;
    this.#size = first === -1 ? whole : (ends[good - 1] ?? headLength(newest.path));
    if (this.#size < statSync(newest.path).size) cut(newest.path, this.#size);
  }

  /** On the disk when it returns. */
  append(changes: readonly Change[], after: number): void {
    if (this.#file === null || this.#size > this.#full) this.#begin(after);
    const text = changes.map((change) => line(change)).join("");
    this.#size += write(this.#file as string, "a", text);
    this.last = changes.at(-1)?.seq ?? this.last;
  }

  #begin(after: number): void {
    const { databaseId, epoch } = this.#head;
    // Beside what another database of the same name has left.
    const name = `${String(epoch).padStart(5, "0")}-${String(after).padStart(16, "0")}-${databaseId.slice(0, 8)}.changes`;
    const file = join(this.#folder, name);
    this.#size = write(file, "wx", line({ ...this.#head, after } satisfies SegmentHead));
    this.#file = file;
    syncFolder(this.#folder);
  }
}

/** The files of one database's epoch, in their order. */
export function segmentsIn(folder: string, databaseId: string, epoch: number): { path: string; head: SegmentHead }[] {
  return segmentsOf(folder, databaseId).filter(({ head }) => head.epoch === epoch);
}

/** The highest epoch of a database that there are files of; -1: there are none. */
export function lastEpochIn(folder: string, databaseId: string): number {
  return Math.max(-1, ...segmentsOf(folder, databaseId).map(({ head }) => head.epoch));
}

function segmentsOf(folder: string, databaseId: string): { path: string; head: SegmentHead }[] {
  return namesIn(folder).flatMap((name) => {
    const path = join(folder, name);
    // Where the head is damaged, its name says as much.
    const head = headOf(path) ?? fromName(name, databaseId);
    return head?.databaseId === databaseId ? [{ path, head }] : [];
  });
}

function fromName(name: string, databaseId: string): SegmentHead | null {
  const [, epoch, after, id] = /^(\d+)-(\d+)-(.+)\.changes$/.exec(name) ?? [];
  return id === databaseId.slice(0, 8) ? { databaseId, epoch: Number(epoch), after: Number(after) } : null;
}

function namesIn(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .filter((name) => name.endsWith(".changes"))
    .toSorted();
}

/** A crash or a full disk has left less than a head: nothing was ever in it. */
function removeUnbegun(folder: string): void {
  for (const name of namesIn(folder)) if (!start(join(folder, name)).includes(10)) rmSync(join(folder, name));
}

function headOf(path: string): SegmentHead | null {
  const bytes = start(path);
  const end = bytes.indexOf(10);
  return end === -1 ? null : (parse(bytes.toString("utf8", 0, end)) as SegmentHead | null);
}

function headLength(path: string): number {
  return start(path).indexOf(10) + 1;
}

function start(path: string): Buffer {
  const bytes = Buffer.alloc(HEAD);
  const fd = openSync(path, "r");
  try {
    return bytes.subarray(0, readSync(fd, bytes, 0, HEAD, 0));
  } finally {
    closeSync(fd);
  }
}

/**
 * The changes in a file, and where each ends. Lines that are not what was written are left out: what they were is missing
 * among the numbers. `whole` is how far it goes in lines that have an end; `damaged`, whether the last of those is none.
 */
export function readSegment(path: string): { changes: Change[]; ends: number[]; whole: number; damaged: boolean } {
  const bytes = readFileSync(path);
  const changes: Change[] = [];
  const ends: number[] = [];
  let damaged = false;
  let whole = bytes.indexOf(10) + 1;
  for (let end = bytes.indexOf(10, whole); end !== -1; end = bytes.indexOf(10, whole)) {
    const value = parse(bytes.toString("utf8", whole, end));
    whole = end + 1;
    damaged = value === null;
    if (value === null) continue;
    changes.push(value as Change);
    ends.push(whole);
  }
  return { changes, ends, whole, damaged };
}

/** Those that no backup needs any more go. A backup needs what comes after it; without one, all of it may be needed. */
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
  return /^[0-9a-f]{8} $/.test(text.slice(0, 9)) && Number.parseInt(sum, 16) === crc32(json)
    ? (JSON.parse(json) as unknown)
    : null;
}

/** Synced; the answer is how many bytes it was. */
function write(path: string, flags: "a" | "wx", text: string): number {
  const bytes = Buffer.from(text);
  const mode = modeLike(dirname(path));
  const fd = openSync(path, flags, mode);
  try {
    if (flags === "wx") fchmodSync(fd, mode);
    for (let at = 0; at < bytes.length;) at += writeSync(fd, bytes, at);
    fsyncSync(fd);
    return bytes.length;
  } finally {
    closeSync(fd);
  }
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
