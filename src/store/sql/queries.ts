import { type AttemptView, currentAttempt } from "../../core/jobs/attempts.ts";
import type { Lane } from "../../core/jobs/claiming.ts";
import type { JobFacts } from "../../core/jobs/explain.ts";
import { matchesTexts, textsOf } from "../../core/jobs/filter.ts";
import { type Job, JOB_STATES, type JobState } from "../../core/jobs/job.ts";
import { damagedRow } from "../../core/text/errors.ts";
import { parseGeneratedId, type ProcessId } from "../../core/text/ids.ts";
import { type Flag, holderOf, isYes, type JobRow, slotBehind, slotOf, type Tallied, toJob } from "../job-row.ts";
import { jobOverview, type JobOverview, type LaneCount, lanesOf, type ListFilter } from "../queries.ts";
import type { Attempts } from "./attempts.ts";
import { JobFactsReader } from "./job-facts.ts";
import { type Access, type Answer, type Dialect, type Params, type Reads, type Script, together, wait } from "./script.ts";
import type { QueryStore } from "../store.ts";

const COLUMNS = `
  job.key, job.fence, job.state, job.lane, job.priority, job.attempt, job.crashes, job.run_at, job.created_at, job.started_at, job.finished_at,
  job.id, job.slot, job.input, job.output, job.error, job.meta, note.fraction, note.message, job.worker, process.host, process.pid, job.expires_at`;

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
  /** Selects keys between `:from` and `:to` of jobs that may match, in no order: all, or at least the first `:slice` of them. */
  keys(asked: AskedJobs): string;
  /** Selects `sizes` of the jobs of the first `:slice` keys that match, in order, up to `:limit`. */
  page(sizes: string, asked: AskedJobs): string;
  /** Whether the keys are those of all jobs, whatever their state. */
  walksAll(states: readonly JobState[] | null): boolean;
  needsLanes(states: readonly JobState[] | null): boolean;
  contains(text: string, part: string): string;
  lower(text: string): string;
  /** `inputBytes` is known without reading the input. */
  guard: {
    columns: string;
    joins: string;
    input: string;
    inputBytes: string;
    isDamaged(row: JobRow): boolean;
    withhold(row: JobRow): JobRow;
  };
}

export interface AskedJobs {
  states: readonly JobState[] | null;
  newest: boolean;
  /** True if the jobs are the unfinished ones of `:slots`. */
  bySlot: boolean;
  /** Conditions on the rows of `job`, each with its leading `and`. */
  where: string;
}

interface Lanes {
  reload(): Answer<void>;
  /** Loads lanes that are not known yet. Absent if `lane` does that itself. */
  know?(ids: readonly number[]): Answer<void>;
  lane(id: number): Lane;
  all(): Iterable<Lane>;
}

/** How many rows one statement walks, and one call. The first statement walks fewer, because most pages are full by then. */
const FIRST_SLICE = 1_000;
const MAX_SLICE = 10_000;
const MAX_ROWS = 100_000;
/** A page selects at least this many rows, because some of them do not match. */
const MIN_ROWS = 100;
/** A page ends before the job whose input and output would exceed this. One job alone may be larger. */
const MAX_PAGE_BYTES = 4 * 1024 * 1024;
const CLOCK_SLACK_MS = 60_000;
const UNFINISHED: ReadonlySet<JobState> = new Set(["waiting", "pending", "running"]);

interface Search {
  filter: ListFilter;
  newest: boolean;
  from: number;
  to: number;
  keys: string;
  page: string;
  params: Params;
  /** True if rows that do not match may have to be read. */
  isSliced: boolean;
  slice: number;
  read: number;
  /** Inputs and outputs of the jobs found so far. */
  bytes: number;
  isFull: boolean;
  isOver: boolean;
}

interface Found {
  key: number;
  job: Job;
}

/** Reads jobs, for people and programs. One statement reads what has to fit together. */
export class Queries implements QueryStore {
  readonly #access: Access;
  readonly #lanes: Lanes;
  readonly #attempts: Attempts;
  readonly #facts: JobFactsReader;
  readonly #dialect: QueryDialect;
  readonly #sql: ReturnType<typeof statements>;
  readonly #in: Dialect["in"];

  constructor(dialect: Dialect, own: QueryDialect, parts: { lanes: Lanes; attempts: Attempts }, access: Access) {
    this.#in = dialect.in;
    this.#access = access;
    this.#lanes = parts.lanes;
    this.#attempts = parts.attempts;
    this.#facts = new JobFactsReader(dialect, own);
    this.#dialect = own;
    this.#sql = statements(dialect, own);
  }

  get(id: string): Promise<Job | null> {
    return this.#access.read((db) => this.#get(db, id));
  }

  *#get(db: Reads, id: string): Script<Job | null> {
    const row = yield* this.#row(db, id);
    return row === undefined ? null : toJob(row, this.#lanes.lane(row.lane));
  }

  *#row(db: Reads, id: string): Script<JobRow | undefined> {
    const row = yield* db.get<JobRow>(this.#sql.byId, idParams(id));
    if (row === undefined) return undefined;
    if (this.#dialect.guard.isDamaged(row)) throw damagedRow(`Job ${id}`);
    yield* wait(this.#lanes.know?.([row.lane]));
    return row;
  }

  facts(of: { id: string } | { queue: string }): Promise<JobFacts | null> {
    return this.#access.read((db) => this.#factsOf(db, of));
  }

  *#factsOf(db: Reads, of: { id: string } | { queue: string }): Script<JobFacts | null> {
    const known = yield* this.#allLanes();
    const idsOf = (queue: string) => known.filter((lane) => lane.queue === queue).map(({ id }) => id);
    const oldest = "id" in of ? null : yield* this.#facts.oldest(db, idsOf(of.queue));
    const row = "id" in of ? yield* this.#row(db, of.id) : yield* db.get<JobRow>(this.#sql.byKey, { oldest });
    if (row === undefined || this.#dialect.guard.isDamaged(row)) return null;
    const lane = this.#lanes.lane(row.lane);
    return yield* this.#facts.read(db, row, lane, idsOf(lane.queue));
  }

  attempts(id: string): Promise<AttemptView[]> {
    return this.#access.read((db) => this.#attemptsOf(db, id));
  }

  /** Reads the job's row first, so that an attempt that ends between both statements is not missing. */
  *#attemptsOf(db: Reads, id: string): Script<AttemptView[]> {
    const row = yield* this.#row(db, id);
    if (row === undefined) return [];
    const current = currentAttempt({ ...toJob(row, this.#lanes.lane(row.lane)), ...holderOf(row) });
    return yield* this.#attempts.of(db, { job: row.key, fence: row.fence }, current);
  }

  async list(filter: ListFilter): Promise<{ items: Job[]; next?: string }> {
    const { limit } = filter;
    const search = await this.#access.read((db) => this.#search(db, filter));
    if (search === null) return { items: [] };
    const found: Found[] = search.found;
    // One more than asked for shows whether there is another page.
    while (!search.isOver && !search.isFull && found.length <= limit && search.read < MAX_ROWS) {
      // Each slice has its own read transaction and its own turn of the event loop.
      await new Promise((resolve) => setImmediate(resolve));
      found.push(...(await this.#access.read((db) => this.#slice(db, search, limit + 1 - found.length))));
    }
    const items = found.slice(0, limit).map(({ job }) => job);
    const last = found[limit - 1];
    if (found.length > limit && last !== undefined) return { items, next: String(last.key) };
    return search.isOver ? { items } : { items, next: String(search.newest ? search.to : search.from) };
  }

  *#search(db: Reads, filter: ListFilter): Script<(Search & { found: Found[] }) | null> {
    const { limit, after, order = "oldest" } = filter;
    const states = statesOf(filter.state);
    if (states?.length === 0) return null;
    const known = yield* this.#allLanes();
    const { needsLanes, walksAll } = this.#dialect;
    const lanes = lanesOf(known, filter) ?? (needsLanes(states) ? known : null);
    if (lanes?.length === 0) return null;
    const newest = order === "newest";
    const range = yield* this.#range(db, filter);
    const bySlot = filter.key !== undefined && states !== null && states.every((state) => UNFINISHED.has(state));
    // If only pending jobs are asked for, the keys are already those of the lanes.
    const isByLane = !bySlot && states?.length === 1 && needsLanes(states);
    const { where, params } = this.#conditions(filter, isByLane);
    const asked = { states, newest, bySlot, where };
    const search: Search = {
      filter,
      newest,
      from: !newest && after !== undefined ? Math.max(range.from, Number(after)) : range.from,
      to: newest && after !== undefined ? Math.min(range.to, Number(after)) : range.to,
      keys: this.#dialect.keys(asked),
      page: this.#dialect.page(this.#sql.sizes, asked),
      params: { ...params, lanes: (lanes ?? []).map(({ id }) => id), slots: slotsOf(known, filter) },
      isSliced: where !== "" || (states !== null && walksAll(states)),
      slice: Math.min(MAX_SLICE, Math.max(FIRST_SLICE, 2 * limit)),
      read: 0,
      bytes: 0,
      isFull: false,
      isOver: false,
    };
    return Object.assign(search, { found: yield* this.#slice(db, search, limit + 1) });
  }

  *#slice(db: Reads, search: Search, wanted: number): Script<Found[]> {
    const { newest, params, isSliced } = search;
    const range = { from: search.from, to: search.to };
    let isLast = true;
    if (isSliced) {
      const end = newest ? "min" : "max";
      const sql = `
        select ${end}(key) as last, count(*) as n
        from (select key from (${search.keys}) as candidate order by key ${newest ? "desc" : ""} limit :slice) as slice`;
      const { last, n } = (yield* db.get(sql, { ...params, ...range, slice: search.slice })) as {
        last: number | null;
        n: number;
      };
      search.read += n;
      isLast = n < search.slice;
      // Rows that come behind the slice's last key are read with the next slice.
      if (!isLast && last !== null) Object.assign(range, newest ? { from: last - 1 } : { to: last + 1 });
    }
    const limit = isSliced ? Math.max(wanted, MIN_ROWS) : wanted;
    const slice = isSliced ? search.slice : limit;
    const candidates = yield* db.all<{ key: number; bytes: number }>(search.page, { ...params, ...range, slice, limit });
    const keys = candidates.filter(({ bytes }) => hasRoom(search, bytes)).map(({ key }) => key);
    const isCut = search.isFull || candidates.length === limit;
    search.isOver = isLast && !isCut;
    // The search continues from the first of the bounds that is reached.
    const last = isCut ? (keys.at(-1) ?? boundBefore(candidates, newest)) : newest ? range.from + 1 : range.to - 1;
    if (newest) search.to = last;
    else search.from = last;
    search.slice = MAX_SLICE;
    const rows = keys.length === 0 ? [] : yield* db.all<JobRow>(this.#sql.byKeys, { keys });
    if (newest) rows.reverse();
    const states = statesOf(search.filter.state);
    yield* wait(this.#lanes.know?.(rows.map(({ lane }) => lane)));
    const { isDamaged, withhold } = this.#dialect.guard;
    return (
      rows
        .map((row) => (isDamaged(row) ? withhold(row) : row))
        .map((row) => ({ key: row.key, job: toJob(row, this.#lanes.lane(row.lane)) }))
        // A job's state may have changed between the two statements.
        .filter(({ job }) => (states?.includes(job.state) ?? true) && matchesTexts(search.filter, job))
    );
  }

  /** Bounds the keys, which rise with creation times except for differences between clocks and between transactions. */
  *#range(db: Reads, { createdAfter, createdBefore }: ListFilter): Script<{ from: number; to: number }> {
    const range = { from: 0, to: Number.MAX_SAFE_INTEGER };
    const firstAt = (at: number) => db.get<{ key: number }>(this.#sql.firstAt, { at });
    if (createdAfter !== undefined) range.from = ((yield* firstAt(createdAfter - CLOCK_SLACK_MS))?.key ?? 1) - 1;
    if (createdBefore !== undefined) range.to = (yield* firstAt(createdBefore + CLOCK_SLACK_MS))?.key ?? range.to;
    return range;
  }

  #conditions(filter: ListFilter, isByLane: boolean): { where: string; params: Params } {
    const { contains, lower, guard } = this.#dialect;
    const params: Record<string, string | number> = {};
    const bound = (value: string | number): string => {
      const name = `value${Object.keys(params).length}`;
      params[name] = value;
      return `:${name}`;
    };
    const where: string[] = [];
    const hasLanes = filter.queue !== undefined || filter.name !== undefined;
    if (hasLanes && !isByLane) where.push(this.#in("job.lane", "bigint", ":lanes"));
    if (filter.key !== undefined) where.push(this.#in("job.slot", "text", ":slots"));
    const { createdAfter, createdBefore, finishedAfter, finishedBefore } = filter;
    if (createdAfter !== undefined) where.push(`job.created_at >= ${bound(createdAfter)}`);
    if (createdBefore !== undefined) where.push(`job.created_at < ${bound(createdBefore)}`);
    if (finishedAfter !== undefined) where.push(`job.finished_at >= ${bound(finishedAfter)}`);
    if (finishedBefore !== undefined) where.push(`job.finished_at < ${bound(finishedBefore)}`);
    const texts = textsOf(filter);
    for (const text of texts.meta) where.push(contains("job.meta", bound(text)));
    for (const text of texts.error) where.push(contains(lower("job.error"), bound(text)));
    for (const text of texts.input) where.push(contains(guard.input, bound(text)));
    return { where: where.map((one) => `and ${one}`).join(" "), params };
  }

  overview(): Promise<JobOverview> {
    return this.#access.read((db) => this.#overview(db));
  }

  *#overview(db: Reads): Script<JobOverview> {
    type Queue = { name: string | null; paused: Flag; now: number };
    const lanes = yield* this.#allLanes();
    const [set, counted, running, oldest] = yield* together(
      db.all<Queue>(this.#sql.queues),
      db.all<LaneCount & Tallied>(this.#sql.counted),
      db.all<{ holder: ProcessId | null; jobs: number }>(this.#sql.running),
      db.all<{ lane: number; createdAt: number | null }>(this.#dialect.oldest, { lanes: lanes.map(({ id }) => id) }),
    );
    const read = {
      lanes,
      counted,
      running: new Map(running.map(({ holder, jobs }) => [holder, jobs] as const)),
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

/** Counts a job into a page, unless the page or an earlier job has used up its bytes. */
function hasRoom(search: Search, bytes: number): boolean {
  search.isFull ||= search.bytes > 0 && search.bytes + bytes > MAX_PAGE_BYTES;
  if (!search.isFull) search.bytes += bytes;
  return !search.isFull;
}

/** The bound from which a search finds these candidates again: earlier slices have filled the page. */
function boundBefore([first]: readonly { key: number }[], newest: boolean): number {
  const { key } = first as { key: number };
  return newest ? key + 1 : key - 1;
}

function statesOf(state: ListFilter["state"]): readonly JobState[] | null {
  if (state === undefined) return null;
  const asked = typeof state === "string" ? [state] : state;
  return JOB_STATES.filter((one) => asked.includes(one));
}

function slotsOf(lanes: readonly Lane[], { name, key }: ListFilter): string[] {
  if (key === undefined) return [];
  const names = [...new Set(lanes.map((lane) => lane.name))].filter((one) => (name ?? one) === one);
  // One slot is that of the job with the key, the other that of the job that waits to replace it.
  return names.map((one) => slotOf(one, key)).flatMap((slot) => [slot, slotBehind(slot)]);
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
    left join ${table("processes")} as process on process.id = job.holder and job.state in ('running', 'succeeded') ${guard.joins}`;
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
  const first = (of: string) => `(select ${of} from ${table("jobs")} where key >= (low + high) / 2 order by key limit 1)`;
  const isLater = `${first("created_at")} >= cast(:at as bigint)`;
  return {
    byKeys: `${jobs} where ${dialect.in("job.key", "bigint", ":keys")} order by job.key`,
    sizes: `
      select job.key, coalesce(${guard.inputBytes}, 0) + coalesce(octet_length(job.output), 0) as bytes
      from ${table("jobs")} as job ${guard.joins}`,
    // Bisects the keys: the lowest from which on jobs were created at `:at` or later; null in an empty table.
    firstAt: `
      with recursive step (low, high) as (
        select (select min(key) from ${table("jobs")}), (select max(key) + 1 from ${table("jobs")})
        union all
        select case when ${isLater} then low else (low + high) / 2 + 1 end, case when ${isLater} then (low + high) / 2 else high end
        from step where low < high)
      select low as key from step where low = high`,
    byId: `${jobs} where job.key = ${keyOf(dialect)}`,
    byKey: `${jobs} where job.key = cast(:oldest as bigint)`,
    counted: `
      select lane, state, n, 0 as ended, 0 as since, 0 as fresh, 0 as before from (${unfinished}) as unfinished
      union all
      select lane, state, n, ended, since, fresh, before from ${table("tally")}`,
    running: `select holder, count(*) as jobs from ${running} as running group by holder`,
    queues: `select name, paused, :now as now from (select 1 as one) as always left join ${table("queues")} on true`,
  };
}
