import { outlookOf, Shares } from "../../../core/jobs/claiming.ts";
import type { ClaimSource, Outlook } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import { listOf, type Rows } from "../connection/driver.ts";
import { ReadyLanes } from "./ready-lanes.ts";
import { LOCKED } from "./claim-locks.ts";
import { READY, SUSPECT, UNSEEN } from "./claimed-row.ts";

type HeaderRow = [lanes: number, now: number];
type LaneRow = [lane: number, paused: boolean, locked: boolean, ready: boolean | null, nextAt: number | null];

/** Whether there is something to claim, and if not, when: what an idle worker asks again and again. */
export class Outlooks {
  readonly #rows: Rows;
  readonly #catalog: Catalog;
  readonly #ready: ReadyLanes;
  readonly #sql: string;
  /** How many lanes there were when all of them were read. */
  #counted = -1;

  constructor(s: string, parts: { rows: Rows; catalog: Catalog; random: () => number }) {
    this.#rows = parts.rows;
    this.#catalog = parts.catalog;
    this.#ready = new ReadyLanes(s, { random: parts.random, longest: () => Number.POSITIVE_INFINITY });
    const some = (which: string) => `(select true from ${s}.jobs where lane = lane.id and ${which} limit 1)`;
    // Whoever claims looks at the limits of his own queues only.
    const limitsDue = `
      (select min(counter.due_at) from ${s}.limits as rule cross join lateral (
         select due_at from ${s}.counters where counters.rule = rule.id and due_at is not null order by due_at limit 1) as counter
       where rule.queue = lane.queue)`;
    // By jobs_ready, jobs_suspect, jobs_unseen and jobs_timed, the first entry of each lane; in one round trip.
    this.#sql = `
      with clock as materialized (select ${s}.clock($1) as now)
      select counter.lanes, clock.now, lane.id, exists (select 1 from ${s}.queues where name = lane.queue and paused),
        exists (select 1 from ${s}.locks as lock where lock.name = lane.queue and ${LOCKED(s)}),
        coalesce(${some(READY)}, ${some(SUSPECT)}, ${some(UNSEEN)}),
        least((select run_at from ${s}.jobs where gate = 'time' and lane = lane.id order by run_at limit 1), ${limitsDue})
      from ${s}.counter cross join clock
      left join unnest($2::integer[], $3::text[]) as lane (id, queue) on true
      where counter.id = 1`;
  }

  async of(at: number | null, from: readonly ClaimSource[]): Promise<Outlook> {
    for (;;) {
      const { counted, outlook } = await (ReadyLanes.areMany(this.#catalog.matching(from))
        ? this.#ofMany(at, from)
        : this.#ofFew(at, from));
      if (counted === this.#counted) return outlook;
      await this.#catalog.reload(this.#rows);
      this.#counted = counted;
    }
  }

  async #ofMany(at: number | null, from: readonly ClaimSource[]): Promise<{ counted: number; outlook: Outlook }> {
    // The server leaves lanes of paused and locked queues out.
    const shares = new Shares({ isPaused: () => false }, []);
    const all = { at, holder: null, max: 1 };
    const { lanes, nextAt, now, counted } = await this.#ready.find(this.#rows, all, this.#catalog.matching(from), shares);
    return { counted, outlook: outlookOf(lanes.length > 0, [nextAt], now) };
  }

  async #ofFew(at: number | null, from: readonly ClaimSource[]): Promise<{ counted: number; outlook: Outlook }> {
    const lanes = this.#catalog.matching(from).all.flatMap(({ lane, source }) => (source.max === 0 ? [] : [lane]));
    const rows = await this.#rows<[...HeaderRow, ...LaneRow]>(
      this.#sql,
      at,
      listOf(lanes.map(({ id }) => id)),
      listOf(lanes.map(({ queue }) => queue)),
    );
    const [[counted, now]] = rows as [[...HeaderRow, ...LaneRow]];
    return { counted, outlook: this.#outlook(from, rows, now) };
  }

  #outlook(from: readonly ClaimSource[], rows: readonly [...HeaderRow, ...LaneRow][], now: number): Outlook {
    const byLane = new Map(rows.map(([, , lane, ...stands]) => [lane, stands]));
    const named = (which: 0 | 1) =>
      new Set([...byLane].filter(([, stands]) => stands[which]).map(([lane]) => this.#catalog.lane(lane).queue));
    const [paused, locked] = [named(0), named(1)];
    const shares = new Shares({ isPaused: (queue) => paused.has(queue) }, locked);
    const lanes = this.#catalog.matching(from).all.filter((matched) => shares.of(matched) !== null);
    const stands = lanes.flatMap(({ lane }) => [byLane.get(lane.id) ?? []]);
    return outlookOf(
      stands.some(([, , ready]) => ready),
      stands.map(([, , , nextAt]) => nextAt ?? null),
      now,
    );
  }
}
