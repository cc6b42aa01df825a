import { generatedId, type JobKey, parseGeneratedId } from "../../core/ids.ts";
import { type FinishedState, type Job, type JobError, JOB_STATES, type JobState } from "../../core/job.ts";
import { fromJson } from "../../core/json.ts";
import type { LaneOverview, ListFilter, QueueOverview } from "../store.ts";
import type { Catalog, Lane } from "./catalog.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import { ELSEWHERE, keyOfSlot } from "./enqueue.ts";
import type { Settings } from "./settings.ts";
import { lastMinute, type Tally } from "./tally.ts";

const COLUMNS = `
  job.key, job.state, job.lane, job.priority, job.attempt, job.crashes, job.run_at, job.created_at, job.started_at, job.finished_at,
  job.id, job.slot, job.input, job.output, job.error, note.fraction, note.message, body.body
  from holdfast_jobs as job
  left join holdfast_notes as note on note.job = job.key
  left join holdfast_inputs as body on body.job = job.key and job.input = '${ELSEWHERE}'`;

interface Row {
  key: JobKey;
  state: JobState;
  lane: number;
  priority: number;
  attempt: number;
  crashes: number;
  run_at: number;
  created_at: number;
  started_at: number | null;
  finished_at: number | null;
  id: string | null;
  slot: string | null;
  input: string | null;
  output: string | null;
  error: string | null;
  fraction: number | null;
  message: string | null;
  body: string | null;
}

/** Reading, for people and programs. */
export class Look {
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

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings; tally: Tally }) {
    this.#db = db;
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#tally = parts.tally;
    this.#byKey = db.prepare(`select ${COLUMNS} where job.key = :key`);
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
       select lane, 'waiting', count(*) from holdfast_jobs where state = 'waiting' group by lane`,
    );
    // What is due but still marked as delayed could run now, too: nobody may have claimed there yet.
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

  get(id: string): Job | null {
    const key = this.keyOf(id);
    const row = key === null ? undefined : this.#byKey.get<Row>({ key });
    return row === undefined ? null : this.#job(row);
  }

  list(filter: ListFilter): { items: Job[]; next?: string } {
    const lanes = this.#matching(filter);
    const params: Record<string, Value> = {
      after: filter.after === undefined ? 0 : Number(filter.after),
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
      statement = this.#db.prepare(`select ${COLUMNS} where ${text} order by ${key} limit :limit`);
      this.#lists.set(text, statement);
    }
    const rows = statement.all<Row>(params);
    const items = rows.slice(0, filter.limit).map((row) => this.#job(row));
    const last = rows[filter.limit - 1];
    return rows.length > filter.limit && last !== undefined ? { items, next: String(last.key) } : { items };
  }

  counts(filter: { queue?: string; name?: string }): Record<JobState, number> {
    const lanes = this.#matching(filter);
    const wanted = lanes && new Set(lanes.map(({ id }) => id));
    const counts = none();
    for (const { lane, state, n } of this.#tallied()) if (wanted === null || wanted.has(lane)) counts[state] += n;
    return counts;
  }

  queues(now: number): QueueOverview[] {
    const queues = new Map<string, QueueOverview>();
    const settings = this.#settings.now();
    const overview = (name: string): QueueOverview => {
      let queue = queues.get(name);
      if (queue === undefined) {
        queue = { name, paused: settings.isPaused(name), counts: none(), ended: 0, lastMinute: noneEnded() };
        queues.set(name, queue);
      }
      return queue;
    };
    this.#catalog.reload();
    for (const name of settings.queues().keys()) overview(name);
    for (const lane of this.#catalog.lanes(0)) {
      const queue = overview(lane.queue);
      const at = this.#oldest.get<{ created_at: number }>({ lane: lane.id, now })?.created_at;
      if (at !== undefined && (queue.oldestAt === undefined || at < queue.oldestAt)) queue.oldestAt = at;
    }
    for (const { lane, state, n } of this.#tallied()) {
      const queue = queues.get(this.#catalog.lane(lane).queue);
      if (queue !== undefined) queue.counts[state] += n;
    }
    for (const tallied of this.#tally.all()) {
      const queue = overview(this.#catalog.lane(tallied.lane).queue);
      queue.ended += tallied.ended;
      queue.lastMinute[tallied.state] += lastMinute(tallied, now);
    }
    return [...queues.values()].sort((a, b) => a.name.localeCompare(b.name));
  }

  lanes(): LaneOverview[] {
    this.#catalog.reload();
    const pending = new Map<number, number>();
    for (const { lane, state, n } of this.#unfinished.all<{ lane: number; state: JobState; n: number }>()) {
      if (state !== "running") pending.set(lane, (pending.get(lane) ?? 0) + n);
    }
    return [...this.#catalog.lanes(0)].map(({ id, queue, name, version }) => {
      return { queue, name, version, pending: pending.get(id) ?? 0 };
    });
  }

  #tallied(): { lane: number; state: JobState; n: number }[] {
    return [...this.#tally.all(), ...this.#unfinished.all<{ lane: number; state: JobState; n: number }>()];
  }

  /** The lanes of a queue or a name; null for all of them. */
  #matching(filter: { queue?: string; name?: string }): Lane[] | null {
    if (filter.queue === undefined && filter.name === undefined) return null;
    this.#catalog.reload();
    return [...this.#catalog.lanes(0)].filter(
      (lane) => (filter.queue ?? lane.queue) === lane.queue && (filter.name ?? lane.name) === lane.name,
    );
  }

  #job(row: Row): Job {
    const lane = this.#catalog.lane(row.lane);
    const job: Job = {
      id: row.id ?? generatedId(row.created_at, row.key),
      name: lane.name,
      queue: lane.queue,
      state: row.state,
      input: fromJson(row.body ?? row.input),
      attempt: row.attempt,
      crashes: row.crashes,
      priority: row.priority,
      createdAt: row.created_at,
      runAt: row.run_at,
    };
    if (row.slot !== null) job.key = keyOfSlot(row.slot);
    if (row.output !== null) job.output = fromJson(row.output);
    if (row.error !== null) job.error = fromJson(row.error) as JobError;
    if (row.started_at !== null) job.startedAt = row.started_at;
    if (row.finished_at !== null) job.finishedAt = row.finished_at;
    if (row.fraction !== null) {
      job.progress = row.message === null ? { fraction: row.fraction } : { fraction: row.fraction, message: row.message };
    }
    return job;
  }
}

function noneEnded(): Record<FinishedState, number> {
  return { succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };
}

function none(): Record<JobState, number> {
  return Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
}
