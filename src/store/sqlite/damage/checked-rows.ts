import { ELSEWHERE } from "../../job-row.ts";
import { CHECKED, type CheckedJob, type CheckedTable, jobChecksum, rowChecksum } from "../checksum.ts";
import type { Connection, Value } from "../driver.ts";

/** So many rows are read at once, so that a check neither holds up writers nor pins the log for long. */
const STEP = 5_000;

export type Row = Record<string, Value>;

/** A table whose rows carry a checksum. */
export interface Checked {
  table: string;
  /** What people call its rows. */
  kind: string;
  key: readonly string[];
  /** What the checksum is made of, the key and the checksum; with `from`. */
  select: string;
  checksumOf: (row: Row) => number | null;
  /** The first part of the names of a value's columns, which stands beside its hash. */
  value?: string;
}

export const CHECKED_TABLES: readonly Checked[] = [
  {
    table: "holdfast_jobs",
    kind: "job",
    key: ["key"],
    select: `key, lane, priority, policy, created_at, id, slot, coalesce(body, input) as input, scheduled_for, limits, checksum
      from holdfast_jobs left join holdfast_inputs on job = key and input = '${ELSEWHERE}'`,
    checksumOf: (row) => jobChecksum(row as unknown as CheckedJob),
  },
  {
    ...checked("holdfast_notes", "checkpoint of job", ["job"]),
    checksumOf: (row) => (row["checkpoint"] === null ? null : rowChecksum("holdfast_notes", row as never)),
  },
  checked("holdfast_schedules", "schedule", ["key"]),
  checked("holdfast_events", "event", ["seq"]),
  checked("holdfast_ids", "id", ["id"]),
  checked("holdfast_builds", "build", ["key"]),
  { ...checked("holdfast_results", "result", ["key"]), value: "output" },
  { ...checked("holdfast_targets", "target", ["pipeline", "segment", "path"]), value: "value" },
];

function checked(table: CheckedTable, kind: string, key: readonly string[]): Checked {
  const columns = new Set([...key, ...CHECKED[table], "checksum"]);
  const select = `${[...columns].join(", ")} from ${table}`;
  return { table, kind, key, select, checksumOf: (row) => rowChecksum(table, row as never) };
}

/** All rows of a table, in the order of its key. */
export function eachPage(db: Connection, { table, key, select }: Checked, call: (rows: Row[]) => void): void {
  const names = key.map((name) => `${table}.${name}`).join(", ");
  const order = `order by ${names} limit ${STEP}`;
  let rows = db.prepare(`select ${select} ${order}`).all<Row>();
  const next = db.prepare(`select ${select} where (${names}) > (${key.map((name) => `:${name}`).join(", ")}) ${order}`);
  for (let last: string | null = null; rows.length > 0;) {
    call(rows);
    const end = Object.fromEntries(key.map((name) => [name, (rows.at(-1) as Row)[name] as Value]));
    // Where pages are damaged, the order may be, too.
    if (JSON.stringify(end) === last) return;
    last = JSON.stringify(end);
    rows = next.all<Row>(end);
  }
}

/** Gives each row without a checksum the one that fits what is there. */
export function fillChecksums(db: Connection): void {
  for (const one of CHECKED_TABLES) {
    const set = db.prepare(`update ${one.table} set checksum = ? where ${one.key.map((name) => `${name} = ?`).join(" and ")}`);
    eachPage(db, one, (rows) => {
      for (const row of rows)
        if (row["checksum"] === null) set.run(one.checksumOf(row), ...one.key.map((name) => row[name] as Value));
    });
  }
}
