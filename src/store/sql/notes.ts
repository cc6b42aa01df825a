import type { JobState } from "../../core/jobs/job.ts";
import { leaseState, type LeaseRef, type LeaseState } from "../../core/jobs/lease.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import type { ProgressReport } from "../store.ts";
import type { Attempts } from "./attempts.ts";
import { type Access, type Dialect, type Reads, type Script, type Tx, RowGuard } from "./script.ts";
import type { ItemTable } from "./work/items.ts";

export class LeaseStates {
  readonly #sql: string;

  constructor({ table, in: isIn }: Dialect) {
    this.#sql = `select key, state, fence from ${table("jobs")} where ${isIn("key", "bigint", ":jobs")}`;
  }

  *of(db: Reads, leases: readonly LeaseRef[]): Script<LeaseState[]> {
    if (leases.length === 0) return [];
    type Row = { key: JobKey; state: JobState; fence: Fence };
    const rows = yield* db.all<Row>(this.#sql, { jobs: leases.map(({ job }) => job) });
    const byKey = new Map(rows.map((row) => [row.key, row]));
    return leases.map((lease) => leaseState(lease, byKey.get(lease.job)));
  }
}

interface NoteRow {
  job: JobKey;
  checkpoint: string | null;
}

interface Parts {
  items: ItemTable;
  attempts: Attempts;
}

/** Stores notes beside the job's row, whose input is not rewritten. The row is locked first: the attempt ends before or after. */
export class Notes {
  readonly #parts: Parts;
  readonly #guard: RowGuard;
  readonly #states: LeaseStates;
  readonly #access: Access;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: Parts, access: Access) {
    this.#parts = parts;
    this.#states = new LeaseStates(dialect);
    this.#access = access;
    this.#guard = new RowGuard(dialect, "notes");
    this.#sql = statements(dialect, this.#guard);
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]> {
    const has = (kind: string) => reports.some((report) => kind in report);
    const operation = has("checkpoint") ? "checkpoint" : has("cost") ? "costs" : "progress";
    return this.#access.write(operation, (tx) => this.save(tx, reports));
  }

  *save(tx: Tx, reports: readonly ProgressReport[]): Script<LeaseState[]> {
    const { items, attempts } = this.#parts;
    const costs = reports.filter((report) => "cost" in report);
    const logs = reports.filter((report) => "lines" in report);
    let isHeld = yield* this.#saveNewest(tx, reports);
    for (const report of reports) if ("checkpoint" in report) isHeld = (yield* this.#saveCheckpoint(tx, report)) && isHeld;
    if (costs.length > 0) isHeld = (yield* items.saveCosts(tx, costs)).size === costs.length && isHeld;
    if (logs.length > 0) yield* attempts.saveLogs(tx, logs);
    // Lines are added even if the attempt is no longer held.
    return isHeld && logs.length === 0 ? reports.map(() => "held") : yield* this.#states.of(tx, reports);
  }

  #saveCheckpoint(tx: Tx, { job, fence, checkpoint }: LeaseRef & { checkpoint: string | null }): Script<boolean> {
    return tx.run(this.#sql.checkpoint, { ...this.#guard.sign({ job, checkpoint }), fence });
  }

  /** Saves the newest progress of each attempt. No database can store a NUL in a text, or read what follows it. */
  *#saveNewest(tx: Tx, reports: readonly ProgressReport[]): Script<boolean> {
    const newest = new Map(
      reports.flatMap((report) => {
        if (!("fraction" in report)) return [];
        const { job, fence, fraction } = report;
        return [[`${job} ${fence}`, { job, fence, fraction, message: report.message?.replaceAll("\0", "\uFFFD") ?? null }]];
      }),
    );
    return newest.size === 0 || (yield* tx.each(this.#sql.progress, [...newest.values()])) === newest.size;
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#access.read((db) => this.#load(db, job));
  }

  *#load(db: Reads, job: JobKey): Script<string | null> {
    const row = yield* db.get<NoteRow>(this.#sql.load, { job });
    if (row !== undefined) this.#guard.check(row, `The checkpoint of job ${job}`);
    return row?.checkpoint ?? null;
  }
}

function statements(dialect: Dialect, guard: RowGuard) {
  const { table, each } = dialect;
  const reported = { job: "bigint", fence: "bigint", fraction: "double precision", message: "text" } as const;
  return {
    checkpoint: `
      insert into ${table("notes")} (job, checkpoint${guard.column})
      select key, :checkpoint${guard.value} from (
        select key from ${table("jobs")} as job where key = :job and fence = :fence and coalesce(state, '') = 'running'
        ${dialect.lockingOf("job")}) as held where true
      on conflict (job) do update set checkpoint = excluded.checkpoint${guard.update}`,
    progress: each(
      reported,
      ({ value, from }) => `
      insert into ${table("notes")} (job, fraction, message)
      select job.key, ${value("fraction")}, ${value("message")} ${from(`${table("jobs")} as job`)}
      where job.key = ${value("job")} and job.fence = ${value("fence")} and coalesce(job.state, '') = 'running'
      order by job.key ${dialect.lockingOf("job")}
      on conflict (job) do update set fraction = excluded.fraction, message = excluded.message`,
    ),
    load: `select job, checkpoint${guard.column} from ${table("notes")} where job = :job`,
  };
}
