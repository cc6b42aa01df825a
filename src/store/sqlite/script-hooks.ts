import type { Fence, ResultKey } from "../../core/text/ids.ts";
import { ELSEWHERE } from "../job-row.ts";
import type { DependentsDatabase } from "../sql/dependents.ts";
import type { Notes } from "../sql/notes.ts";
import type { Cancel, OperateDatabase } from "../sql/operate.ts";
import type { OldestJob, RetentionDatabase } from "../sql/retention.ts";
import type { WorkDatabase } from "../sql/work/work-batches.ts";
import type { WorkHooks } from "../sql/work/work.ts";
import { type CheckedJob, jobChecksum } from "./checksum.ts";
import type { Connection } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Catalog } from "./jobs/catalog.ts";
import type { EnqueueParts, JobParts } from "./jobs/enqueue.ts";
import type { StoreAccess } from "./scripts.ts";

export function dependentsDatabase(db: Connection, { catalog, limits, jobEvents }: JobParts): DependentsDatabase {
  const behind = db.prepare(
    `select key, lane, priority, policy, created_at, id, slot, coalesce(body, input) as input, scheduled_for, limits, meta
     from holdfast_jobs left join holdfast_inputs on job = key and input = '${ELSEWHERE}'
     where key in (select value from json_each(:keys)) and slot >= char(10) and slot < char(11)`,
  );
  const setSlot = db.prepare("update holdfast_jobs set slot = ?, checksum = ? where key = ?");
  return {
    lane: (id) => catalog.lane(id),
    admit: (tx: Tx, jobs) => jobs.map((job) => limits.admit(tx, job)),
    recordEvents(tx: Tx, type, jobs, always) {
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

export function operateDatabase(db: Connection, parts: JobParts): OperateDatabase {
  const { settings, limits, effects } = parts;
  return {
    ...dependentsDatabase(db, parts),
    cancel: `
      update holdfast_jobs
      set state = 'cancelled', gate = null, finished_at = :at, expires_at = null, holder = null, worker = null
      where key in (select value from json_each(:jobs)) returning 1`,
    prepare: (tx: Tx) => settings.at(tx.settings),
    attemptsKept: (queue) => settings.view.attemptsKept(queue),
    withdraw: (tx: Tx, jobs) => limits.withdraw(tx, jobs),
    free(tx: Tx, jobs) {
      for (const job of jobs) limits.finish(tx, job.lane, job.limits, true);
    },
    follow(tx: Tx, _now, ended) {
      for (const { job, lane, state } of ended) effects.add(job, lane, state);
      effects.write(tx);
    },
    // SQLite uses holdfast_jobs_aside, or the key, because finished jobs are the oldest.
    isIn: (state) => `state = '${state}'`,
    holderOf: `
      select key from holdfast_jobs
      where slot = :slot and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    removals: [
      // Never give out a key twice: a late settle with an old (job, fence) must not match another job.
      `update holdfast_counter set jobs = highest
       from (select max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) as highest from holdfast_counter) where id = 1`,
      "delete from holdfast_inputs where job in (select value from json_each(:jobs))",
    ],
    subtract(tx: Tx, gone) {
      for (const { lane, state } of gone) effects.count(lane, state, -1);
      effects.write(tx);
    },
  };
}

const OLDEST = `
  select :turn as turn, lane, state, finished_at as "finishedAt", job from holdfast_expiring
  where lane = :lane and state = :state and finished_at < :before order by finished_at, job limit :most`;

export function retentionDatabase({ catalog, settings }: JobParts): RetentionDatabase {
  return {
    isKept: (lane, state) => settings.view.keep(catalog.lane(lane).queue, state) === undefined,
    isEarly: "0",
    *oldest(db, asked) {
      const found: OldestJob[] = [];
      for (const { turn, lane, state, before, most } of asked)
        found.push(...(yield* db.all<OldestJob>(OLDEST, { turn, lane, state, before, most })));
      return found;
    },
    skipLocked: "",
  };
}

export function workDatabase(db: Connection, catalog: Catalog): WorkDatabase {
  const sequence = db.prepare("select seq from sqlite_sequence where name = 'holdfast_results'");
  // Remember taken keys: an operation takes them before it writes its rows, and another of the transaction may take some then.
  let taken = { commit: 0 as Fence, key: 0 };
  return {
    queueOf: (lane) => catalog.lane(lane).queue,
    resultKeys({ commit }: Tx, count) {
      const written = Number(sequence.row()?.[0] ?? 0);
      const last = taken.commit === commit ? Math.max(written, taken.key) : written;
      taken = { commit, key: last + count };
      return Array.from({ length: count }, (_, i) => (last + 1 + i) as ResultKey);
    },
    overtaken: () => new Error("Another transaction has added the same target."),
  };
}

export function workHooks(
  db: Connection,
  parts: { enqueueParts: EnqueueParts; cancel: Cancel; notes: Notes; access: StoreAccess },
): WorkHooks {
  const { enqueueParts, cancel, notes, access } = parts;
  const { settings, enqueue } = enqueueParts;
  const referenced = db.prepare(
    "select value from json_each(?) as one where exists (select 1 from holdfast_artifacts where hash = one.value)",
  );
  return {
    settings,
    cancel,
    enqueue,
    notes,
    // Read under the write lock, when transactions that were under way are committed or rolled back.
    referenced: (hashes) =>
      access.write("prune", () => new Set(referenced.rows(JSON.stringify(hashes)).map(([hash]) => hash as string))),
  };
}
