import { damagedRow } from "../../core/errors.ts";
import { generatedId, type JobKey } from "../../core/ids.ts";
import { isFinished, type JobState } from "../../core/job.ts";
import { firing } from "../../core/schedule.ts";
import { auditedSchedule, jobsOf, madeLast, type ScheduleRow, scheduleSaved, toSchedule } from "../schedule-row.ts";
import type { DueSchedules, ScheduleDraft, ScheduleStore, StoredSchedule, Tick } from "../schedules.ts";
import type { Enqueued } from "../store.ts";
import type { Access } from "./access.ts";
import type { Acts } from "./acts.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Enqueue } from "./enqueue.ts";
import type { Tx } from "./group-commit.ts";
import { isSame, rowSum } from "./row-sum.ts";

const COLUMNS = `key, revision, name as job, cron, timezone, missed, within, overlap, paused, last_at as lastAt, next_at as nextAt`;

/** What its checksum covers, and that. */
export const SCHEDULE = "key, cron, timezone, missed, within, overlap, template, name, sum";
/** What a tick goes by. */
const MADE = `${SCHEDULE}, last_job as lastJob`;

interface Made extends SummedSchedule {
  lastJob: JobKey | null;
}

export interface SummedSchedule extends Summed {
  sum: number | null;
}

/** What its checksum covers. */
interface Summed {
  key: string;
  cron: string;
  timezone: string;
  missed: string;
  within: number | null;
  overlap: 0 | 1;
  template: string;
  name: string;
}

/** What is enqueued when. A tick is one transaction: its jobs are there and next_at has moved on, or neither. */
export class Schedules implements ScheduleStore {
  readonly #access: Access;
  readonly #enqueue: Enqueue;
  readonly #acts: Acts;
  readonly #save: Statement;
  readonly #all: Statement;
  readonly #due: Statement;
  readonly #soonest: Statement;
  readonly #move: Statement;
  readonly #made: Statement;
  readonly #template: Statement;
  readonly #job: Statement;
  readonly #remove: Statement;
  readonly #pause: Statement;
  readonly #resume: Statement;

  constructor(db: Connection, parts: { enqueue: Enqueue; acts: Acts }, access: Access) {
    this.#access = access;
    this.#enqueue = parts.enqueue;
    this.#acts = parts.acts;
    // The same pattern again, as at every start of a program, leaves next_at alone: a tick that is due stays due.
    this.#save = db.prepare(
      `insert into holdfast_schedules as old
         (key, revision, cron, timezone, missed, within, overlap, paused, template, name, created_at, next_at, sum)
       values (:key, :revision, :cron, :timezone, :missed, :within, :overlap, 0, :template, :name, :now, :nextAt, :sum)
       on conflict (key) do update set
         revision = excluded.revision, missed = excluded.missed, within = excluded.within, overlap = excluded.overlap,
         template = excluded.template, name = excluded.name, sum = excluded.sum, cron = excluded.cron, timezone = excluded.timezone,
         next_at = case when old.cron = excluded.cron and old.timezone = excluded.timezone
           then old.next_at else excluded.next_at end`,
    );
    this.#all = db.prepare(`select ${COLUMNS} from holdfast_schedules where :key is null or key = :key order by key`);
    // Both by holdfast_schedules_due.
    this.#due = db.prepare(`select ${COLUMNS} from holdfast_schedules where paused = 0 and next_at <= :now order by next_at`);
    this.#soonest = db.prepare("select min(next_at) from holdfast_schedules where paused = 0");
    // Of many processes that saw the same tick, one finds next_at as it was.
    this.#move = db.prepare(
      `update holdfast_schedules set next_at = :nextAt
       where key = :key and revision = :revision and next_at = :from and paused = 0
       returning ${MADE}`,
    );
    this.#made = db.prepare("update holdfast_schedules set last_at = coalesce(?, last_at), last_job = ? where key = ?");
    this.#template = db.prepare(`select ${MADE} from holdfast_schedules where key = :key`);
    this.#job = db.prepare("select state, created_at from holdfast_jobs where key = ?");
    this.#remove = db.prepare(`delete from holdfast_schedules where key = :key returning ${COLUMNS}`);
    this.#pause = db.prepare("update holdfast_schedules set paused = 1 where key = ? and paused = 0");
    // Only from paused: an idle resume must not step over a tick that is due.
    this.#resume = db.prepare(
      "update holdfast_schedules set paused = 0, next_at = :nextAt where key = :key and revision = :revision and paused = 1",
    );
  }

  save(draft: ScheduleDraft): Promise<StoredSchedule> {
    return this.#access.write("schedule", (tx) => {
      const { template, overlap, nextAt, ...rest } = draft;
      const before = this.#saved(draft.key);
      const row: Summed = { ...rest, overlap: overlap ? 1 : 0, template: JSON.stringify(template), name: template.name };
      this.#save.runNamed({
        ...row,
        nextAt,
        sum: scheduleSum(row),
        revision: tx.commit,
        now: tx.now,
      });
      tx.wrote();
      const schedule = this.#read(draft.key)[0] as StoredSchedule;
      const act = scheduleSaved(before, { schedule, template: row.template });
      if (act !== null) this.#acts.add(tx, act);
      return schedule;
    });
  }

  #saved(key: string): { schedule: StoredSchedule; template: string } | null {
    const [schedule] = this.#read(key);
    return schedule === undefined ? null : { schedule, template: (this.#template.get<Made>({ key }) as Made).template };
  }

  all(): Promise<StoredSchedule[]> {
    return this.#access.read(() => this.#read(null));
  }

  get(key: string): Promise<StoredSchedule | null> {
    return this.#access.read(() => this.#read(key)[0] ?? null);
  }

  due(): Promise<DueSchedules> {
    return this.#access.read(() => {
      const now = this.#access.now();
      const soonest = this.#soonest.row()?.[0] as number | null;
      // Nearly always nothing is: one probe of a small index.
      if (soonest === null || soonest > now) return { due: [], nextAt: soonest, now };
      return { due: this.#due.all<ScheduleRow>({ now }).map(toSchedule), nextAt: soonest, now };
    });
  }

  tick({ fire, ...tick }: Tick): Promise<boolean> {
    return this.#access.write("tick", (tx) => {
      const [made] = this.#move.all<Made>({ ...tick });
      if (made === undefined) return false;
      refuseDamaged(made);
      tx.wrote();
      const some = firing(fire, made.overlap === 1, () => this.#unfinished(made) !== undefined);
      if (some.length > 0) this.#add(tx, tick.key, made, some, true);
      return true;
    });
  }

  trigger(key: string): Promise<Enqueued | null> {
    return this.#access.write("schedule", (tx) => {
      const made = this.#template.get<Made>({ key });
      if (made === undefined) return null;
      refuseDamaged(made);
      const unfinished = made.overlap === 1 ? undefined : this.#unfinished(made);
      if (unfinished !== undefined) return { id: unfinished, duplicate: true };
      this.#acts.add(tx, { action: "schedule.triggered", name: key, after: { scheduledFor: tx.now } });
      return this.#add(tx, key, made, [tx.now], false);
    });
  }

  remove(key: string): Promise<boolean> {
    return this.#access.write("schedule", (tx) => {
      const [row] = this.#remove.all<ScheduleRow>({ key });
      if (row === undefined) return false;
      this.#acts.add(tx, { action: "schedule.removed", name: key, before: auditedSchedule(toSchedule(row)), after: null });
      return true;
    });
  }

  pause(key: string): Promise<boolean> {
    return this.#access.write("schedule", (tx) => {
      if (this.#pause.run(key) === 0) return this.#read(key).length === 1;
      this.#acts.add(tx, { action: "schedule.paused", name: key, before: { paused: false }, after: { paused: true } });
      return true;
    });
  }

  resume({ key, revision }: { key: string; revision: number }, nextAt: number): Promise<boolean> {
    return this.#access.write("schedule", (tx) => {
      if (this.#resume.runNamed({ key, revision, nextAt }) === 0) return false;
      const after = { paused: false, nextAt };
      this.#acts.add(tx, { action: "schedule.resumed", name: key, before: { paused: true }, after });
      return true;
    });
  }

  #read(key: string | null): StoredSchedule[] {
    return this.#all.all<ScheduleRow>({ key }).map(toSchedule);
  }

  #add(tx: Tx, key: string, made: Made, ticks: readonly number[], isTick: boolean): Enqueued {
    const answers = this.#enqueue.run(tx, jobsOf(made.template, ticks));
    this.#made.run(isTick ? (ticks.at(-1) as number) : null, madeLast(answers), key);
    tx.wrote();
    return answers.at(-1) as Enqueued;
  }

  /** The id of its last job, unless that is over, or pruned. */
  #unfinished({ lastJob }: Made): string | undefined {
    const row = lastJob === null ? undefined : (this.#job.row(lastJob) as [JobState, number] | undefined);
    return row === undefined || isFinished(row[0]) ? undefined : generatedId(row[1], lastJob as JobKey);
  }
}

export function scheduleSum({ key, cron, timezone, missed, within, overlap, template, name }: Summed): number {
  return rowSum(key, cron, timezone, missed, within, overlap, template, name);
}

function refuseDamaged(made: Made): void {
  if (!isSame(made.sum, scheduleSum(made))) throw damagedRow(`The schedule ${made.key}`);
}
