import { column, type Connection, quoted, scalar, type Value } from "../../driver.ts";
import { isOfDamage } from "../../faults.ts";
import type { TableShape } from "../changes/replay.ts";

/** The rowid, or the values of the primary key, as SQL literals. */
type Key = string;

/** Unreadable rows lie between these keys; null: from the start, or to the end. */
interface Gap {
  after: Key | null;
  before: Key | null;
}

export interface SalvagedTable {
  table: string;
  saved: number;
  restored: number;
  /** Keys of rows that are in neither database, and key ranges in which there may have been some. */
  lost: string[];
}

const CHUNK_ROWS = 1_000;
const HIGHEST_ROWID = 2n ** 63n - 1n;

/** Copies a thousand rows at a time; on a damaged page it retries with fewer, and skips a single unreadable row. */
export class TableCopy {
  readonly table: string;
  saved = 0;
  restored = 0;
  readonly #db: Connection;
  readonly #shape: TableShape;
  readonly #key: readonly string[];
  readonly #tuple: string;
  readonly #gaps: Gap[] = [];
  /** Rows that break a constraint or have a wrong checksum, or of which only the key could be read. */
  readonly #refused: Key[] = [];

  constructor(db: Connection, shape: TableShape) {
    this.table = shape.name;
    this.#db = db;
    this.#shape = shape;
    this.#key = shape.key.map(quoted);
    this.#tuple = `(${this.#key.join(", ")})`;
  }

  get isWhole(): boolean {
    return this.#gaps.length + this.#refused.length === 0;
  }

  run(): void {
    const after = this.#columnsIn("damaged").length === 0 ? null : this.#walk(">");
    if (after === "done") return;
    // Keys other than rowids cannot be guessed, so rows between two damaged pages are lost.
    const before = after === null || this.#shape.hasRowids ? null : this.#walk("<");
    if (before !== "done") this.#gaps.push({ after, before });
  }

  /** Copies rows in one direction up to damage that it cannot pass, and returns the last key before that. */
  #walk(direction: ">" | "<"): Key | null | "done" {
    let from: Key | null = null;
    for (let size = CHUNK_ROWS; ;) {
      const { last, isCopied } = this.#step(direction, from, size);
      if (last === "done") return last;
      if (isCopied) {
        from = last;
        size = Math.min(CHUNK_ROWS, size * 2);
      } else if (size > 1) {
        size = Math.floor(size / 8) || 1;
      } else if (this.#shape.hasRowids) {
        const next = this.#nextReadable(BigInt(from ?? 0));
        if (next === null) return from;
        this.#gaps.push({ after: from, before: String(next) });
        from = String(next - 1n);
      } else if (last !== null) {
        this.#refused.push(last);
        from = last;
      } else {
        return from;
      }
    }
  }

  /** Copies up to `size` rows. `last` is null if not even the keys can be read. */
  #step(direction: ">" | "<", from: Key | null, size: number): { last: Key | null | "done"; isCopied: boolean } {
    const source = `damaged.${quoted(this.table)}${this.#shape.hasRowids ? " not indexed" : ""}`;
    const order = this.#key.map((name) => `${name} ${direction === ">" ? "asc" : "desc"}`).join(", ");
    // Use `>=`: for `>`, SQLite would read the page before that row, too.
    const beyond = this.#shape.hasRowids ? `>= ${BigInt(from ?? 0) + 1n}` : `${direction} (${from})`;
    const next = (limit: number) =>
      `from ${source} where ${from === null ? "true" : `${this.#tuple} ${beyond}`} order by ${order} limit ${limit}`;
    const literals = this.#key.map((name) => `quote(${name})`).join(" || ', ' || ");
    const keys = this.#reading(() => column<Key>(this.#db, `select ${literals} ${next(size)}`));
    const last = keys?.at(-1);
    if (keys === null || last === from) return { last: null, isCopied: false };
    if (last === undefined) return { last: "done", isCopied: true };
    // A damaged page may lead back to earlier rows.
    if (this.#shape.hasRowids && from !== null && BigInt(last) <= BigInt(from)) return { last: null, isCopied: false };
    // Copy as many rows as there are keys: one more would be a step onto the next page.
    const copied = this.#reading(() => this.#insert("damaged", next(keys.length)));
    this.saved += copied ?? 0;
    if (copied !== null && copied < keys.length) this.#refused.push(...keys.filter((key) => !this.#has(key)));
    return { last, isCopied: copied !== null };
  }

  #nextReadable(after: bigint): bigint | null {
    // Read every column, because even a page of garbage may have a rowid.
    const columns = this.#columnsIn("damaged").map((name) => `quote(${name})`);
    const first = (from: bigint) =>
      this.#reading(() => {
        const source = `damaged.${quoted(this.table)} not indexed where ${this.#tuple} >= ${from} order by ${this.#tuple} limit 1`;
        return this.#db.prepare(`select cast(${this.#key[0]} as text), ${columns.join(" || ")} from ${source}`).rows();
      });
    let unreadable = after;
    let step = 1n;
    for (; after + step < HIGHEST_ROWID && first(after + step) === null; step *= 2n) unreadable = after + step;
    if (after + step >= HIGHEST_ROWID) return null;
    let readable = after + step;
    while (readable - unreadable > 1n) {
      const middle = (readable + unreadable) / 2n;
      if (first(middle) === null) unreadable = middle;
      else readable = middle;
    }
    const rowid = first(readable)?.[0]?.[0];
    return rowid === undefined ? null : BigInt(rowid as string);
  }

  reject(key: readonly Value[]): void {
    const literals = key.map((value) => scalar<string>(this.#db, "select quote(?)", value));
    const one = literals.slice(0, this.#key.length).join(", ");
    this.#db.exec(`delete from main.${quoted(this.table)} where ${this.#tuple} = (${one})`);
    this.saved--;
    this.#refused.push(one);
  }

  fill(): void {
    if (this.#columnsIn("backup").length === 0) return;
    const from = `from backup.${quoted(this.table)} where`;
    for (const gap of this.#gaps) this.restored += this.#insert("backup", `${from} ${this.#within(gap)}`);
    for (const key of this.#refused) this.restored += this.#insert("backup", `${from} ${this.#tuple} = (${key})`);
  }

  result(): SalvagedTable {
    const { table, saved, restored } = this;
    const gaps = this.#shape.hasRowids ? this.#gaps.flatMap((gap) => this.#openPart(gap)) : this.#gaps;
    return { table, saved, restored, lost: [...gaps.map(gapText), ...this.#refused.filter((key) => !this.#has(key))] };
  }

  /** Returns the gap without the part at its start that the backup has filled. */
  #openPart({ after, before }: Gap): Gap[] {
    const rowid = this.#key[0] as string;
    const start = BigInt(after ?? 0);
    const filled = `select cast(max(${rowid}) as text) from main.${quoted(this.table)} where ${this.#within({ after, before })}
      having max(${rowid}) - ${start} = count(*)`;
    const from = BigInt(scalar<string | undefined>(this.#db, filled) ?? start);
    if (before !== null && from + 1n >= BigInt(before)) return [];
    return [{ after: from === 0n ? null : String(from), before }];
  }

  #within({ after, before }: Gap): string {
    const parts = [after && `${this.#tuple} > (${after})`, before && `${this.#tuple} < (${before})`];
    return parts.filter((part) => part !== null).join(" and ") || "true";
  }

  #has(key: Key): boolean {
    return scalar(this.#db, `select 1 from main.${quoted(this.table)} where ${this.#tuple} = (${key})`) !== undefined;
  }

  #insert(from: "damaged" | "backup", text: string): number {
    const columns = this.#columnsIn(from).join(", ");
    return this.#db.prepare(`insert or ignore into main.${quoted(this.table)} (${columns}) select ${columns} ${text}`).run();
  }

  /** Returns the columns that the table has there, and the rowid, which no list has. Empty: there is no such table. */
  #columnsIn(from: "damaged" | "backup"): string[] {
    const there = new Set(column<string>(this.#db, `select name from pragma_table_xinfo(?, '${from}')`, this.table));
    const { key, columns } = this.#shape;
    return there.size === 0 ? [] : columns.filter((name) => name === key[0] || there.has(name)).map(quoted);
  }

  /** Returns what `read` reads. Null: a page that the statement needs is damaged. */
  #reading<T>(read: () => T): T | null {
    try {
      return read();
    } catch (error) {
      if (!isOfDamage(error)) throw error;
      return null;
    }
  }
}

function gapText({ after, before }: Gap): string {
  if (before === null) return after === null ? "all" : `after ${after}`;
  return after === null ? `before ${before}` : `between ${after} and ${before}`;
}
