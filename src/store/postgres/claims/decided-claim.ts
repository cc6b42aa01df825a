import {
  type Candidate,
  chooseCandidates,
  type ClaimableLane,
  MAX_CLAIM_READS,
  MAX_PROMOTED_JOBS,
  nextReadFactor,
  queueOf,
  quotas,
} from "../../../core/jobs/claiming.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { byClaimOrder } from "../../../core/jobs/job.ts";
import type { ClaimRequest } from "../../store.ts";
import { holdsSuspect, isSuspect, LOCKED, READY, STARTED, type Started, startSql, SUSPECT, UNSEEN } from "./claim-statements.ts";
import { startedSql } from "./leases.ts";
import { listOf, placeIn } from "../connection/driver.ts";
import { RerunTransaction } from "../connection/faults.ts";
import type { Limits } from "../limits.ts";
import type { Tx } from "../transactions/transaction.ts";

type HeadRow = [key: JobKey, lane: number, priority: number, suspect: boolean, limits: string | null];

interface Head extends Candidate {
  limits: string | null;
}

interface Heads {
  byQueue: ReadonlyMap<string, Head[]>;
  ends: ReadonlyMap<ClaimableLane, Head>;
}

/** A queue to claim from: `most` is how many jobs it may still give, and `ahead` how many times more are read. */
interface OpenQueue {
  lanes: readonly ClaimableLane[];
  most: number;
  ahead: number;
}

/** Makes claims that one statement cannot: it reads and locks the next jobs; `chooseCandidates` and the limit gate decide. */
export class DecidedClaim {
  readonly #limits: Limits;
  readonly #sql: Record<"locked" | "promote" | "due" | "setGates" | "heads" | "start", string>;

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
      locked: `
        with clock as materialized (select ${s}.clock($1) as now)
        select lock.name from ${s}.locks as lock, clock where lock.name = any($2::text[]) and ${LOCKED(s)}`,
      // The instant comes from a subselect: if it were a function, each delayed job would be read.
      promote: `
        update ${s}.jobs set gate = null where key in (
          select key from ${s}.jobs
          where gate = 'time' and lane = any($2::integer[]) and run_at <= (select ${s}.clock($1)) and limits is null
          order by run_at limit ${MAX_PROMOTED_JOBS} for update skip locked)
        returning 1`,
      due: `
        select * from (${due(`gate = 'time' and run_at <= (select ${s}.clock($1))`, "run_at, key")}) as timed
        union all
        select * from (${due(`${UNSEEN} and run_at > ${s}.clock($1)`, "key")}) as unseen`,
      setGates: `
        update ${s}.jobs as job set gate = asked.gate from unnest($1::bigint[], $2::text[]) as asked (key, gate)
        where job.key = asked.key and coalesce(job.gate, '') = 'time'`,
      // $5 says whether a suspect may be claimed. Null: one may be if the process $6 holds none.
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
        job as (
          update ${s}.jobs as job set ${startSql(`($5::bigint[])[${placeIn("job.key", "$4")}]`, "(select now from given)", "(select fence from given)")}
          where job.key = any($4::bigint[]) and coalesce(job.state, '') = 'pending'
          returning ${STARTED}),
        started as (${startedSql(s)})
        select * from job`,
    };
  }

  /** `queues` are in the order in which they are served. `limited` are those with limits. */
  async take(tx: Tx, request: ClaimRequest, queues: ClaimableLane[][], limited: ClaimableLane[][]): Promise<Started[]> {
    const rows: Started[] = [];
    // Pipelined in this order, because locks of queues with limits come before any row.
    const prepared = limited.length === 0 ? false : this.#prepare(tx, limited);
    const promoted = tx.rows(this.#sql.promote, tx.at, listOf(queues.flat().map(({ lane }) => lane.id)));
    const ready = Promise.all([prepared, promoted]);
    ready.catch(() => {});
    const open = queues.length === 1 ? queues : await this.#unlocked(tx, queues);
    const passes = quotas(request.max, open.length).map((most) => open.map((lanes) => ({ lanes, most, ahead: 1 })));
    const read = this.#heads(tx, request, passes[0] as OpenQueue[], rows);
    const [[isChanged], first] = await Promise.all([ready, read]);
    let heads = isChanged ? null : first;
    for (const pass of passes) {
      let left: OpenQueue[] = pass;
      for (let round = 0; round < MAX_CLAIM_READS && left.length > 0 && rows.length < request.max; round++) {
        left = await this.#takeRound(tx, request, left, heads ?? (await this.#heads(tx, request, left, rows)), rows);
        heads = null;
      }
    }
    return rows;
  }

  /** Leaves out locked queues, so that they take no share of a claim. */
  async #unlocked(tx: Tx, queues: ClaimableLane[][]): Promise<ClaimableLane[][]> {
    const locked = new Set((await tx.rows<[string]>(this.#sql.locked, tx.at, listOf(queues.map(queueOf)))).map(([name]) => name));
    return queues.filter((lanes) => !locked.has(queueOf(lanes)));
  }

  /** Admits jobs that are due, or that rates allow by now. Returns false if there was nothing to do. */
  async #prepare(tx: Tx, queues: readonly ClaimableLane[][]): Promise<boolean> {
    const lanes = queues.flat().map(({ lane }) => lane);
    const names = queues.map(queueOf);
    // These reads come after the lock, so they see what its last holder committed.
    const [, jobs, counters] = await Promise.all([
      this.#limits.lock(tx, names),
      tx.rows<[JobKey, number, number, string]>(this.#sql.due, tx.at, listOf(lanes.map(({ id }) => id))),
      this.#limits.due(tx, names),
      tx.now(),
    ]);
    const due = jobs.map(([key, lane, priority, limits]) => ({ key, lane, priority, limits }));
    if (due.length > 0) {
      const gates = await this.#limits.admit(tx, due);
      await tx.rows(this.#sql.setGates, listOf(due.map(({ key }) => key)), listOf(gates));
      tx.wrote();
    }
    await this.#limits.serve(tx, counters);
    return jobs.length + counters.length > 0;
  }

  async #heads(tx: Tx, { holder, max }: ClaimRequest, open: readonly OpenQueue[], taken: readonly Started[]): Promise<Heads> {
    const left = max - taken.length;
    const asked = open.flatMap(({ lanes, most, ahead }) =>
      lanes.map((claimable) => ({ claimable, most: Math.min(claimable.budget.left, most, left) * ahead })),
    );
    const rows = await tx.rows<HeadRow>(
      this.#sql.heads,
      tx.at,
      listOf(asked.map(({ claimable }) => claimable.lane.id)),
      listOf(asked.map(({ claimable }) => claimable.lane.queue)),
      listOf(asked.map(({ most }) => most)),
      taken.some(isSuspect) ? false : holder === null ? true : null,
      holder,
    );
    const byLane = new Map(asked.map(({ claimable, most }) => [claimable.lane.id, { claimable, left: most }]));
    const byQueue = new Map<string, Head[]>(open.map(({ lanes }) => [queueOf(lanes), []]));
    const ends = new Map<ClaimableLane, Head>();
    const heads = rows.map(([key, lane, priority, suspect, limits]) => ({ key, lane, priority, suspect, limits }));
    for (const { lane, ...head } of heads.sort(byClaimOrder)) {
      const from = byLane.get(lane) as { claimable: ClaimableLane; left: number };
      const read = { ...head, claimable: from.claimable };
      byQueue.get(from.claimable.lane.queue)?.push(read);
      if (!head.suspect && --from.left === 0) ends.set(from.claimable, read);
    }
    return { byQueue, ends };
  }

  /** Starts jobs, and parks jobs that a limit holds back. Returns the queues that may have more behind the parked jobs. */
  async #takeRound(
    tx: Tx,
    request: ClaimRequest,
    open: readonly OpenQueue[],
    { byQueue, ends }: Heads,
    rows: Started[],
  ): Promise<OpenQueue[]> {
    const chosen: Head[] = [];
    const again: OpenQueue[] = [];
    for (const { lanes, most, ahead } of open) {
      const left = Math.min(most, request.max - rows.length - chosen.length);
      const all = byQueue.get(queueOf(lanes)) as Head[];
      const heads = chosen.some(({ suspect }) => suspect) ? all.filter(({ suspect }) => !suspect) : all;
      if (left <= 0 || heads.length === 0) continue;
      const { answer, opened } = await this.#choose(tx, heads, ends, left);
      chosen.push(...answer.chosen);
      if (answer.held + opened.size > 0 && answer.chosen.length < left)
        again.push({ lanes, most: most - answer.chosen.length, ahead: nextReadFactor(ahead, answer) });
    }
    rows.push(...(await this.#start(tx, request, chosen)));
    return again;
  }

  async #choose(tx: Tx, heads: Head[], ends: Heads["ends"], max: number) {
    const limited = heads.flatMap(({ claimable, limits }) => (limits === null ? [] : [{ lane: claimable.lane.id, limits }]));
    if (limited.length === 0) return { answer: chooseCandidates(heads, ends, max, () => "started"), opened: new Set<JobKey>() };
    return this.#limits.decide(tx, limited, (gate) =>
      chooseCandidates(heads, ends, max, ({ key, priority, claimable, limits }) =>
        limits === null ? "started" : gate.tryStart({ key, priority, lane: claimable.lane.id, limits }),
      ),
    );
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
    // Another call of the same transaction may have changed a job since it was read; the gate has counted it.
    if (rows.length < chosen.length && chosen.some(({ limits }) => limits !== null))
      throw new RerunTransaction("A job was changed while it was claimed.", { soon: true });
    for (const { key, claimable, limits } of chosen) {
      if (limits !== null) this.#limits.claimed(key, claimable.lane.queue, { lane: claimable.lane.id, limits });
    }
    return rows;
  }
}
