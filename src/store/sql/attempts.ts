import type { AttemptEnding, AttemptView, LogLine } from "../../core/jobs/attempts.ts";
import type { JobError } from "../../core/jobs/job.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import { fromJson } from "../../core/text/json.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { holderOf } from "../job-row.ts";
import type { AttemptLog } from "../store.ts";
import { RowGuard, type ColumnType, type Dialect, type Reads, type Script, together, type Tx } from "./script.ts";

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

/** What a running job's row says about its attempt. `n` counts the job's attempts that did not succeed, with this one. */
export interface HeldAttempt extends Pick<AttemptRow, "n" | "fence" | "attempt" | "worker" | "host" | "pid"> {
  startedAt: number | null;
}

export interface RunningJob extends HeldAttempt {
  key: JobKey;
  lane: number;
  policy: number;
  errors: number;
  crashes: number;
  expiresAt: number;
  priority: number;
  limits: string | null;
}

/** On PostgreSQL, a statement that waits for the job's row may count `n` too low unless it compares the fence. */
export function heldAttempt({ table }: Pick<Dialect, "table">): { columns: string; from: string } {
  return {
    columns: `
      job.fence, job.attempt, job.started_at as "startedAt", job.worker, process.host, process.pid,
      coalesce((select max(old.n) from ${table("attempts")} as old where old.job = job.key), 0) + 1 as n`,
    from: `${table("jobs")} as job left join ${table("processes")} as process on process.id = job.holder`,
  };
}

export interface EndedAttempt extends AttemptEnding {
  job: JobKey;
  held: HeldAttempt;
  keep: number;
}

/** Attempts that did not succeed, by job. They are written in the transaction that ends them, and go with their job. */
export class Attempts {
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#guard = new RowGuard(dialect, "attempts");
    this.#sql = statements(dialect, this.#guard);
  }

  /** Records ended attempts, whose leases this transaction found to be held. */
  *record(tx: Tx, at: number, ended: readonly EndedAttempt[]): Script<void> {
    const kept = ended.filter(({ keep }) => keep > 0);
    if (kept.length === 0) return;
    const rows = kept.map(({ job, outcome, error, held: { n, fence, attempt, startedAt, worker, host, pid } }): AttemptRow => {
      const failure = error && JSON.stringify(error);
      const started_at = startedAt ?? at;
      return { job, n, fence, attempt, outcome, started_at, ended_at: at, worker, host, pid, error: failure };
    });
    yield* tx.each(
      this.#sql.add,
      rows.map((row) => this.#guard.sign(row)),
    );
    const surplus = kept.flatMap(({ job, held: { n }, keep }) => (n > keep ? [{ job, upTo: n - keep }] : []));
    if (surplus.length > 0) yield* tx.each(this.#sql.trim, surplus);
  }

  /** Returns attempts, oldest first. `current` is the one that the job's row shows; another may have ended since it was read. */
  *of(db: Reads, { job, fence }: LeaseRef, current: AttemptView | undefined): Script<AttemptView[]> {
    const [rows, lines] = yield* together(
      db.all<AttemptRow>(this.#sql.of, { job, fence: current === undefined ? NO_FENCE : fence }),
      db.all<LogRow>(this.#sql.logs, { job }),
    );
    for (const row of rows) this.#guard.check(row, `Attempt ${row.attempt} of job ${row.job}`);
    const logs = Map.groupBy(lines, (line) => line.fence);
    const views = rows.map((row) => toAttempt(row, logs.get(row.fence)));
    if (current !== undefined) views.push(withLog(current, logs.get(fence)));
    return views;
  }

  *saveLogs(tx: Tx, logs: readonly AttemptLog[]): Script<void> {
    const rows = logs.flatMap(({ job, fence, first, lines }) =>
      lines.map(({ at, level, message, data }, i) => {
        return { job, fence, n: first + i, at, level, message, data: data === undefined ? null : JSON.stringify(data) };
      }),
    );
    yield* tx.each(this.#sql.addLine, rows);
    const surplus = logs.flatMap(({ job, fence, first, lines, keep }) => {
      const upTo = first + lines.length - 1 - keep;
      return upTo > 0 ? [{ job, fence, upTo }] : [];
    });
    if (surplus.length > 0) yield* tx.each(this.#sql.trimLines, surplus);
    yield* tx.each(
      this.#sql.dropLogs,
      logs.map(({ job, fence }) => ({ job, fence })),
    );
  }
}

const NO_FENCE = -1;

function toAttempt(row: AttemptRow, lines: LogRow[] | undefined): AttemptView {
  const { attempt, outcome, started_at: startedAt, ended_at: endedAt } = row;
  const view: AttemptView = { attempt, outcome, startedAt, endedAt, ...holderOf(row) };
  if (row.error !== null) view.error = fromJson(row.error) as JobError;
  return withLog(view, lines);
}

function withLog(view: AttemptView, lines: LogRow[] | undefined): AttemptView {
  if (lines === undefined) return view;
  view.log = lines.map(({ at, level, message, data }) => {
    return { at, level, message, ...(data === null ? {} : { data: JSON.parse(data) as unknown }) };
  });
  return view;
}

interface LogRow extends Omit<LogLine, "data"> {
  fence: Fence;
  data: string | null;
}

const LOG_COLUMNS = {
  job: "bigint",
  fence: "bigint",
  n: "bigint",
  at: "bigint",
  level: "text",
  message: "text",
  data: "text",
} as const;

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

function statements({ table, each }: Dialect, guard: RowGuard) {
  const attempts = table("attempts");
  const logs = table("logs");
  const attemptOf = { job: "bigint", fence: "bigint" } as const;
  const written = { ...COLUMNS, ...guard.type };
  return {
    add: each(written, (row) => `insert into ${attempts} (${Object.keys(written).join(", ")}) ${row.inserted}`),
    trim: each(
      { job: "bigint", upTo: "bigint" },
      (row) => `delete from ${attempts} as old ${row.using} where ${row.is("old", "job")} and old.n <= ${row.value("upTo")}`,
    ),
    // Lines are added even if the job no longer runs, because on PostgreSQL its end may commit first.
    addLine: each(
      LOG_COLUMNS,
      (row) => `
        insert into ${logs} (${Object.keys(LOG_COLUMNS).join(", ")})
        select ${Object.keys(LOG_COLUMNS).map(row.value).join(", ")} ${row.from(`${table("jobs")} as job`)}
        where ${row.is("job", ["key", "job"])} and job.fence >= ${row.value("fence")} on conflict do nothing`,
    ),
    trimLines: each(
      { ...attemptOf, upTo: "bigint" },
      (row) => `
        delete from ${logs} as line ${row.using} where ${row.is("line", "job", "fence")} and line.n <= ${row.value("upTo")}`,
    ),
    dropLogs: each(
      attemptOf,
      (row) => `
        delete from ${logs} as line ${row.using} where ${row.is("line", "job")} and line.fence < ${row.value("fence")} and not exists (
          select 1 from ${attempts} as old where old.job = line.job and old.fence = line.fence)`,
    ),
    logs: `select fence, at, level, message, data from ${logs} where job = :job order by fence, n`,
    of: `select ${Object.keys(COLUMNS).join(", ")}${guard.column} from ${attempts} where job = :job and fence <> :fence order by n`,
  };
}
