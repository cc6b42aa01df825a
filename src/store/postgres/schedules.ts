import { generatedId, type JobKey } from "../../core/ids.ts";
import { isFinished, type JobState } from "../../core/job.ts";
import { firing, type Missed } from "../../core/schedule.ts";
import { auditedSchedule, jobsOf, madeLast, scheduleSaved, toSchedule } from "../schedule-row.ts";
import type { DueSchedules, ScheduleDraft, ScheduleStore, StoredSchedule, Tick } from "../schedules.ts";
import type { Enqueued } from "../store.ts";
import type { Access } from "./access.ts";
import type { Acts } from "./acts.ts";
import type { Rows } from "./driver.ts";
import type { Enqueue } from "./enqueue.ts";
import type { Tx } from "./transaction.ts";

const COLUMNS = "key, revision, name, cron, timezone, missed, within, overlap, paused, last_at, next_at";
type Row = [
  key: string,
  revision: number,
  job: string,
  cron: string,
  timezone: string,
  missed: Missed,
  within: number | null,
  overlap: boolean,
  paused: boolean,
  lastAt: number | null,
  nextAt: number,
];
type Made = [template: string, overlap: boolean, lastJob: JobKey | null];

/** What is enqueued when. A tick is one transaction: its jobs are there and next_at has moved on, or neither. */
export class Schedules implements ScheduleStore {
  readonly #access: Access;
  readonly #enqueue: Enqueue;
  readonly #acts: Acts;
  readonly #sql: Record<"save" | "all" | "due" | "move" | "made" | "template" | "job" | "remove" | "pause" | "resume", string>;

  constructor(s: string, parts: { enqueue: Enqueue; acts: Acts }, access: Access) {
    this.#access = access;
    this.#enqueue = parts.enqueue;
    this.#acts = parts.acts;
    const table = `${s}.schedules`;
    this.#sql = {
      // The same pattern again, as at every start of a program, leaves next_at alone: a tick that is due stays due.
      save: `
        insert into ${table} as old
          (key, revision, cron, timezone, missed, within, overlap, paused, template, name, created_at, next_at)
        values ($2, nextval('${s}.fence'), $3, $4, $5, $6, $7, false, $8, $9, ${s}.clock($1), $10)
        on conflict (key) do update set
          revision = excluded.revision, missed = excluded.missed, within = excluded.within, overlap = excluded.overlap,
          template = excluded.template, name = excluded.name, cron = excluded.cron, timezone = excluded.timezone,
          next_at = case when old.cron = excluded.cron and old.timezone = excluded.timezone
            then old.next_at else excluded.next_at end
        returning ${COLUMNS}`,
      all: `select ${COLUMNS} from ${table} where $1::text is null or key = $1 order by key collate "C"`,
      // In one statement, hence of one instant: what is due, and what comes next. By schedules_due.
      due: `
        with clock as materialized (select ${s}.clock($1) as now)
        select ${COLUMNS}, now from clock left join ${table}
          on not paused and next_at <= greatest(now, (select min(next_at) from ${table} where not paused))
        order by next_at, key collate "C"`,
      // Of many processes that saw the same tick, one finds next_at as it was; the others wait for it, and do not.
      move: `
        update ${table} set next_at = $4 where key = $1 and revision = $2 and next_at = $3 and not paused
        returning template, overlap, last_job`,
      made: `update ${table} set last_at = coalesce($2, last_at), last_job = $3 where key = $1`,
      // Two who trigger it at once come one after the other, and the second sees the first one's job.
      template: `select template, overlap, last_job from ${table} where key = $1 for no key update`,
      job: `select state, created_at from ${s}.jobs where key = $1`,
      remove: `delete from ${table} where key = $1 returning ${COLUMNS}`,
      pause: `update ${table} set paused = true where key = $1 and not paused returning 1`,
      // Only from paused: an idle resume must not step over a tick that is due.
      resume: `update ${table} set paused = false, next_at = $3 where key = $1 and revision = $2 and paused returning 1`,
    };
  }

  save(draft: ScheduleDraft): Promise<StoredSchedule> {
    return this.#write("schedule", draft.key, async (tx) => {
      const { key, cron, timezone, missed, within, overlap, template, nextAt } = draft;
      const made = [JSON.stringify(template), template.name] as const;
      const before = await this.#saved(tx, key);
      const saved = await tx.rows<Row>(this.#sql.save, tx.at, key, cron, timezone, missed, within, overlap, ...made, nextAt);
      tx.wrote();
      const schedule = read(saved[0] as Row);
      const act = scheduleSaved(before, { schedule, template: made[0] });
      if (act !== null) await this.#acts.add(tx, act);
      return schedule;
    });
  }

  /** Locked: of two who save it at once, the second finds what the first has made of it. */
  async #saved(tx: Tx, key: string): Promise<{ schedule: StoredSchedule; template: string } | null> {
    const [made] = await tx.rows<Made>(this.#sql.template, key);
    const [schedule] = made === undefined ? [] : await this.#read(tx.rows, key);
    return made === undefined || schedule === undefined ? null : { schedule, template: made[0] };
  }

  all(): Promise<StoredSchedule[]> {
    return this.#read(this.#access.read, null);
  }

  async get(key: string): Promise<StoredSchedule | null> {
    const [schedule] = await this.#read(this.#access.read, key);
    return schedule ?? null;
  }

  async due(): Promise<DueSchedules> {
    const rows = await this.#access.read<[...Row, now: number]>(this.#sql.due, this.#access.at());
    const found = rows as [[...Row, now: number]];
    const [first] = found;
    const now = first[11];
    // One row without a schedule, where there is none.
    return { due: found.filter((row) => row[0] !== null && row[10] <= now).map(read), nextAt: first[10] ?? null, now };
  }

  tick({ key, revision, from, fire, nextAt }: Tick): Promise<boolean> {
    return this.#write("tick", key, async (tx) => {
      const [made] = await tx.rows<Made>(this.#sql.move, key, revision, from, nextAt);
      if (made === undefined) return false;
      tx.wrote();
      const unfinished = await this.#unfinished(tx, made);
      const some = firing(fire, made[1], () => unfinished !== undefined);
      if (some.length > 0) await this.#add(tx, key, made, some, some.at(-1) as number);
      return true;
    });
  }

  trigger(key: string): Promise<Enqueued | null> {
    return this.#write("schedule", key, async (tx) => {
      const [made] = await tx.rows<Made>(this.#sql.template, key);
      if (made === undefined) return null;
      const unfinished = await this.#unfinished(tx, made);
      if (unfinished !== undefined) return { id: unfinished, duplicate: true };
      const now = await tx.now();
      await this.#acts.add(tx, { action: "schedule.triggered", name: key, after: { scheduledFor: now } });
      return this.#add(tx, key, made, [now], null);
    });
  }

  remove(key: string): Promise<boolean> {
    return this.#write("schedule", key, async (tx) => {
      const [row] = await tx.rows<Row>(this.#sql.remove, key);
      if (row === undefined) return false;
      await this.#acts.add(tx, { action: "schedule.removed", name: key, before: auditedSchedule(read(row)), after: null });
      return true;
    });
  }

  pause(key: string): Promise<boolean> {
    return this.#write("schedule", key, async (tx) => {
      if ((await tx.rows(this.#sql.pause, key)).length === 0) return (await this.#read(tx.rows, key)).length === 1;
      await this.#acts.add(tx, { action: "schedule.paused", name: key, before: { paused: false }, after: { paused: true } });
      return true;
    });
  }

  resume({ key, revision }: { key: string; revision: number }, nextAt: number): Promise<boolean> {
    return this.#write("schedule", key, async (tx) => {
      if ((await tx.rows(this.#sql.resume, key, revision, nextAt)).length === 0) return false;
      const after = { paused: false, nextAt };
      await this.#acts.add(tx, { action: "schedule.resumed", name: key, before: { paused: true }, after });
      return true;
    });
  }

  async #read(rows: Rows, key: string | null): Promise<StoredSchedule[]> {
    return (await rows<Row>(this.#sql.all, key)).map(read);
  }

  #write<T>(operation: "schedule" | "tick", key: string, run: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#access.write(operation, run, { row: `schedule ${key}` });
  }

  async #add(tx: Tx, key: string, [template]: Made, ticks: readonly number[], lastAt: number | null): Promise<Enqueued> {
    const answers = await this.#enqueue.run(tx, jobsOf(template, ticks));
    await tx.rows(this.#sql.made, key, lastAt, madeLast(answers));
    tx.wrote();
    return answers.at(-1) as Enqueued;
  }

  /** The id of its last job, unless that is over, or pruned, or may have others beside it. */
  async #unfinished(tx: Tx, [, overlap, lastJob]: Made): Promise<string | undefined> {
    if (overlap || lastJob === null) return undefined;
    const [row] = await tx.rows<[JobState, number]>(this.#sql.job, lastJob);
    return row === undefined || isFinished(row[0]) ? undefined : generatedId(row[1], lastJob);
  }
}

function read(row: readonly [...Row, ...unknown[]]): StoredSchedule {
  const [key, revision, job, cron, timezone, missed, within, overlap, paused, lastAt, nextAt] = row;
  return toSchedule({ key, revision, job, cron, timezone, missed, within, overlap, paused, lastAt, nextAt });
}
