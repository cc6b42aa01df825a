import { LaneBatch, type MatchedLane, type MatchedLanes, outlookOf, ClaimableLanes } from "../../../core/jobs/claiming.ts";
import type { ClaimSource, ClaimOutlook } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import { type Rows } from "../connection/driver.ts";
import { holdsSuspect, LOCKED, READY, SUSPECT, UNSEEN } from "./claim-statements.ts";

/**
 * Up to this many lanes are sent with each claim. Beyond, the server is asked first which lanes have jobs, so that claims do
 * not cost more with more queues and definitions.
 */
const FEW_LANES = 32;
const SPARE_LANES = 8;

type FoundRow = [counted: number, now: number, hidesSuspects: boolean, found: string];
/**
 * A lane that has jobs; a lane whose first delayed job is due `at` an instant; or, without a lane, a queue whose limits allow
 * the next start then. `closed`: paused or locked.
 */
type Found = [lane: number | null, at: number | null, queue: string | null, closed: boolean];

export interface FoundLanes {
  lanes: MatchedLane[];
  isWhole: boolean;
  /** Delayed or limited jobs are due, which one statement cannot claim. */
  isDue: boolean;
  nextAt: number | null;
  last: number | null;
}

export function allOf({ all }: MatchedLanes): FoundLanes {
  return { lanes: all, isWhole: true, isDue: false, nextAt: null, last: null };
}

export class ReadyLanes {
  readonly #random: () => number;
  readonly #longest: () => number;
  readonly #sql: string;
  /** The next claim begins behind this lane, so that every lane has its turn. */
  #cursor: number | null = null;

  constructor(s: string, parts: { random: () => number; longest: () => number }) {
    this.#random = parts.random;
    this.#longest = parts.longest;
    this.#sql = foundSql(s);
  }

  static areMany({ all }: MatchedLanes): boolean {
    return all.length > FEW_LANES;
  }

  /** The lanes of the next `max` queues that have jobs, without queues that are `done`; and all lanes with due jobs. */
  async find(
    rows: Rows,
    { at, holder, max }: { at: number | null; holder: number | null; max: number },
    matched: MatchedLanes,
    shares: ClaimableLanes,
    done: ReadonlySet<string> = new Set(),
  ): Promise<FoundLanes & { now: number; counted: number }> {
    const open = (lanes: readonly MatchedLane[]) => lanes.filter((one) => !done.has(one.lane.queue) && shares.of(one) !== null);
    this.#cursor ??= matched.all[Math.floor(this.#random() * matched.all.length)]?.lane.id ?? null;
    for (let most = max + SPARE_LANES; ; most *= 8) {
      const [row] = await rows<FoundRow>(this.#sql, at, holder, this.#cursor ?? 0, most);
      const [counted, now, hidesSuspects, found] = row as FoundRow;
      const batch = new LaneBatch(matched, max);
      let ready = 0;
      let last: number | null = null;
      let nextAt: number | null = null;
      let isDue = false;
      for (const [id, due, queue, closed] of JSON.parse(found) as Found[]) {
        if (due === null) ready++;
        if (closed || (due === null && last !== null)) continue;
        const lanes = open(id === null ? (matched.byQueue.get(queue as string) ?? []) : [matched.byId.get(id) ?? []].flat());
        if (lanes.length === 0) continue;
        if (due !== null) nextAt = Math.min(nextAt ?? due, due);
        // A limit that allows no start for longer than its period was written before the clock was set back.
        if (due !== null && due > now && !(id === null && due > now + this.#longest())) continue;
        isDue ||= due !== null;
        for (const one of lanes) if (batch.add(one) && due === null) last = id;
      }
      if (last === null && ready === most) continue;
      return { lanes: batch.lanes, isWhole: last === null && !hidesSuspects, isDue, nextAt, last, now, counted };
    }
  }

  served({ last }: FoundLanes): void {
    this.#cursor = last ?? this.#cursor;
  }
}

/**
 * Each step seeks from one lane to the next: the cost depends on how many lanes have jobs, not on how many exist. Scalar
 * subqueries keep the server from joining whole tables.
 */
function foundSql(s: string): string {
  const walk = (name: string, table: string, id: string, at: string, which: string) => `
    ${name} (id, at) as (
      select 0, null::bigint
      union all
      select next.* from ${name} cross join lateral (
        select ${id}, ${at} from ${s}.${table} where ${which} and ${id} > ${name}.id order by ${id}, ${at} limit 1) as next)`;
  return `
    with recursive clock as materialized (select ${s}.clock($1) as now, ${holdsSuspect(s, "$2::bigint")} as holds),
    ready (lane, round) as (
      select $3::integer, 0
      union all
      select coalesce(next, 0), case when next is null then 1 else round end from (
        select round, least(
          (select lane from ${s}.jobs where ${READY} and lane > ready.lane order by lane limit 1),
          (select lane from ${s}.jobs where ${SUSPECT} and lane > ready.lane and not (select holds from clock) order by lane limit 1)
        ) as next from ready offset 0) as step
      where round = 0 or next <= $3),
    ${walk("timed", "jobs", "lane", "run_at", "gate = 'time'")},
    ${walk("rule", "counters", "rule", "due_at", "due_at is not null")},
    found as (
      (select lane, null::bigint as at, null::integer as rule from ready where lane > 0 offset 1 limit $4)
      union all
      select id, coalesce((select 0 from ${s}.jobs where lane = timed.id and ${UNSEEN} limit 1), at), null from timed where id > 0
      union all
      select null, at, id from rule where id > 0)
    select counter.lanes, clock.now, clock.holds, (
      select coalesce(json_agg(json_build_array(lane, at, case when lane is null then queue end,
        coalesce((select paused from ${s}.queues where name = found.queue), false)
          or exists (select 1 from ${s}.locks as lock where lock.name = found.queue and ${LOCKED(s)}))), '[]')::text
      from (
        select *, case when lane is null then (select queue from ${s}.limits where limits.id = found.rule)
          else (select queue from ${s}.lanes where lanes.id = found.lane) end as queue
        from found offset 0) as found)
    from ${s}.counter cross join clock where counter.id = 1`;
}

export class Outlooks {
  readonly #parts: { rows: Rows; catalog: Catalog };
  readonly #ready: ReadyLanes;
  #counted = -1;

  constructor(s: string, parts: { rows: Rows; catalog: Catalog; random: () => number }) {
    this.#parts = parts;
    this.#ready = new ReadyLanes(s, { random: parts.random, longest: () => Number.POSITIVE_INFINITY });
  }

  async of(at: number | null, from: readonly ClaimSource[]): Promise<ClaimOutlook> {
    const { rows, catalog } = this.#parts;
    const shares = new ClaimableLanes({ isPaused: () => false }, []);
    for (;;) {
      const { lanes, nextAt, now, counted } = await this.#ready.find(
        rows,
        { at, holder: null, max: 1 },
        catalog.matching(from),
        shares,
      );
      if (counted === this.#counted) return outlookOf(lanes.length > 0, [nextAt], now);
      await catalog.reload(rows);
      this.#counted = counted;
    }
  }
}
