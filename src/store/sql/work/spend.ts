import type { Amount } from "../../../core/pipelines/budget.ts";
import type { BuildRow } from "../../builds.ts";
import type { SpendSlice } from "../../work.ts";
import { type Dialect, type Reads, type Script, together } from "../script.ts";

/** At most `SLICES` × `SLICE_ROWS` results are read, however many a build has: the first rows stand for a longer slice. */
const SLICES = 60;
const SLICE_ROWS = 100;

/** Reads what results cost over time, by their keys, because an index by build or time would cost each settle. */
export class Spend {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  *read(db: Reads, build: Pick<BuildRow, "key" | "createdAt">, until: number): Script<SpendSlice[]> {
    const first = yield* this.#firstKey(db, build.createdAt);
    const end = yield* this.#firstKey(db, until + 1);
    const length = Math.ceil((end - first) / SLICES);
    const slices = Array.from({ length: SLICES }, (_, i) => first + i * length)
      .filter((from) => from < end)
      .map((from) => ({ from, length: Math.min(length, end - from) }));
    type Row = Amount & { at: number | null };
    const read = yield* together(
      ...slices.map((slice) => {
        const to = slice.from + Math.min(slice.length, SLICE_ROWS);
        return db.get<Row>(this.#sql.slice, { build: build.key, from: slice.from, to });
      }),
    );
    return slices.flatMap((slice, i) => {
      const { at = null, micros = 0, tokens = 0 } = read[i] ?? {};
      const weight = Math.max(1, slice.length / SLICE_ROWS);
      return at === null ? [] : { at, cost: { micros: Math.round(micros * weight), tokens: Math.round(tokens * weight) } };
    });
  }

  /** Returns the first key from an instant on, or the end of the table. Keys rise with time, so it bisects. */
  *#firstKey(db: Reads, from: number): Script<number> {
    let low = 1;
    let end = ((yield* db.get<{ last: number | null }>(this.#sql.last))?.last ?? 0) + 1;
    while (low < end) {
      const middle = Math.floor((low + end) / 2);
      const row = yield* db.get<{ key: number; at: number }>(this.#sql.next, { key: middle });
      if (row !== undefined && row.at < from) low = row.key + 1;
      else end = middle;
    }
    return low;
  }
}

function sum(column: string): string {
  return `cast(coalesce(sum(${column}), 0) as bigint) as ${column}`;
}

function statements({ table }: Dialect) {
  const results = table("results");
  return {
    last: `select max(key) as last from ${results}`,
    next: `select key, at from ${results} where key >= :key order by key limit 1`,
    slice: `
      select max(at) as at, ${sum("micros")}, ${sum("tokens")} from ${results}
      where key >= :from and key < :to and build = :build and micros + tokens > 0`,
  };
}
