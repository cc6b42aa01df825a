import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { type Log, readLog } from "./log.ts";

const MAGIC = "SQLite format 3\0";
/** SQLite's own locks are here; the page that holds this byte is never used. */
const LOCK_BYTE = 0x4000_0000;
const SIZES = [4_096, 1_024, 2_048, 8_192, 16_384, 32_768, 65_536, 512];
/** So many pages are looked at to find out how large a page is. */
const TRIED = 500;

export const KIND = { innerIndex: 2, innerTable: 5, leafIndex: 10, leafTable: 13 } as const;

/**
 * The pages of a database as they lie on the disk, those in its log in their place. They are read as bytes: SQLite stops at
 * the first that is damaged, and may do worse. No process that has the database open may do this: it would lose its locks.
 */
export class Pages implements Disposable {
  readonly size: number;
  /** Of each page, so much is SQLite's. */
  readonly usable: number;
  readonly count: number;
  readonly encoding: "utf8" | "utf16le" | "utf16be";
  /** False: the first page says nothing that can be believed. */
  readonly hasHeader: boolean;
  readonly log: Log | null;
  /** user_version and application_id. */
  readonly marks: { user: number; application: number };
  readonly #db: number;
  readonly #wal: number | null;
  readonly #inFile: number;
  /** Pages that are known to be something: of a tree, overflow, free. */
  readonly #claimed: Uint8Array;

  constructor(path: string) {
    this.#db = openSync(path, "r");
    this.log = readLog(`${path}-wal`);
    this.#wal = this.log === null ? null : openSync(`${path}-wal`, "r");
    const bytes = fstatSync(this.#db).size;
    const logged = this.log?.at.get(1);
    const header = Buffer.alloc(100);
    readSync(logged === undefined ? this.#db : (this.#wal as number), header, 0, 100, logged ?? 0);
    this.hasHeader = header.toString("latin1", 0, 16) === MAGIC && isSize(header.readUInt16BE(16));
    this.size = this.hasHeader ? sizeIn(header) : (this.log?.pageSize ?? guessSize(this.#db, bytes));
    const reserved = this.hasHeader ? (header[20] as number) : 0;
    this.usable = this.size - (reserved <= this.size - 480 ? reserved : 0);
    this.encoding = (["utf8", "utf16le", "utf16be"] as const)[(this.hasHeader ? header.readUInt32BE(56) : 1) - 1] ?? "utf8";
    this.marks = this.hasHeader
      ? { user: header.readInt32BE(60), application: header.readInt32BE(68) }
      : { user: 0, application: 0 };
    this.#inFile = Math.floor(bytes / this.size);
    this.count = Math.max(this.log?.pages || Math.ceil(bytes / this.size), saidIn(header, this.hasHeader, this.#inFile));
    this.#claimed = new Uint8Array(this.count + 1);
    this.#claimFree(header);
    if (this.hasHeader && header.readUInt32BE(52) !== 0) this.#claimMaps();
    this.claim(Math.floor(LOCK_BYTE / this.size) + 1);
  }

  /** Null: it is not there. */
  read(page: number): Buffer | null {
    if (page < 1 || page > this.count) return null;
    const logged = this.log?.at.get(page);
    if (logged === undefined && page > this.#inFile) return null;
    const bytes = Buffer.alloc(this.size);
    const [fd, at] = logged === undefined ? [this.#db, (page - 1) * this.size] : [this.#wal as number, logged];
    try {
      return readSync(fd, bytes, 0, this.size, at) === this.size ? bytes : null;
    } catch {
      // A disk that cannot read a sector any more.
      return null;
    }
  }

  isOutdated(page: number): boolean {
    return this.log?.outdated.has(page) ?? false;
  }

  claim(page: number): void {
    if (page >= 1 && page <= this.count) this.#claimed[page] = 1;
  }

  isClaimed(page: number): boolean {
    return this.#claimed[page] === 1;
  }

  *unclaimed(): Generator<number> {
    for (let page = 2; page <= this.count; page++) if (!this.isClaimed(page)) yield page;
  }

  [Symbol.dispose](): void {
    closeSync(this.#db);
    if (this.#wal !== null) closeSync(this.#wal);
  }

  /** What lies on free pages was given up. */
  #claimFree(header: Buffer): void {
    if (!this.hasHeader) return;
    for (let trunk = header.readUInt32BE(32); trunk >= 1 && trunk <= this.count && !this.isClaimed(trunk);) {
      const bytes = this.read(trunk);
      if (bytes === null) return;
      const n = bytes.readUInt32BE(4);
      if (n > this.usable / 4 - 2) return;
      this.claim(trunk);
      for (let i = 0; i < n; i++) this.claim(bytes.readUInt32BE(8 + 4 * i));
      trunk = bytes.readUInt32BE(0);
    }
  }

  /** With auto_vacuum, some pages say where others belong. */
  #claimMaps(): void {
    for (let page = 2; page <= this.count; page += Math.floor(this.usable / 5) + 1) this.claim(page);
  }
}

function isSize(said: number): boolean {
  return said === 1 || (said >= 512 && (said & (said - 1)) === 0);
}

function sizeIn(header: Buffer): number {
  const said = header.readUInt16BE(16);
  return said === 1 ? 65_536 : said;
}

/** A file that was cut off has fewer than its header says; one whose header is damaged may say anything. */
function saidIn(header: Buffer, hasHeader: boolean, inFile: number): number {
  const said = hasHeader ? header.readUInt32BE(28) : 0;
  return said <= inFile + 1_000_000 ? said : 0;
}

/** The size by which most pages begin as pages do. */
function guessSize(fd: number, bytes: number): number {
  const start = Buffer.alloc(8);
  let best = { size: SIZES[0] as number, share: 0 };
  for (const size of SIZES) {
    const pages = Math.min(TRIED, Math.floor(bytes / size));
    let fitting = 0;
    for (let page = 1; page < pages; page++) {
      readSync(fd, start, 0, 8, page * size);
      const content = start.readUInt16BE(5) || 65_536;
      if (Object.values<number>(KIND).includes(start[0] as number) && content <= size && content > size / 1_000) fitting++;
    }
    if (pages > 1 && fitting / pages > best.share * 1.2) best = { size, share: fitting / pages };
  }
  return best.size;
}
