import type { JobKey } from "../../../core/ids.ts";
import type { Connection, Value } from "../driver.ts";
import { SUMMED, type SummedRow, wholeSum } from "../look.ts";
import { noteSum } from "../notes.ts";
import { rowSum } from "../row-sum.ts";
import { SCHEDULE, scheduleSum, type SummedSchedule } from "../schedule-guard.ts";
import * as sums from "./sums.ts";

/** So many rows are read at once: whoever writes meanwhile is not held up, and the log not pinned for long. */
const STEP = 5_000;

export type Row = Record<string, Value>;

/** A table whose rows have a sum. */
export interface SummedTable {
  table: string;
  /** What people call what is in it. */
  kind: string;
  key: readonly string[];
  /** What its sum covers, the key, and the sum; with `from`. */
  select: string;
  sumOf: (row: never) => number;
  /** What it is called in `select`, where that is not its name. */
  alias?: string;
  /** The column of a value that has a hash: the first part of its name. */
  value?: string;
}

export const SUMMED_TABLES: readonly SummedTable[] = [
  {
    table: "holdfast_jobs",
    alias: "job",
    kind: "job",
    key: ["key"],
    select: SUMMED,
    sumOf: (row: SummedRow) => wholeSum(row),
  },
  {
    table: "holdfast_notes",
    kind: "checkpoint or progress of job",
    key: ["job"],
    select: "job, checkpoint, fraction, message, sum from holdfast_notes",
    sumOf: noteSum as (row: never) => number,
  },
  {
    table: "holdfast_schedules",
    kind: "schedule",
    key: ["key"],
    select: `${SCHEDULE} from holdfast_schedules`,
    sumOf: (row: SummedSchedule) => scheduleSum(row),
  },
  {
    table: "holdfast_events",
    kind: "event",
    key: ["seq"],
    select: "seq, type, at, transition, job, build, data, sum from holdfast_events",
    sumOf: ({ type, at, transition, job, build, data }: Record<string, string | number | null>) =>
      rowSum(...([type, at, transition, job, build, data] as (string | number | null)[])),
  },
  {
    table: "holdfast_ids",
    kind: "id",
    key: ["id"],
    select: "id, job, name, chosen, ended, sum from holdfast_ids",
    sumOf: ({ id, job, name, chosen, ended }: NamedId) =>
      sums.idSum(id, job, name, chosen) + (ended === null ? 0 : sums.endedSum(ended)),
  },
  {
    table: "holdfast_counters",
    kind: "counter of a limit",
    key: ["id"],
    select: `id, ${sums.COUNTER}, sum from holdfast_counters`,
    sumOf: (row: sums.SummedCounter) => sums.counterSum(row),
  },
  {
    table: "holdfast_builds",
    kind: "build",
    key: ["key"],
    select: `${sums.BUILD}, sum from holdfast_builds`,
    sumOf: (row: sums.SummedBuild) => sums.buildSum(row),
  },
  {
    table: "holdfast_results",
    kind: "result",
    key: ["key"],
    select: `key, ${sums.RESULT}, sum from holdfast_results`,
    sumOf: (row: sums.SummedResult) => sums.resultSum(row),
    value: "output",
  },
  {
    table: "holdfast_targets",
    kind: "target",
    key: ["pipeline", "segment", "path"],
    select: `${sums.TARGET}, sum from holdfast_targets`,
    sumOf: (row: sums.SummedTarget) => sums.targetSum(row),
    value: "value",
  },
];

interface NamedId {
  id: string;
  job: JobKey;
  name: string;
  chosen: number;
  ended: string | null;
}

/** All rows of a table in the order of its key; `without`: those that have no sum. */
export function eachPage(db: Connection, summed: SummedTable, call: (rows: Row[]) => void, without = false): void {
  const { table, alias = table, key, select } = summed;
  const names = key.map((name) => `${alias}.${name}`).join(", ");
  const only = without ? `${alias}.sum is null` : "true";
  const order = `order by ${names} limit ${STEP}`;
  const after = `(${names}) > (${key.map((name) => `:${name}`).join(", ")})`;
  let rows = db.prepare(`select ${select} where ${only} ${order}`).all<Row>();
  const next = db.prepare(`select ${select} where ${after} and ${only} ${order}`);
  for (let last: string | null = null; rows.length > 0;) {
    call(rows);
    const end = Object.fromEntries(key.map((name) => [name, (rows.at(-1) as Row)[name] as Value]));
    // Where pages are damaged, the order may be, too.
    if (JSON.stringify(end) === last) return;
    last = JSON.stringify(end);
    rows = next.all<Row>(end);
  }
}
