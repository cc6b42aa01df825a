import { existsSync, fchmodSync, fsyncSync, ftruncateSync, readdirSync, readFileSync, rmSync, writeSync } from "node:fs";
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";
import { fileSize, modeLike, openFile } from "../../faults.ts";
import { syncFolder } from "../backup/copy.ts";

/** One entry of the journal; `commit`, `gap` and `drained` have only a time. */
export interface Change {
  seq: number;
  kind: "put" | "set" | "gone" | "commit" | "gap" | "drained";
  name: string | null;
  key: string | null;
  row: string | null;
  at: number | null;
}

/** A file of the journal. Its name has its epoch, and the change after which its own changes begin. */
interface Segment {
  path: string;
  epoch: number;
  after: number;
}

const FULL_BYTES = 16 * 1024 * 1024;

export function changesFolder(path: string): string {
  return `${path}-changes`;
}

/** Appends to the newest segment of an epoch, or begins one. After a failed append, use a new one: it reads how far files go. */
export class SegmentWriter {
  readonly #folder: string;
  readonly #full: number;
  readonly #of: { databaseId: string; epoch: number };
  #file: string | null = null;
  #size = 0;
  last: number;

  /** `kept` is the first change that is still in the database. From there on, the newest segment may be torn and is rewritten. */
  constructor(folder: string, of: { databaseId: string; epoch: number }, kept: number | null, full = FULL_BYTES) {
    this.#full = full;
    this.#folder = folder;
    this.#of = of;
    const newest = segmentsIn(folder, of.databaseId, of.epoch).at(-1);
    this.last = newest?.after ?? 0;
    if (newest === undefined) return;
    this.#file = newest.path;
    const { changes, ends, whole } = readSegment(newest.path);
    const first = kept === null ? -1 : changes.findIndex(({ seq }) => seq >= kept);
    const good = first === -1 ? changes.length : first;
    this.last = changes[good - 1]?.seq ?? newest.after;
    this.#size = first === -1 ? whole : (ends[good - 1] ?? 0);
    if (this.#size < fileSize(newest.path)) cut(newest.path, this.#size);
  }

  /** Appends changes. They are synced when it returns. */
  append(changes: readonly Change[], after: number): void {
    if (this.#file === null || this.#size > this.#full) this.#begin(after);
    const text = changes.map((change) => line(change)).join("");
    this.#size += write(this.#file as string, "a", text);
    this.last = changes.at(-1)?.seq ?? this.last;
  }

  #begin(after: number): void {
    const { databaseId, epoch } = this.#of;
    const name = `${String(epoch).padStart(5, "0")}-${String(after).padStart(16, "0")}-${databaseId}.changes`;
    this.#file = join(this.#folder, name);
    this.#size = write(this.#file, "wx", "");
    syncFolder(this.#folder);
  }
}

export function segmentsIn(folder: string, databaseId: string, epoch: number): Segment[] {
  return segmentsOf(folder, databaseId).filter((segment) => segment.epoch === epoch);
}

export function lastEpochIn(folder: string, databaseId: string): number {
  return Math.max(-1, ...segmentsOf(folder, databaseId).map(({ epoch }) => epoch));
}

function segmentsOf(folder: string, databaseId: string): Segment[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder)
    .toSorted()
    .flatMap((name) => {
      const [, epoch, after, id] = /^(\d+)-(\d+)-(.+)\.changes$/.exec(name) ?? [];
      return id === databaseId ? [{ path: join(folder, name), epoch: Number(epoch), after: Number(after) }] : [];
    });
}

/** Reads a segment. Damaged lines leave a gap. `whole`: length of all complete lines; `damaged`: the last of them is damaged. */
export function readSegment(path: string): { changes: Change[]; ends: number[]; whole: number; damaged: boolean } {
  const bytes = readFileSync(path);
  const changes: Change[] = [];
  const ends: number[] = [];
  let damaged = false;
  let whole = 0;
  for (let end = bytes.indexOf(10, whole); end !== -1; end = bytes.indexOf(10, whole)) {
    const value = parse(bytes.toString("utf8", whole, end));
    whole = end + 1;
    damaged = value === null;
    if (value === null) continue;
    changes.push(value);
    ends.push(whole);
  }
  return { changes, ends, whole, damaged };
}

/** Removes segments that no backup needs. A backup needs the segments after it; without a backup, all may be needed. */
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
    // Remove everything of an earlier epoch that has no backup any more.
    const upTo = from.length === 0 ? Number.POSITIVE_INFINITY : Math.min(...from);
    const segments = segmentsIn(folder, now.databaseId, epoch);
    for (const [i, { path }] of segments.entries()) {
      const next = segments[i + 1]?.after ?? (from.length === 0 ? 0 : Number.POSITIVE_INFINITY);
      if (next <= upTo) rmSync(path);
    }
  }
}

function line(value: Change): string {
  const text = JSON.stringify(value);
  return `${crc32(text).toString(16).padStart(8, "0")} ${text}\n`;
}

function parse(text: string): Change | null {
  const [sum, json] = [text.slice(0, 8), text.slice(9)];
  return /^[0-9a-f]{8} $/.test(text.slice(0, 9)) && Number.parseInt(sum, 16) === crc32(json)
    ? (JSON.parse(json) as Change)
    : null;
}

function write(path: string, flags: "a" | "wx", text: string): number {
  const bytes = Buffer.from(text);
  const mode = modeLike(dirname(path));
  using file = openFile(path, flags, mode);
  if (flags === "wx") fchmodSync(file.fd, mode);
  for (let at = 0; at < bytes.length;) at += writeSync(file.fd, bytes, at);
  fsyncSync(file.fd);
  return bytes.length;
}

function cut(path: string, size: number): void {
  using file = openFile(path, "r+");
  ftruncateSync(file.fd, size);
  fsyncSync(file.fd);
}
