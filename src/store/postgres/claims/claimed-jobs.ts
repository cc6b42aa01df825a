import type { InitialState } from "../../../core/jobs/admission.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { metaOf } from "../../job-row.ts";
import type { WorkBatch } from "../../sql/work/work-batch.ts";
import type { Added, NewJob } from "../../store.ts";
import { listOf, lists } from "../connection/driver.ts";
import type { JobParts } from "../store-parts.ts";
import type { Tx } from "../transactions/transaction.ts";
import { READY, STARTED, type Started, SUSPECT, toClaimed } from "./claim-statements.ts";
import { startedSql } from "./leases.ts";

type Claim = NonNullable<NewJob["claim"]>;

interface Row {
  key: JobKey;
  lane: number;
  runAt: number;
  job: NewJob;
  answer: Added;
}

/** Jobs that are claimed as they are added, by the process that asks for it. */
export class ClaimedJobs {
  readonly #parts: Pick<JobParts, "catalog" | "settings" | "limits">;
  readonly #sql: Record<"add" | "firstAbove", string>;

  constructor(s: string, parts: Pick<JobParts, "catalog" | "settings" | "limits">) {
    this.#parts = parts;
    this.#sql = {
      add: `
        with given as materialized (select nextval('${s}.fence') as fence),
        job as (
          insert into ${s}.jobs as job (key, state, quiet, lane, priority, policy, attempt, fence, holder, started_at, lease,
            expires_at, run_at, created_at, input)
          select key, 'running', false, lane, priority, policy, 1, given.fence, $2::bigint, $1::bigint, lease, $1::bigint + lease,
            run_at, $1::bigint, input
          from given, unnest($3::bigint[], $4::integer[], $5::integer[], $6::integer[], $7::bigint[], $8::bigint[], $9::text[])
            as asked (key, lane, priority, policy, lease, run_at, input)
          returning ${STARTED}),
        started as (${startedSql(s)})
        select * from job`,
      // Walks jobs_ready and jobs_suspect.
      firstAbove: `
        select max((select priority from ${s}.jobs where lane = lane.id and ${READY} order by priority desc limit 1)),
          exists (select 1 from ${s}.jobs where ${SUSPECT} and lane = any($2::integer[]))
            or exists (select 1 from ${s}.locks where name = $1)
        from unnest($2::integer[]) as lane (id)`,
    };
  }

  /** Returns the priority above which a job comes before the ready jobs of its queue. Infinity: the queue holds its jobs back. */
  async firstAbove(tx: Tx, jobs: readonly NewJob[], batch: WorkBatch | undefined): Promise<Map<string, number>> {
    const { settings, catalog } = this.#parts;
    const queues = new Set(jobs.flatMap(({ claim, queue }) => (claim === undefined ? [] : [queue])));
    const above = Array.from(queues, async (queue): Promise<[string, number]> => {
      if (settings.view.isPaused(queue) || settings.view.recordsEvents(queue) || batch?.totals.hasFailed)
        return [queue, Infinity];
      const lanes = listOf(catalog.lanesOf(queue).map(({ id }) => id));
      const [row] = await tx.rows<[highest: number | null, isHeldBack: boolean]>(this.#sql.firstAbove, queue, lanes);
      const [highest, isHeldBack] = row as [number | null, boolean];
      return [queue, isHeldBack ? Infinity : (highest ?? -Infinity)];
    });
    return new Map(await Promise.all(above));
  }

  async add(tx: Tx, now: number, rows: readonly Row[]): Promise<void> {
    const [one] = rows;
    if (one === undefined) return;
    const { catalog, limits } = this.#parts;
    const { holder } = one.job.claim as Claim;
    const stored = rows.map(({ key, lane, runAt, job }) => {
      const { priority, policy, input, claim } = job;
      return { key, lane, priority, policy: catalog.policyIdOf(policy), lease: (claim as Claim).lease, runAt, input };
    });
    const columns = lists(stored, "key", "lane", "priority", "policy", "lease", "runAt", "input");
    const started = await tx.rows<Started>(this.#sql.add, now, holder, ...columns);
    const answers = new Map(rows.map(({ key, answer }) => [key, answer]));
    for (const row of started) {
      const claimed = toClaimed(row, catalog);
      (answers.get(claimed.job) as Added).claimed = claimed;
      tx.onCommit(() => limits.claimed(claimed.job, claimed.queue));
    }
  }
}

interface NewRow extends Row {
  standing: InitialState;
  gate: string | null;
  limits: string | null;
  id: string | null;
  slot: string | null;
}

export function isClaimable({ standing, gate, limits, id, slot, job }: NewRow): boolean {
  if (job.claim === undefined || standing.state !== "pending" || gate !== null || limits !== null) return false;
  return id === null && slot === null && job.scheduledFor === undefined && metaOf(job) === null;
}
