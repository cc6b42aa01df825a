import type { JobState } from "../../core/jobs/job.ts";
import { leaseState, type LeaseRef, type LeaseState } from "../../core/jobs/lease.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import type { ProgressReport } from "../store.ts";
import type { Access, Dialect, Params, Reads, Script, Tx } from "./script.ts";

/** Whether leases are still held. */
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

/** What a store adds to the rows so that damage is noticed. */
export interface NoteGuard {
  columns: string;
  saved: { columns: string; values: string; updates: string; params: (row: NoteRow) => Params };
  check(row: NoteRow): void;
}

/**
 * Checkpoints and progress, beside the job's row so that saving them does not rewrite its input. The job's row is locked first,
 * so that the end of the attempt comes before or after.
 */
export class Notes {
  readonly #guard: NoteGuard;
  readonly #states: LeaseStates;
  readonly #access: Access;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, guard: NoteGuard, access: Access) {
    this.#guard = guard;
    this.#states = new LeaseStates(dialect);
    this.#access = access;
    this.#sql = statements(dialect, guard);
  }

  saveCheckpoint(lease: LeaseRef, value: string | null): Promise<LeaseState> {
    return this.#access.write("checkpoint", (tx) => this.writeCheckpoint(tx, lease, value));
  }

  *writeCheckpoint(tx: Tx, { job, fence }: LeaseRef, checkpoint: string | null): Script<LeaseState> {
    const params = { job, fence, checkpoint, ...this.#guard.saved.params({ job, checkpoint }) };
    if (yield* tx.run(this.#sql.checkpoint, params)) return "held";
    const [state] = yield* this.#states.of(tx, [{ job, fence }]);
    return state as LeaseState;
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]> {
    return this.#access.write("progress", (tx) => this.#saveProgress(tx, reports));
  }

  *#saveProgress(tx: Tx, reports: readonly ProgressReport[]): Script<LeaseState[]> {
    // The newest report of each attempt. No database can store a NUL in a text, or read what follows it.
    const newest = new Map(
      reports.map(({ job, fence, fraction, message }) => {
        return [`${job} ${fence}`, { job, fence, fraction, message: message?.replaceAll("\0", "\uFFFD") ?? null }];
      }),
    );
    const saved = yield* tx.each(this.#sql.progress, [...newest.values()]);
    return saved === newest.size ? reports.map(() => "held") : yield* this.#states.of(tx, reports);
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#access.read((db) => this.#load(db, job));
  }

  *#load(db: Reads, job: JobKey): Script<string | null> {
    const row = yield* db.get<NoteRow>(this.#sql.load, { job });
    if (row !== undefined) this.#guard.check(row);
    return row?.checkpoint ?? null;
  }
}

function statements(dialect: Dialect, { columns, saved }: NoteGuard) {
  const { table, each } = dialect;
  const reported = { job: "bigint", fence: "bigint", fraction: "double precision", message: "text" } as const;
  return {
    checkpoint: `
      insert into ${table("notes")} (job, checkpoint${saved.columns})
      select key, :checkpoint${saved.values} from (
        select key from ${table("jobs")} as job where key = :job and fence = :fence and coalesce(state, '') = 'running'
        ${dialect.lockingOf("job")}) as held where true
      on conflict (job) do update set checkpoint = excluded.checkpoint${saved.updates}`,
    progress: each(
      reported,
      ({ value, from }) => `
      insert into ${table("notes")} (job, fraction, message)
      select job.key, ${value("fraction")}, ${value("message")} ${from(`${table("jobs")} as job`)}
      where job.key = ${value("job")} and job.fence = ${value("fence")} and coalesce(job.state, '') = 'running'
      order by job.key ${dialect.lockingOf("job")}
      on conflict (job) do update set fraction = excluded.fraction, message = excluded.message`,
    ),
    load: `select job, checkpoint${columns} from ${table("notes")} where job = :job`,
  };
}
