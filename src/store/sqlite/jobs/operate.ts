import { ELSEWHERE } from "../../job-row.ts";
import type { DependentsDatabase } from "../../sql/dependents.ts";
import type { OperateDatabase } from "../../sql/operate.ts";
import type { OldestJob, RetentionDatabase } from "../../sql/retention.ts";
import { type CheckedJob, jobChecksum } from "../checksum.ts";
import type { Connection } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { JobParts } from "./enqueue.ts";

export function dependentsDatabase(db: Connection, { catalog, limits, jobEvents }: JobParts): DependentsDatabase {
  const behind = db.prepare(
    `select key, lane, priority, policy, created_at, id, slot, coalesce(body, input) as input, scheduled_for, limits, meta
     from holdfast_jobs left join holdfast_inputs on job = key and input = '${ELSEWHERE}'
     where key in (select value from json_each(:keys)) and slot >= char(10) and slot < char(11)`,
  );
  const setSlot = db.prepare("update holdfast_jobs set slot = ?, checksum = ? where key = ?");
  return {
    knowLanes: () => {},
    lane: (id) => catalog.lane(id),
    admit: (tx: Tx, jobs) => jobs.map((job) => limits.in(tx).admit(job)),
    tell(tx: Tx, type, jobs, always) {
      for (const { job, lane } of jobs) if (always || jobEvents.isEnabled(tx, lane)) jobEvents.add(tx, type, job);
    },
    takesSlot: "",
    takeSlots(_tx, jobs) {
      for (const row of behind.all<CheckedJob & { slot: string }>({ keys: JSON.stringify(jobs) })) {
        const slot = row.slot.slice(1);
        setSlot.run(slot, jobChecksum({ ...row, slot }), row.key);
      }
    },
  };
}

/** SQLite has one writer at a time and needs no locks. */
export function operateDatabase(db: Connection, parts: JobParts): OperateDatabase {
  const { settings, limits, effects } = parts;
  return {
    ...dependentsDatabase(db, parts),
    cancel: `
      update holdfast_jobs
      set state = 'cancelled', gate = null, finished_at = :at, expires_at = null, holder = null, worker = null
      where key in (select value from json_each(:jobs)) returning 1`,
    lockClaims: () => {},
    prepare: (tx: Tx) => settings.at(tx.settings),
    attemptsKept: (queue) => settings.view.attemptsKept(queue),
    withdraw(tx: Tx, jobs) {
      for (const job of jobs) limits.in(tx).withdraw(job, job.gate);
    },
    free(tx: Tx, jobs) {
      for (const job of jobs) limits.in(tx).finish(job.lane, job.limits, true);
    },
    follow(tx: Tx, _now, ended) {
      for (const { job, lane, state } of ended) effects.add(job, lane, state);
      effects.write(tx);
    },
    // By holdfast_jobs_aside, or by the key: finished jobs are the oldest.
    isIn: (state) => `state = '${state}'`,
    holderOf: `
      select key from holdfast_jobs
      where slot = :slot and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    removals: [
      // A key is never given out twice: a late settle with an old (job, fence) must not match another job.
      `update holdfast_counter set jobs = highest
       from (select max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) as highest from holdfast_counter) where id = 1`,
      "delete from holdfast_inputs where job in (select value from json_each(:jobs))",
    ],
    lockQueue: () => {},
    subtract(tx: Tx, gone) {
      for (const { lane, state } of gone) effects.count(lane, state, -1);
      effects.write(tx);
    },
    lockRetention: () => true,
  };
}

const OLDEST = `
  select :turn as turn, lane, state, finished_at as "finishedAt", job from holdfast_expiring
  where lane = :lane and state = :state and finished_at < :before order by finished_at, job limit :most`;

export function retentionDatabase({ catalog, settings }: JobParts): RetentionDatabase {
  return {
    isKept: (lane, state) => settings.view.keep(catalog.lane(lane).queue, state) === undefined,
    isEarly: "0",
    prepare: () => {},
    mayBegin: () => true,
    *oldest(db, asked) {
      const found: OldestJob[] = [];
      for (const { turn, lane, state, before, most } of asked)
        found.push(...(yield* db.all<OldestJob>(OLDEST, { turn, lane, state, before, most })));
      return found;
    },
    skipLocked: "",
  };
}
