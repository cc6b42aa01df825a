import type { AttemptEnding, AttemptView } from "../../core/jobs/attempts.ts";
import type { JobError } from "../../core/jobs/job.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import { fromJson } from "../../core/text/json.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { holderOf } from "../job-row.ts";
import type { ColumnType, Dialect, EachParams, Reads, Script, Tx } from "./script.ts";

export interface AttemptRow {
  job: JobKey;
  n: number;
  fence: Fence;
  attempt: number;
  outcome: AttemptEnding["outcome"];
  started_at: number;
  ended_at: number;
  worker: string | null;
  host: string | null;
  pid: number | null;
  error: string | null;
}

/** What a store adds to the rows so that damage is noticed. */
export interface AttemptGuard {
  columns: string;
  check(row: AttemptRow): void;
  checksum: ((row: AttemptRow) => number) | null;
}

export interface EndedAttempt extends AttemptEnding {
  job: JobKey;
  /** How many of the job's attempts are kept. */
  keep: number;
}

type Held = Pick<AttemptRow, "job" | "n" | "fence" | "attempt" | "worker" | "host" | "pid"> & { startedAt: number | null };

/** Attempts that did not succeed, by job. They are written in the transaction that ends them, and go with their job. */
export class Attempts {
  readonly #guard: AttemptGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, guard: AttemptGuard) {
    this.#guard = guard;
    this.#sql = statements(dialect, guard);
  }

  /**
   * Called before the jobs' rows change, which still name the holders; each lease was found to be held in this transaction. The
   * first statement is sent at once, so that PostgreSQL runs it before the caller's next one.
   */
  *record(tx: Tx, at: number, ended: readonly EndedAttempt[]): Script<void> {
    const kept = new Map(ended.filter(({ keep }) => keep > 0).map((one) => [one.job, one]));
    if (kept.size === 0) return;
    const held = yield* tx.all<Held>(this.#sql.held, { jobs: [...kept.keys()] });
    const rows = held.map(({ startedAt, ...row }): AttemptRow => {
      const { outcome, error } = kept.get(row.job) as EndedAttempt;
      const times = { started_at: startedAt ?? at, ended_at: at };
      return Object.assign(row, times, { outcome, error: error && JSON.stringify(error) });
    });
    const { checksum } = this.#guard;
    yield* tx.each(
      this.#sql.add,
      rows.map((row): EachParams => (checksum === null ? { ...row } : { ...row, checksum: checksum(row) })),
    );
    const surplus = rows.flatMap(({ job, n }) => {
      const upTo = n - (kept.get(job) as EndedAttempt).keep;
      return upTo > 0 ? [{ job, upTo }] : [];
    });
    if (surplus.length > 0) yield* tx.each(this.#sql.trim, surplus);
  }

  /** Oldest first; without the one that `fence` names, which has ended after the caller has read the job's row. */
  *of(db: Reads, { job, fence }: LeaseRef): Script<AttemptView[]> {
    const rows = yield* db.all<AttemptRow>(this.#sql.of, { job, fence });
    for (const row of rows) this.#guard.check(row);
    return rows.map(toAttempt);
  }
}

function toAttempt(row: AttemptRow): AttemptView {
  const { attempt, outcome, started_at: startedAt, ended_at: endedAt } = row;
  const view: AttemptView = { attempt, outcome, startedAt, endedAt, ...holderOf(row) };
  if (row.error !== null) view.error = fromJson(row.error) as JobError;
  return view;
}

const COLUMNS = {
  job: "bigint",
  n: "bigint",
  fence: "bigint",
  attempt: "bigint",
  outcome: "text",
  started_at: "bigint",
  ended_at: "bigint",
  worker: "text",
  host: "text",
  pid: "bigint",
  error: "text",
} as const satisfies Record<keyof AttemptRow, ColumnType>;

function statements({ table, in: isIn, each }: Dialect, { columns, checksum }: AttemptGuard) {
  const attempts = table("attempts");
  const written = checksum === null ? COLUMNS : { ...COLUMNS, checksum: "bigint" as const };
  return {
    held: `
      select job.key as job, job.fence, job.attempt, job.started_at as "startedAt", job.worker, process.host, process.pid,
        coalesce((select max(old.n) from ${attempts} as old where old.job = job.key), 0) + 1 as n
      from ${table("jobs")} as job left join ${table("processes")} as process on process.id = job.holder
      where ${isIn("job.key", "bigint", ":jobs")}`,
    add: each(written, (row) => `insert into ${attempts} (${Object.keys(written).join(", ")}) ${row.inserted}`),
    trim: each(
      { job: "bigint", upTo: "bigint" },
      (row) => `delete from ${attempts} as old ${row.using} where ${row.is("old", "job")} and old.n <= ${row.value("upTo")}`,
    ),
    of: `select ${Object.keys(COLUMNS).join(", ")}${columns} from ${attempts} where job = :job and fence <> :fence order by n`,
  };
}
