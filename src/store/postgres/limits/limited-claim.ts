import {
  type Candidate,
  chooseCandidates,
  type ClaimableLane,
  MAX_PROMOTED_JOBS,
  nextReadFactor,
  MAX_CLAIM_READS,
} from "../../../core/jobs/claiming.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { byClaimOrder } from "../../../core/jobs/job.ts";
import type { LimitedJob } from "../../../core/limits/limit-gate.ts";
import type { ClaimRequest } from "../../store.ts";
import {
  byStartedTurn,
  holdsSuspect,
  isSuspect,
  LOCKED,
  READY,
  STARTED,
  type Started,
  startSql,
  SUSPECT,
  UNSEEN,
} from "../claims/claim-statements.ts";
import { startedSql } from "../claims/leases.ts";
import { listOf, placeIn } from "../connection/driver.ts";
import type { Limits } from "./limits.ts";
import type { Tx } from "../transactions/transaction.ts";

type HeadRow = [key: JobKey, lane: number, priority: number, suspect: boolean, limits: string | null];

interface Head extends Candidate {
  limits: string | null;
}

interface Heads {
  all: Head[];
  ends: ReadonlyMap<ClaimableLane, Head>;
}

/** Claims from queues with limits: the limit gate decides for each job whether it starts. */
export class LimitedClaim {
  readonly #limits: Limits;
  readonly #sql: Record<"due" | "setGates" | "heads" | "start", string>;

  constructor(s: string, limits: Limits) {
    this.#limits = limits;
    const head = (which: string, limit: string) => `
      select key, priority, crashes > 0 as suspect, limits from ${s}.jobs
      where lane = lane.id and ${which}
      order by priority desc, key limit ${limit} for update skip locked`;
    const due = (which: string, order: string) => `
      select key, lane, priority, limits from ${s}.jobs
      where lane = any($2::integer[]) and limits is not null and ${which} order by ${order} limit ${MAX_PROMOTED_JOBS} for update skip locked`;
    this.#sql = {
      due: `
        select * from (${due(`gate = 'time' and run_at <= (select ${s}.clock($1))`, "run_at, key")}) as timed
        union all
        select * from (${due(`${UNSEEN} and run_at > ${s}.clock($1)`, "key")}) as unseen`,
      setGates: `
        update ${s}.jobs as job set gate = asked.gate from unnest($1::bigint[], $2::text[]) as asked (key, gate)
        where job.key = asked.key and coalesce(job.gate, '') = 'time'`,
      heads: `
        with clock as materialized (select ${s}.clock($1) as now),
        lane as (
          select * from unnest($2::integer[], $3::text[], $4::integer[]) as lane (id, queue, most)
          where not exists (select 1 from ${s}.locks as lock, clock where lock.name = lane.queue and ${LOCKED(s)}))
        select job.key, lane.id, job.priority, job.suspect, job.limits from lane cross join lateral (
          select * from (${head(READY, "lane.most")}) as ready
          union all
          select * from (${head(SUSPECT, "1")}) as suspect
          where $5 or ($5 is null and not ${holdsSuspect(s, "$6::bigint")})) as job`,
      start: `
        with given as materialized (select ${s}.clock($1) as now, nextval('${s}.fence') as fence),
        asked as (select * from unnest($4::bigint[], $5::bigint[]) as asked (key, lease)),
        started as (${startedSql(s, "asked")})
        update ${s}.jobs as job set ${startSql(`($5::bigint[])[${placeIn("job.key", "$4")}]`, "(select now from given)", "(select fence from given)")}
        where job.key = any($4::bigint[]) and coalesce(job.state, '') = 'pending'
        returning ${STARTED}`,
    };
  }

  /** Admits jobs that are due and what rates allow by now. False: there was nothing to do. */
  async prepare(tx: Tx, queues: readonly ClaimableLane[][]): Promise<boolean> {
    const shares = queues.flat();
    const names = [...new Set(shares.map(({ lane }) => lane.queue))];
    // Pipelined: reads behind the lock see what its last holder committed.
    const [, jobs, counters] = await Promise.all([
      this.#limits.lock(tx, names),
      tx.rows<[JobKey, number, number, string]>(this.#sql.due, tx.at, listOf(shares.map(({ lane }) => lane.id))),
      this.#limits.due(tx, names),
      tx.now(),
    ]);
    const due = jobs.map(([key, lane, priority, limits]) => ({ key, lane, priority, limits }));
    await this.#admit(tx, due);
    await this.#limits.serve(tx, counters);
    return jobs.length + counters.length > 0;
  }

  async #admit(tx: Tx, jobs: readonly LimitedJob[]): Promise<void> {
    if (jobs.length === 0) return;
    const gates = await this.#limits.admit(tx, jobs);
    await tx.rows(this.#sql.setGates, listOf(jobs.map(({ key }) => key)), listOf(gates));
    tx.wrote();
  }

  async takeOnly(
    tx: Tx,
    request: ClaimRequest,
    lanes: readonly ClaimableLane[],
    suspects: boolean | null,
    prepared: Promise<boolean>,
  ): Promise<Started[]> {
    const { max, holder } = request;
    const read = this.#heads(tx, lanes, { max, ahead: 1, suspects, holder });
    const [isChanged, heads] = await Promise.all([prepared, read]);
    return this.take(tx, request, lanes, max, suspects, isChanged ? null : heads);
  }

  /**
   * Claims at most `max` jobs of one queue. Jobs that a limit holds back are parked, and the next ones are read. `suspects`:
   * whether a suspect may be claimed; null: if the process holds none.
   */
  async take(
    tx: Tx,
    request: ClaimRequest,
    lanes: readonly ClaimableLane[],
    max: number,
    suspects: boolean | null,
    first: Heads | null = null,
  ): Promise<Started[]> {
    const taken: Started[] = [];
    let ahead = 1;
    for (let round = 0; round < MAX_CLAIM_READS; round++) {
      const left = max - taken.length;
      const read = { max: left, ahead, suspects: taken.some(isSuspect) ? false : suspects, holder: request.holder };
      const heads = (round === 0 ? first : null) ?? (await this.#heads(tx, lanes, read));
      if (heads.all.length === 0) break;
      const { chosen, held, opened, rows } = await this.#choose(tx, request, heads, left);
      ahead = nextReadFactor(ahead, { chosen, held });
      taken.push(...rows);
      if (held + opened === 0 || taken.length === max) break;
    }
    return taken;
  }

  async #heads(
    tx: Tx,
    lanes: readonly ClaimableLane[],
    { max, ahead, suspects, holder }: { max: number; ahead: number; suspects: boolean | null; holder: number | null },
  ): Promise<Heads> {
    const most = lanes.map(({ budget }) => Math.min(budget.left, max) * ahead);
    const rows = await tx.rows<HeadRow>(
      this.#sql.heads,
      tx.at,
      listOf(lanes.map(({ lane }) => lane.id)),
      listOf(lanes.map(({ lane }) => lane.queue)),
      listOf(most),
      suspects,
      holder,
    );
    const byLane = new Map(lanes.map((share) => [share.lane.id, share]));
    const all = rows
      .map(([key, lane, priority, suspect, limits]): Head => {
        return { key, claimable: byLane.get(lane) as ClaimableLane, priority, suspect, limits };
      })
      .sort(byClaimOrder);
    const ends = new Map<ClaimableLane, Head>();
    for (const [i, share] of lanes.entries()) {
      const read = all.filter((head) => head.claimable === share && !head.suspect);
      if (read.length > 0 && read.length === most[i]) ends.set(share, read.at(-1) as Head);
    }
    return { all, ends };
  }

  async #choose(
    tx: Tx,
    request: ClaimRequest,
    { all, ends }: Heads,
    max: number,
  ): Promise<{ chosen: Head[]; held: number; opened: number; rows: Started[] }> {
    const limited = all.flatMap(({ claimable, limits }) => (limits === null ? [] : [{ lane: claimable.lane.id, limits }]));
    const { answer, opened } = await this.#limits.decide(tx, limited, (gate) =>
      chooseCandidates(all, ends, max, ({ key, priority, claimable, limits }) =>
        limits === null ? "started" : gate.tryStart({ key, priority, lane: claimable.lane.id, limits }),
      ),
    );
    return { ...answer, opened: opened.size, rows: await this.#start(tx, request, answer.chosen) };
  }

  async #start(tx: Tx, { holder, worker }: ClaimRequest, chosen: readonly Head[]): Promise<Started[]> {
    if (chosen.length === 0) return [];
    const byKey = chosen.toSorted((a, b) => a.key - b.key);
    const rows = await tx.rows<Started>(
      this.#sql.start,
      tx.at,
      holder,
      worker || null,
      listOf(byKey.map(({ key }) => key)),
      listOf(byKey.map(({ claimable }) => claimable.lease)),
    );
    for (const { key, claimable, limits } of chosen) {
      if (limits !== null) this.#limits.claimed(key, claimable.lane.queue, { lane: claimable.lane.id, limits });
    }
    tx.wrote();
    return rows.sort(byStartedTurn);
  }
}
