import type { Lane } from "../../core/jobs/claiming.ts";
import { type Job, JOB_STATES, type JobState } from "../../core/jobs/job.ts";
import { damagedRow } from "../../core/text/errors.ts";
import { type JobKey, parseGeneratedId } from "../../core/text/ids.ts";
import { ELSEWHERE, type JobRow, keyOfCursor, pageOf, publicId, toJob } from "../job-row.ts";
import {
  countsOf,
  type LaneCount,
  type LaneOverview,
  laneOverviews,
  lanesOf,
  type ListFilter,
  type QueryStore,
  type QueueOverview,
  queueOverviews,
} from "../queries.ts";
import { endedWithWork } from "../sql/builds/leftovers.ts";
import { jobChecksum } from "./checksum.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Catalog, Settings } from "./jobs/catalog.ts";
import { damagedError } from "./jobs/damaged-jobs.ts";
import type { Tally } from "./jobs/settle-effects.ts";
import { DIALECT, type StoreAccess } from "./scripts.ts";

const COLUMNS = `
  job.key, job.state, job.lane, job.priority, job.attempt, job.crashes, job.run_at, job.created_at, job.started_at, job.finished_at,
  job.id, job.slot, job.input, job.output, job.error, note.fraction, note.message, body.body,
  job.policy, job.scheduled_for, job.limits, job.checksum`;
const FROM = `
  from holdfast_jobs as job
  left join holdfast_notes as note on note.job = job.key
  left join holdfast_inputs as body on body.job = job.key and job.input = '${ELSEWHERE}'`;

/** With who holds it. */
const SHOWN = `
  ${COLUMNS}, job.worker, job.expires_at, process.host, process.pid
  ${FROM} left join holdfast_processes as process on process.id = job.holder and job.state = 'running'`;

/** Work of builds that have ended is about to be cleared away: no worker runs it any more. */
const UNWANTED = `
  select job.lane, job.state, -count(*) from (${endedWithWork(DIALECT)}) as ended
  cross join holdfast_work as work on work.build = ended.key cross join holdfast_jobs as job on job.key = work.job
  where job.state in ('pending', 'waiting') group by job.lane, job.state`;

/** Reading, for people and programs. */
export class Queries implements QueryStore {
  readonly #access: StoreAccess;
  readonly #db: Connection;
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #tally: Tally;
  readonly #byKey: Statement;
  readonly #keyOf: Statement;
  readonly #isGenerated: Statement;
  readonly #unfinished: Statement;
  readonly #oldest: Statement;
  readonly #lists = new Map<string, Statement>();

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings; tally: Tally }, access: StoreAccess) {
    this.#access = access;
    this.#db = db;
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#tally = parts.tally;
    this.#byKey = db.prepare(`select ${SHOWN} where job.key = :key`);
    this.#keyOf = db.prepare("select job from holdfast_ids where id = ?");
    this.#isGenerated = db.prepare("select 1 from holdfast_jobs where key = ? and created_at = ? and id is null");
    // Each arm walks one partial index and nothing else: the cost is that of what is unfinished, never of history.
    this.#unfinished = db.prepare(
      `select lane, 'pending' as state, count(*) as n from holdfast_jobs
         where state = 'pending' and gate is null and crashes = 0 group by lane
       union all
       select lane, 'pending', count(*) from holdfast_jobs where state = 'pending' and gate is null and crashes > 0 group by lane
       union all
       select lane, 'pending', count(*) from holdfast_jobs where gate = 'time' group by lane
       union all
       select lane, 'pending', sum(parked) from (
         select lane, parked from holdfast_counters where parked > 0) group by lane
       union all
       select lane, 'running', count(*) from holdfast_jobs where state = 'running' group by lane
       union all
       select lane, 'waiting', count(*) from holdfast_jobs where state = 'waiting' group by lane
       union all
       ${UNWANTED}`,
    );
    // What is due but still marked as delayed could run now, too: no worker may have claimed there yet.
    this.#oldest = db.prepare(
      `select created_at from holdfast_jobs where key = (select min(key) from (
         select min(key) as key from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes = 0
         union all
         select min(key) from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes > 0
         union all
         select min(key) from holdfast_jobs where lane = :lane and gate = 'time' and run_at <= :now))`,
    );
  }

  /** The store's key of a public id, whichever kind it is. A chosen id may outlive its job. */
  keyOf(id: string): JobKey | null {
    const chosen = this.#keyOf.row(id);
    if (chosen !== undefined) return chosen[0] as JobKey;
    const generated = parseGeneratedId(id);
    if (generated === null || this.#isGenerated.row(generated.key, generated.createdAt) === undefined) return null;
    return generated.key;
  }

  get(id: string): Promise<Job | null> {
    return this.#access.read(() => {
      const key = this.keyOf(id);
      const row = key === null ? undefined : this.#byKey.get<CheckedRow>({ key });
      if (row === undefined) return null;
      if (isDamaged(row)) throw damagedRow(`Job ${id}`);
      return toJob(row, this.#catalog.lane(row.lane));
    });
  }

  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }> {
    return this.#access.read(() => {
      const lanes = this.#lanesOf(filter);
      const params: Record<string, Value> = {
        after: keyOfCursor(filter.after),
        limit: filter.limit + 1,
      };
      // Few jobs run at once, so they are found by their own index and put in order; otherwise history would be walked.
      const key = filter.state === "running" ? "+job.key" : "job.key";
      const where = [`${key} > :after`];
      if (filter.state !== undefined) {
        if (!JOB_STATES.includes(filter.state)) return { items: [] };
        // Written out, not bound: only so can SQLite see which partial index holds it.
        where.push(`job.state = '${filter.state}'`);
      }
      if (lanes !== null) {
        if (lanes.length === 0) return { items: [] };
        where.push("job.lane in (select value from json_each(:lanes))");
        params["lanes"] = JSON.stringify(lanes.map(({ id }) => id));
      }
      const text = where.join(" and ");
      let statement = this.#lists.get(text);
      if (statement === undefined) {
        statement = this.#db.prepare(`select ${SHOWN} where ${text} order by ${key} limit :limit`);
        this.#lists.set(text, statement);
      }
      // One that is damaged does not hide the others: it is shown, and what it holds is not.
      const rows = statement.all<CheckedRow>(params).map((row) => (isDamaged(row) ? withheld(row) : row));
      return pageOf(rows, filter.limit, (lane) => this.#catalog.lane(lane));
    });
  }

  counts(filter: { queue?: string; name?: string }): Promise<Record<JobState, number>> {
    return this.#access.read(() => {
      const lanes = this.#lanesOf(filter);
      return countsOf([...this.#tally.all(), ...this.#unfinished.all<LaneCount>()], lanes);
    });
  }

  queues(): Promise<QueueOverview[]> {
    return this.#access.read(() => {
      const now = this.#access.now();
      const set = this.#settings.now().queues;
      this.#catalog.reload();
      const lanes = [...this.#catalog.lanes(0)];
      const oldest = new Map<number, number>();
      for (const { id } of lanes) {
        const at = this.#oldest.get<{ created_at: number }>({ lane: id, now })?.created_at;
        if (at !== undefined) oldest.set(id, at);
      }
      const unfinished = this.#unfinished.all<LaneCount>();
      return queueOverviews({ lanes, set, unfinished, finished: this.#tally.all(), oldest }, now);
    });
  }

  lanes(): Promise<LaneOverview[]> {
    return this.#access.read(() => {
      this.#catalog.reload();
      return laneOverviews(this.#catalog.lanes(0), this.#unfinished.all<LaneCount>());
    });
  }

  #lanesOf(filter: { queue?: string; name?: string }): Lane[] | null {
    this.#catalog.reload();
    return lanesOf(this.#catalog.lanes(0), filter);
  }
}

type CheckedRow = JobRow & {
  policy: number;
  scheduled_for: number | null;
  limits: string | null;
  checksum: number | null;
};

function isDamaged(row: CheckedRow): boolean {
  return row.checksum !== jobChecksum({ ...row, input: row.body ?? row.input });
}

function withheld(row: CheckedRow): CheckedRow {
  const error = JSON.stringify(damagedError(publicId(row.id, row.created_at, row.key)));
  return { ...row, input: null, body: null, output: null, error };
}
