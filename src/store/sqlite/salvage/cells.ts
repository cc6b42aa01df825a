import { KIND, type Pages } from "./pages.ts";

/** As it stands in a row: whole numbers are big, so that none is bent. */
export type Datum = null | bigint | number | string | Buffer;

/** What could not be read. */
export class Unreadable extends Error {}

/** One cell of a page of a tree. */
export interface Cell {
  /** In a table's tree; of an inner page, no row below it on the left has a higher one. */
  rowid: bigint | null;
  /** Null in the inner pages of a table. */
  payload: (() => Payload) | null;
  /** Only inner pages have children. */
  child: number | null;
  /** Where it ends on its page. */
  end: number;
}

export interface Payload {
  bytes: Buffer;
  /** From here on it stood on a page that is all zeros; null: on none. */
  blank: number | null;
}

export interface Page {
  number: number;
  kind: number;
  cells: (Cell | null)[];
  /** The last child of an inner page. */
  right: number | null;
  /** False: what it says of itself is not so; there may be cells that were given up, or that are not counted. */
  sound: boolean;
}

/** Null: it is no page of a tree. Cells that cannot be read are null. */
export function pageOf(pages: Pages, number: number): Page | null {
  const bytes = pages.read(number);
  if (bytes === null) return null;
  const start = number === 1 ? 100 : 0;
  const kind = bytes[start] as number;
  if (!Object.values<number>(KIND).includes(kind)) return null;
  const isInner = kind === KIND.innerIndex || kind === KIND.innerTable;
  const from = start + (isInner ? 12 : 8);
  const count = bytes.readUInt16BE(start + 3);
  if (from + 2 * count > pages.usable) return null;
  const right = isInner ? bytes.readUInt32BE(start + 8) : null;
  const spans: Span[] = [];
  const cells = Array.from({ length: count }, (_, i) => {
    const at = bytes.readUInt16BE(from + 2 * i);
    if (at < from + 2 * count || at >= pages.usable) return null;
    const cell = orNull(() => cellAt(pages, bytes, kind, at));
    // The least that SQLite gives away.
    if (cell !== null) spans.push({ at, end: Math.max(cell.end, at + 4) });
    return cell;
  });
  const sound = spans.length === count && isSound(bytes, { start, pointers: from + 2 * count, usable: pages.usable }, spans);
  return { number, kind, cells, right, sound };
}

interface Span {
  at: number;
  end: number;
}

/** Cells, free blocks and lost bytes are, one beside the other, all that there is behind the start of the content. */
function isSound(
  bytes: Buffer,
  { start, pointers, usable }: { start: number; pointers: number; usable: number },
  cells: readonly Span[],
): boolean {
  const content = bytes.readUInt16BE(start + 5) || 65_536;
  if (content < pointers || content > usable) return false;
  const spans = [...cells];
  for (let at = bytes.readUInt16BE(start + 1); at !== 0;) {
    if (at < content || at + 4 > usable) return false;
    const end = at + bytes.readUInt16BE(at + 2);
    const next = bytes.readUInt16BE(at);
    if (end < at + 4 || (next !== 0 && next <= end)) return false;
    spans.push({ at, end });
    at = next;
  }
  spans.sort((a, b) => a.at - b.at);
  let [last, used] = [content, 0];
  for (const { at, end } of spans) {
    if (at < last || end > usable) return false;
    used += end - at;
    last = end;
  }
  return used + (bytes[start + 7] as number) === usable - content;
}

function cellAt(pages: Pages, bytes: Buffer, kind: number, start: number): Cell {
  const end = pages.usable;
  let at = start;
  let child: number | null = null;
  if (kind === KIND.innerIndex || kind === KIND.innerTable) {
    if (at + 4 > end) throw new Unreadable("a cell beyond its page");
    child = bytes.readUInt32BE(at);
    at += 4;
  }
  if (kind === KIND.innerTable) {
    const [rowid, taken] = rowidAt(bytes, at, end);
    return { rowid, payload: null, child, end: at + taken };
  }
  const [length, width] = varint(bytes, at, end);
  at += width;
  let rowid: bigint | null = null;
  if (kind === KIND.leafTable) {
    const [value, taken] = rowidAt(bytes, at, end);
    rowid = value;
    at += taken;
  }
  if (length > pages.usable * pages.count) throw new Unreadable("a row that is longer than its database");
  const local = localOf(pages.usable, length, kind);
  return {
    rowid,
    child,
    payload: () => payload(pages, bytes, at, length, local),
    end: at + local + (local < length ? 4 : 0),
  };
}

/** What does not fit into a cell goes on, page by page. */
function payload(pages: Pages, bytes: Buffer, at: number, length: number, local: number): Payload {
  if (at + local + (local < length ? 4 : 0) > pages.usable) throw new Unreadable("a cell beyond its page");
  if (local === length) return { bytes: bytes.subarray(at, at + length), blank: null };
  const parts = [bytes.subarray(at, at + local)];
  const passed = new Set<number>();
  let page = bytes.readUInt32BE(at + local);
  let blank: number | null = null;
  for (let left = length - local; left > 0;) {
    const more = pages.read(page);
    if (more === null || passed.has(page)) throw new Unreadable("a row whose rest is not there");
    passed.add(page);
    // Of the last page, zeros are also what says that there is no other.
    if (more.every((byte) => byte === 0)) blank = length - left;
    const taken = Math.min(left, pages.usable - 4);
    parts.push(more.subarray(4, 4 + taken));
    left -= taken;
    page = more.readUInt32BE(0);
  }
  return { bytes: Buffer.concat(parts), blank };
}

function localOf(usable: number, length: number, kind: number): number {
  const most = kind === KIND.leafTable ? usable - 35 : Math.floor(((usable - 12) * 64) / 255) - 23;
  if (length <= most) return length;
  const least = Math.floor(((usable - 12) * 32) / 255) - 23;
  const fitting = least + ((length - least) % (usable - 4));
  return fitting <= most ? fitting : least;
}

/** The values of a row; whatever is not exactly as long as it says is refused, and a text that ends in a page of zeros. */
export function valuesOf({ bytes: record, blank }: Payload, encoding: Pages["encoding"]): Datum[] {
  const [header, first] = varint(record, 0, record.length);
  if (header > record.length || header < first) throw new Unreadable("a row whose header is not one");
  const values: Datum[] = [];
  let body = header;
  for (let at = first; at < header;) {
    const [type, length] = varint(record, at, header);
    at += length;
    const width = widthOf(type);
    if (body + width > record.length) throw new Unreadable("a value beyond its row");
    const isText = type > 12 && type % 2 === 1;
    if (blank !== null && isText && body + width > blank) throw new Unreadable("a text whose rest was wiped out");
    values.push(valueOf(type, record.subarray(body, body + width), encoding));
    body += width;
  }
  if (body !== record.length) throw new Unreadable("a row that is longer than its values");
  return values;
}

const WIDTHS = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0];

function widthOf(type: number): number {
  if (type < 10) return WIDTHS[type] as number;
  if (type < 12) throw new Unreadable("a value of no kind");
  return Math.floor((type - 12) / 2);
}

function valueOf(type: number, bytes: Buffer, encoding: Pages["encoding"]): Datum {
  if (type === 0) return null;
  if (type === 8 || type === 9) return BigInt(type - 8);
  if (type === 7) return bytes.readDoubleBE(0);
  if (type < 7) return type === 6 ? bytes.readBigInt64BE(0) : BigInt(bytes.readIntBE(0, bytes.length));
  if (type % 2 === 0) return Buffer.from(bytes);
  return text(bytes, encoding);
}

/** What is no text in its encoding is none at all: it would come back as another. */
function text(bytes: Buffer, encoding: Pages["encoding"]): string {
  if (encoding === "utf16be")
    return Buffer.from(bytes.subarray(0, bytes.length & ~1))
      .swap16()
      .toString("utf16le");
  if (encoding === "utf16le") return bytes.toString("utf16le");
  try {
    return STRICT.decode(bytes);
  } catch {
    throw new Unreadable("a text that is none");
  }
}

const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Lengths and kinds: small numbers, and very many of them. */
function varint(bytes: Buffer, at: number, end: number): [value: number, length: number] {
  let value = 0;
  for (let i = 0; i < 7 && at + i < end; i++) {
    const byte = bytes[at + i] as number;
    if (byte < 0x80) return [value * 128 + byte, i + 1];
    value = value * 128 + (byte & 0x7f);
  }
  throw new Unreadable("a length that is none");
}

function rowidAt(bytes: Buffer, at: number, end: number): [value: bigint, length: number] {
  let value = 0n;
  for (let i = 0; i < 9 && at + i < end; i++) {
    const byte = bytes[at + i] as number;
    if (i === 8) return [BigInt.asIntN(64, (value << 8n) | BigInt(byte)), 9];
    value = (value << 7n) | BigInt(byte & 0x7f);
    if (byte < 0x80) return [value, i + 1];
  }
  throw new Unreadable("a number that ends nowhere");
}

export function orNull<T>(read: () => T): T | null {
  try {
    return read();
  } catch (error) {
    if (error instanceof Unreadable) return null;
    throw error;
  }
}
