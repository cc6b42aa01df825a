import type { Lane } from "../../core/jobs/claiming.ts";
import { type Job, JOB_STATES, type JobState } from "../../core/jobs/job.ts";
import { damagedRow } from "../../core/text/errors.ts";
import { parseGeneratedId } from "../../core/text/ids.ts";
import { type Flag, isYes, type JobRow, keyOfCursor, pageOf, type Tallied, toJob } from "../job-row.ts";
import { jobOverview, type JobOverview, type LaneCount, lanesOf, type ListFilter, type QueryStore } from "../queries.ts";
import { type Access, type Answer, type Dialect, type Reads, type Script, together, wait } from "./script.ts";

const COLUMNS = `
  job.key, job.state, job.lane, job.priority, job.attempt, job.crashes, job.run_at, job.created_at, job.started_at, job.finished_at,
  job.id, job.slot, job.input, job.output, job.error, note.fraction, note.message, job.worker, process.host, process.pid, job.expires_at`;

/** What each database adds to the queries: the conditions of its partial indexes, and its own statements. */
export interface QueryDialect {
  ready: string;
  suspect: string;
  waiting: string;
  running: string;
  /** Selects lane, state and the negative count of work items of builds that have ended. */
  unwanted: string;
  /** Selects `lane` and `createdAt` of the oldest job that could run now, for each lane in `:lanes`. */
  oldest: string;
  page(jobs: string, state: JobState | undefined, ofLanes: boolean): string;
  needsLanes(state: JobState | undefined): boolean;
  guard: { columns: string; joins: string; isDamaged(row: JobRow): boolean; withhold(row: JobRow): JobRow };
}

interface Lanes {
  reload(): Answer<void>;
  /** Absent where `lane` reads a lane that is not known yet. */
  know?(ids: readonly number[]): Answer<void>;
  lane(id: number): Lane;
  all(): Iterable<Lane>;
}

/** Reads jobs, for people and programs. One statement reads what has to fit together. */
export class Queries implements QueryStore {
  readonly #access: Access;
  readonly #lanes: Lanes;
  readonly #dialect: QueryDialect;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, own: QueryDialect, lanes: Lanes, access: Access) {
    this.#access = access;
    this.#lanes = lanes;
    this.#dialect = own;
    this.#sql = statements(dialect, own);
  }

  get(id: string): Promise<Job | null> {
    return this.#access.read((db) => this.#get(db, id));
  }

  *#get(db: Reads, id: string): Script<Job | null> {
    const row = yield* db.get<JobRow>(this.#sql.byId, idParams(id));
    if (row === undefined) return null;
    if (this.#dialect.guard.isDamaged(row)) throw damagedRow(`Job ${id}`);
    yield* wait(this.#lanes.know?.([row.lane]));
    return toJob(row, this.#lanes.lane(row.lane));
  }

  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }> {
    return this.#access.read((db) => this.#list(db, filter));
  }

  *#list(db: Reads, filter: ListFilter): Script<{ items: Job[]; next?: string }> {
    const { state, limit, after } = filter;
    if (state !== undefined && !JOB_STATES.includes(state)) return { items: [] };
    const known = yield* this.#allLanes();
    const lanes = lanesOf(known, filter) ?? (this.#dialect.needsLanes(state) ? known : null);
    if (lanes?.length === 0) return { items: [] };
    const params = { after: keyOfCursor(after), limit: limit + 1, lanes: (lanes ?? []).map(({ id }) => id) };
    const rows = yield* db.all<JobRow>(this.#dialect.page(this.#sql.jobs, state, lanes !== null), params);
    yield* wait(this.#lanes.know?.(rows.map(({ lane }) => lane)));
    const { isDamaged, withhold } = this.#dialect.guard;
    const shown = rows.map((row) => (isDamaged(row) ? withhold(row) : row));
    return pageOf(shown, limit, (lane) => this.#lanes.lane(lane));
  }

  overview(): Promise<JobOverview> {
    return this.#access.read((db) => this.#overview(db));
  }

  *#overview(db: Reads): Script<JobOverview> {
    type Queue = { name: string | null; paused: Flag; now: number };
    const lanes = yield* this.#allLanes();
    const [set, counted, oldest] = yield* together(
      db.all<Queue>(this.#sql.queues),
      db.all<LaneCount & Tallied>(this.#sql.counted),
      db.all<{ lane: number; createdAt: number | null }>(this.#dialect.oldest, { lanes: lanes.map(({ id }) => id) }),
    );
    const read = {
      lanes,
      counted,
      set: new Map(set.flatMap(({ name, paused }) => (name === null ? [] : [[name, { paused: isYes(paused) }] as const]))),
      oldest: new Map(oldest.flatMap(({ lane, createdAt }) => (createdAt === null ? [] : [[lane, createdAt] as const]))),
    };
    return jobOverview(read, (set[0] as Queue).now);
  }

  *#allLanes(): Script<Lane[]> {
    yield* wait(this.#lanes.reload());
    return [...this.#lanes.all()];
  }
}

/** Selects the key of a public id; `idParams` has the values. A chosen id may outlive its job. */
export function keyOf({ table }: Dialect, id = ":id", key = ":key", createdAt = ":createdAt"): string {
  return `coalesce(
    (select job from ${table("ids")} where id = ${id}),
    (select key from ${table("jobs")} where key = cast(${key} as bigint) and created_at = cast(${createdAt} as bigint) and id is null))`;
}

export function idParams(id: string) {
  const generated = parseGeneratedId(id);
  return { id, key: generated?.key ?? null, createdAt: generated?.createdAt ?? null };
}

function statements(dialect: Dialect, { ready, suspect, waiting, running, unwanted, guard }: QueryDialect) {
  const { table } = dialect;
  const jobs = `
    select ${COLUMNS}${guard.columns} from ${table("jobs")} as job left join ${table("notes")} as note on note.job = job.key
    left join ${table("processes")} as process on process.id = job.holder and job.state = 'running' ${guard.joins}`;
  // Each arm walks one partial index: the cost is that of what is unfinished, never of history.
  const unfinished = `
    select lane, 'pending' as state, count(*) as n from ${table("jobs")} where ${ready} group by lane
    union all
    select lane, 'pending', count(*) from ${table("jobs")} where ${suspect} group by lane
    union all
    select lane, 'pending', count(*) from ${table("jobs")} where gate = 'time' group by lane
    union all
    select lane, 'pending', cast(sum(parked) as bigint) from (
      select lane, parked from ${table("counters")} where parked > 0) as parked group by lane
    union all
    select lane, 'running', count(*) from ${running} group by lane
    union all
    select lane, 'waiting', count(*) from ${table("jobs")} where ${waiting} group by lane
    union all
    ${unwanted}`;
  return {
    jobs,
    byId: `${jobs} where job.key = ${keyOf(dialect)}`,
    counted: `
      select lane, state, n, 0 as ended, 0 as since, 0 as fresh, 0 as before from (${unfinished}) as unfinished
      union all
      select lane, state, n, ended, since, fresh, before from ${table("tally")}`,
    queues: `select name, paused, :now as now from (select 1 as one) as always left join ${table("queues")} on true`,
  };
}
