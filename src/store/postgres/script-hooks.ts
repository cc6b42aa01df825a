import type { DependentsDatabase } from "../sql/dependents.ts";
import type { CancelDatabase, OperateDatabase } from "../sql/operate.ts";
import type { OldestJob, RetentionDatabase } from "../sql/retention.ts";
import { runAsync } from "../sql/script.ts";
import type { Catalog, Settings } from "./catalog.ts";
import { endedSql } from "./claims/leases.ts";
import { listOf } from "./connection/driver.ts";
import { dialectOf } from "./scripts.ts";
import type { JobParts } from "./store-parts.ts";
import { MUTEX, Stalled, tryLockMutex } from "./transactions/mutexes.ts";
import type { Access, Tx } from "./transactions/transaction.ts";
import type { ResultKey } from "../../core/text/ids.ts";
import type { Notes } from "../sql/notes.ts";
import type { WorkDatabase } from "../sql/work/work-batches.ts";
import type { WorkHooks } from "../sql/work/work.ts";
import { RerunTransaction } from "./connection/faults.ts";
import type { Limits } from "./limits.ts";
import type { Reader } from "./connection/session.ts";
import { LOCK_WAIT_MS } from "./connection/session-settings.ts";

type DependentsParts = Pick<JobParts, "catalog" | "limits" | "events">;

export function dependentsDatabase({ catalog, limits, events }: DependentsParts): DependentsDatabase {
  return {
    knowLanes: (tx: Tx, lanes) => catalog.knowLanes(tx.rows, lanes),
    lane: (id) => catalog.lane(id),
    admit: (tx: Tx, jobs) => limits.admit(tx, jobs),
    recordEvents(tx: Tx, type, jobs, always) {
      const happened = jobs.map(({ job, lane }) => ({ type, job, lane }));
      return always ? events.record(tx, happened) : events.recordIfEnabled(tx, happened);
    },
    takesSlot: ", slot = case when starts_with(job.slot, E'\\n') then substr(job.slot, 2) else job.slot end",
  };
}

type CancelParts = DependentsParts & Pick<JobParts, "settings" | "effects">;

export function cancelDatabase(s: string, parts: CancelParts): CancelDatabase {
  const { settings, limits, effects } = parts;
  const lockClaims = `
    select (select count(*) from ${s}.claims where fence = any($1::bigint[])), count(*)
    from (select 1 from ${s}.claims where fence = any($1::bigint[]) order by fence for update skip locked) as held`;
  return {
    ...dependentsDatabase(parts),
    cancel: `
      with ended as (
        update ${s}.jobs as job
        set state = 'cancelled', gate = null, finished_at = :at, expires_at = null, holder = null, worker = null
        from (select key, state from ${s}.jobs where key = any(cast(:jobs as bigint[]))) as was where job.key = was.key
        returning case when was.state = 'running' then job.fence end as fence),
      ${endedSql(s, "ended")}
      select 1 from ended`,
    // A transaction that settles other jobs of these claims may wait for the rows locked here: run again instead of waiting.
    async lockClaims(tx: Tx, fences) {
      const [row] = await tx.rows<[number, number]>(lockClaims, listOf([...new Set(fences)]));
      if (row?.[0] !== row?.[1]) throw new Stalled();
    },
    prepare: (tx: Tx) => settings.at(tx),
    attemptsKept: (queue) => settings.view.attemptsKept(queue),
    withdraw: (tx: Tx, jobs) => limits.withdraw(tx, jobs),
    free(tx: Tx, jobs) {
      const ended = jobs.map((job) => ({ ...job, began: true }));
      return limits.end(tx, ended);
    },
    follow: (tx: Tx, now, ended) => effects.follow(tx, now, ended),
  };
}

export function operateDatabase(s: string, parts: CancelParts & Pick<JobParts, "tally">): OperateDatabase {
  const { limits, tally } = parts;
  const lockRetention = tryLockMutex(s, MUTEX.retention);
  return {
    ...cancelDatabase(s, parts),
    // The condition is written out, so that the planner finds the partial index.
    isIn: (state) => (state === "succeeded" ? "state = 'succeeded'" : `aside = '${state}'`),
    // A job that another transaction adds at this instant violates jobs_slot, and this transaction runs again.
    holderOf: `select 1 from ${s}.jobs where reserved = :slot`,
    removals: [],
    lockQueue: (tx: Tx, queue) => limits.lock(tx, [queue]),
    subtract: (tx: Tx, gone) => tally.subtract(tx, gone),
    lockRetention: async (tx: Tx) => (await tx.rows(lockRetention)).length > 0,
  };
}

export function retentionDatabase(s: string, { catalog, settings }: { catalog: Catalog; settings: Settings }): RetentionDatabase {
  const xmin = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
  const asked = { turn: "bigint", lane: "bigint", state: "text", before: "bigint", most: "bigint" } as const;
  const oldest = `
    select ask.turn, one.* from ${dialectOf(s).rows(":asked", asked)} as ask cross join lateral (
      select lane, state, finished_at as "finishedAt", job from ${s}.expiring
      where lane = ask.lane and state = ask.state and finished_at < ask.before
      order by finished_at, job limit ask.most) as one`;
  return {
    isKept: (lane, state) => settings.view.keep(catalog.lane(lane).queue, state) === undefined,
    isEarly: `coalesce(${xmin} < -backfill, false)`,
    prepare: (tx: Tx) => settings.at(tx),
    // A settle that did not know of `keep` may be uncommitted: wait for every transaction that began before this one.
    async mayBegin(tx: Tx, queue) {
      const own = ((await tx.rows<[number]>("select pg_current_xact_id()::text::bigint")) as [[number]])[0][0];
      const first = ((await tx.rows<[number]>(`select ${xmin}`)) as [[number]])[0][0];
      if (first >= own) return true;
      await runAsync(tx.run(`update ${s}.queues set backfill = -cast(:own as bigint) where name = :queue`, { own, queue }));
      return false;
    },
    oldest: (db, jobs) => db.all<OldestJob>(oldest, { asked: JSON.stringify(jobs) }),
    skipLocked: " for update of job skip locked",
  };
}

export function workDatabase(s: string, { catalog, limits }: { catalog: Catalog; limits: Limits }): WorkDatabase {
  return {
    queueOf: (lane) => catalog.lane(lane).queue,
    async lockEnding(tx: Tx, jobs, queues) {
      await limits.lock(tx, queues);
      limits.unclaimed(jobs);
    },
    // Held from the check that artifacts exist until the commit. `referenced` waits for the holders and sees their references;
    // later transactions find swept artifacts missing.
    lockArtifacts: (tx: Tx) => tx.rows(`lock table ${s}.artifacts in row exclusive mode`),
    async resultKeys(tx: Tx, count) {
      const sql = `select nextval('${s}.results_key_seq') from generate_series(1, $1::integer)`;
      return (await tx.rows<[ResultKey]>(sql, count)).map(([key]) => key);
    },
    overtaken: () => new RerunTransaction("Another transaction has added the same target."),
  };
}

export function workHooks(s: string, parts: { jobParts: JobParts; notes: Notes; reader: Reader; access: Access }): WorkHooks {
  const { jobParts, notes, reader, access } = parts;
  const { settings, limits, enqueue, catalog, cancel } = jobParts;
  return {
    settings,
    cancel,
    enqueue,
    notes,
    prepare: (tx: Tx) => settings.at(tx),
    knowLanes: (tx: Tx, lanes) => catalog.knowLanes(tx.rows, lanes),
    claimedQueues: (jobs) => limits.claimedIn(jobs),
    lockQueues: (tx: Tx, queues) => limits.lock(tx, queues),
    async referenced(hashes) {
      await access.write("prune", async () => {});
      if (hashes.length === 0) return new Set();
      // Runs in a transaction of its own, so that it holds nothing that the transactions it waits for need.
      const answers = await reader.script<[string]>(
        "set transaction isolation level read committed",
        `set local lock_timeout = ${LOCK_WAIT_MS}`,
        `lock table ${s}.artifacts in share mode`,
        `select hash from unnest('${listOf(hashes).replaceAll("'", "''")}'::text[]) as asked (hash)
         where exists (select 1 from ${s}.artifacts where artifacts.hash = asked.hash)`,
      );
      return new Set((answers.at(-1) as [string][]).map(([hash]) => hash));
    },
  };
}
