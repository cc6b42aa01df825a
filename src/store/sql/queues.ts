import { isFinished, type JobState } from "../../core/jobs/job.ts";
import { BUCKET_BOUNDS_MS, type QueueMinute } from "../../core/jobs/minutes.ts";
import { ticksToFire } from "../../core/jobs/schedule.ts";
import type { LimitRule } from "../../core/limits/limit.ts";
import type { Declaration, SettingsChange } from "../../core/limits/settings.ts";
import { generatedId, type JobKey } from "../../core/text/ids.ts";
import { type Flag, isYes } from "../job-row.ts";
import {
  auditedSchedule,
  jobsOf,
  madeLast,
  type LimitUsage,
  type MinutesQuery,
  type ScheduleDraft,
  type ScheduleRow,
  scheduleSaved,
  type StoredSchedule,
  type Tick,
  toSchedule,
} from "../queues.ts";
import type { Enqueued, QueueStore, ScheduleStore } from "../store.ts";
import type { Audit } from "./audit.ts";
import {
  RowGuard,
  type Access,
  type Dialect,
  type Enqueue,
  type Params,
  type Reads,
  type Script,
  type Settings,
  type Tx,
  wait,
} from "./script.ts";

const COUNTS = ["succeeded", "failed", "retried", "by_hand", "wait_ms", "run_ms"] as const;
const WAITS = bucketColumns("wait");
const RUNS = bucketColumns("run");
export const MINUTE_COLUMNS = [...COUNTS, ...WAITS, ...RUNS];

type MinuteRow = Record<string, number> & { queue: never };

export class Queues implements QueueStore {
  readonly #access: Access;
  readonly #parts: { settings: Settings; audit: Audit };
  readonly #limits: string;
  readonly #minutes: ReturnType<typeof minutesSql>;

  constructor(dialect: Dialect, parts: { settings: Settings; audit: Audit }, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#limits = limitsSql(dialect);
    this.#minutes = minutesSql(dialect);
  }

  limits(limit: number): Promise<LimitUsage[]> {
    return this.#access.read((db) => db.all<LimitUsage>(this.#limits, { limit }));
  }

  declare(declarations: readonly Declaration[]): Promise<void> {
    return this.#access.write("declare", (tx) => this.#declare(tx, declarations));
  }

  *#declare(tx: Tx, declarations: readonly Declaration[]): Script<void> {
    for (const declaration of declarations) yield* wait(this.#parts.settings.declare(tx, declaration));
  }

  setPaused(queue: string, paused: boolean): Promise<boolean> {
    return this.#access.write("pause", (tx) => this.#setPaused(tx, queue, paused));
  }

  *#setPaused(tx: Tx, queue: string, paused: boolean): Script<boolean> {
    const { settings, audit } = this.#parts;
    if (!(yield* wait(settings.pause(tx, queue, paused)))) return false;
    const action = paused ? "queue.paused" : "queue.resumed";
    yield* audit.record(tx, { action, name: queue, before: { paused: !paused }, after: { paused } });
    if (!paused) tx.ready(queue);
    return true;
  }

  async minutes(query: MinutesQuery | "totals"): Promise<QueueMinute[]> {
    const rows = await this.#access.read((db) => {
      if (query === "totals") return db.all<MinuteRow>(this.#minutes.totals);
      const { from, queue = null, step = 1 } = query;
      return db.all<MinuteRow>(this.#minutes.since, { from, queue, step });
    });
    return rows.map(toMinute);
  }

  addMinutes(minutes: readonly QueueMinute[], keepFrom: number): Promise<void> {
    return this.#access.write("minutes", (tx) => this.#addMinutes(tx, minutes, keepFrom));
  }

  *#addMinutes(tx: Tx, minutes: readonly QueueMinute[], keepFrom: number): Script<void> {
    // Write in a fixed order, so that two workers never wait for each other's rows.
    const rows = minutes.toSorted((a, b) => (a.queue < b.queue ? -1 : a.queue > b.queue ? 1 : a.minute - b.minute));
    for (const minute of rows) {
      for (const at of [0, minute.minute]) yield* tx.run(this.#minutes.add, { ...toColumns(minute), minute: at });
    }
    yield* tx.run(this.#minutes.prune, { keepFrom });
  }
}

function bucketColumns(of: string): string[] {
  return Array.from({ length: BUCKET_BOUNDS_MS.length + 1 }, (_, i) => `${of}_${i}`);
}

function minutesSql({ table }: Dialect) {
  const minutes = table("minutes");
  const columns = ["queue", "minute", ...MINUTE_COLUMNS];
  return {
    add: `
      insert into ${minutes} as total (${columns.join(", ")}) values (${columns.map((name) => `:${name}`).join(", ")})
      on conflict (queue, minute) do update set ${MINUTE_COLUMNS.map((name) => `${name} = total.${name} + excluded.${name}`).join(", ")}`,
    prune: `delete from ${minutes} where minute > 0 and minute < :keepFrom`,
    since: `
      select queue, minute - minute % cast(:step as bigint) as minute, ${MINUTE_COLUMNS.map((name) => `cast(sum(${name}) as bigint) as ${name}`).join(", ")}
      from ${minutes}
      where minute >= :from and minute > 0 and (cast(:queue as text) is null or queue = :queue) group by 1, 2 order by 2, 1`,
    totals: `select ${columns.join(", ")} from ${minutes} where minute = 0 order by queue`,
  };
}

function toColumns({
  queue,
  succeeded,
  failed,
  retried,
  byHand,
  waitMs,
  runMs,
  waits,
  runs,
}: QueueMinute): Record<string, string | number> {
  const buckets = [...WAITS.map((name, i) => [name, waits[i] ?? 0]), ...RUNS.map((name, i) => [name, runs[i] ?? 0])];
  return {
    queue,
    succeeded,
    failed,
    retried,
    by_hand: byHand,
    wait_ms: Math.round(waitMs),
    run_ms: Math.round(runMs),
    ...Object.fromEntries(buckets),
  };
}

function toMinute(row: MinuteRow): QueueMinute {
  const number = (name: string) => row[name] as number;
  return {
    queue: row.queue,
    minute: number("minute"),
    succeeded: number("succeeded"),
    failed: number("failed"),
    retried: number("retried"),
    byHand: number("by_hand"),
    waitMs: number("wait_ms"),
    runMs: number("run_ms"),
    waits: WAITS.map(number),
    runs: RUNS.map(number),
  };
}

/** A counter has a row for each lane. The jobs that wait at it are those it has parked, and those it lets through next. */
function limitsSql({ table }: Dialect): string {
  return `
    select rule.queue, rule.job, counter.key, rule.concurrency, rule.starts, rule.per,
      cast(sum(counter.running) as bigint) as running,
      cast(sum(counter.parked + counter.passed - counter.beyond) as bigint) as waiting,
      cast(max(counter.bucket) as bigint) as "usedUntil", :now as now
    from ${table("counters")} as counter join ${table("limits")} as rule on rule.id = counter.rule
    group by rule.id, rule.queue, rule.job, counter.key, rule.concurrency, rule.starts, rule.per
    order by waiting desc, running desc, rule.queue, rule.job, counter.key limit :limit`;
}

export class SettingsRows {
  readonly #sql: ReturnType<typeof settingsSql>;

  constructor(dialect: Dialect) {
    this.#sql = settingsSql(dialect);
  }

  pause(tx: Tx, name: string, paused: boolean): Script<boolean> {
    return tx.run(this.#sql.pause, { name, paused });
  }

  /** Writes the changes of a declaration; `rules` gets the ids of new limits. */
  *write(tx: Tx, changes: readonly SettingsChange[], rules: number[]): Script<void> {
    for (const change of changes) {
      switch (change.kind) {
        case "set-queue": {
          const { name, events, keep, attempts = null } = change;
          const kept = keep === null ? { keep: null, backfill: null } : { keep: JSON.stringify(keep), backfill: 0 };
          yield* tx.run(this.#sql.set, { name, events, attempts, ...kept });
          break;
        }
        case "add-rule": {
          const { queue, job, rule } = change;
          const row = { queue, job, position: rule.position, ...valuesOf(rule) };
          const [added] = yield* tx.returning<{ id: number }>(this.#sql.addRule, row);
          rules[change.at] = (added as { id: number }).id;
          break;
        }
        case "set-rule":
          yield* tx.run(this.#sql.setRule, { id: change.id, ...valuesOf(change.rule) });
          yield* tx.run(this.#sql.wakeCounters, { id: change.id });
          break;
        case "drop-rule":
          yield* tx.run(this.#sql.dropRule, { id: change.id });
          yield* tx.run(this.#sql.wakeCounters, { id: change.id });
      }
    }
  }
}

function valuesOf({ keyed, concurrency, rate }: LimitRule): Params {
  return { keyed, concurrency, starts: rate?.starts ?? null, per: rate?.per ?? null };
}

function settingsSql({ table }: Dialect) {
  const [queues, limits] = [table("queues"), table("limits")];
  return {
    pause: `
      insert into ${queues} as old (name, paused) values (:name, :paused)
      on conflict (name) do update set paused = excluded.paused where old.paused <> excluded.paused`,
    // A new `keep` also applies to jobs that ended before: they are listed from the first key on.
    set: `
      insert into ${queues} (name, events, keep, backfill, attempts) values (:name, :events, :keep, :backfill, :attempts)
      on conflict (name) do update set events = excluded.events, keep = excluded.keep, backfill = excluded.backfill,
        attempts = excluded.attempts`,
    addRule: `
      insert into ${limits} (queue, job, position, keyed, concurrency, starts, per)
      values (:queue, :job, :position, :keyed, :concurrency, :starts, :per) returning id`,
    setRule: `update ${limits} set keyed = :keyed, concurrency = :concurrency, starts = :starts, per = :per where id = :id`,
    dropRule: `update ${limits} set concurrency = null, starts = null, per = null where id = :id`,
    wakeCounters: `update ${table("counters")} set due_at = 0 where rule = :id and parked > 0`,
  };
}

interface Made {
  key: string;
  cron: string;
  timezone: string;
  missed: string;
  within: number | null;
  overlap: Flag;
  template: string;
  name: string;
  lastJob: JobKey | null;
}

/** Stores schedules. A tick is one transaction: its jobs are added and next_at moves on, or neither. */
export class Schedules implements ScheduleStore {
  readonly #access: Access;
  readonly #parts: { enqueue: Enqueue; audit: Audit };
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: { enqueue: Enqueue; audit: Audit }, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#guard = new RowGuard(dialect, "schedules");
    this.#sql = statements(dialect, this.#guard);
  }

  save(draft: ScheduleDraft): Promise<StoredSchedule> {
    return this.#write("schedule", draft.key, (tx) => this.#save(tx, draft));
  }

  *#save(tx: Tx, { template, nextAt, ...draft }: ScheduleDraft): Script<StoredSchedule> {
    const row = { ...draft, template: JSON.stringify(template), name: template.name };
    // If two processes save it at once, the second finds what the first has saved.
    const made = yield* this.#locked(tx, draft.key);
    const [old] = yield* this.#read(tx, draft.key);
    const revision = yield* tx.fence();
    const [saved] = yield* tx.returning<ScheduleRow>(this.#sql.save, { ...this.#guard.sign(row), revision, nextAt });
    const schedule = toSchedule(saved as ScheduleRow);
    const before = made === undefined || old === undefined ? null : { schedule: old, template: made.template };
    const act = scheduleSaved(before, { schedule, template: row.template });
    if (act !== null) yield* this.#parts.audit.record(tx, act);
    return schedule;
  }

  list({ key, due = false }: { key?: string; due?: boolean } = {}): Promise<StoredSchedule[]> {
    return this.#access.read((db) => this.#read(db, key ?? null, due ? this.#sql.due : this.#sql.list));
  }

  tick(tick: Tick): Promise<boolean> {
    return this.#write("tick", tick.key, (tx) => this.#tick(tx, tick));
  }

  *#tick(tx: Tx, { key, revision, from, nextAt, fire }: Tick): Script<boolean> {
    const [made] = yield* tx.returning<Made>(this.#sql.move, { key, revision, from, nextAt });
    if (made === undefined) return false;
    this.#guard.check(made, `The schedule ${made.key}`);
    const unfinished = yield* this.#unfinished(tx, made);
    const ticks = ticksToFire(fire, isYes(made.overlap), () => unfinished !== undefined);
    if (ticks.length > 0) yield* this.#add(tx, made, ticks, ticks.at(-1) as number);
    return true;
  }

  trigger(key: string): Promise<Enqueued | null> {
    return this.#write("schedule", key, (tx) => this.#trigger(tx, key));
  }

  *#trigger(tx: Tx, key: string): Script<Enqueued | null> {
    // If two processes trigger it at once, the second sees the first one's job.
    const made = yield* this.#locked(tx, key);
    if (made === undefined) return null;
    this.#guard.check(made, `The schedule ${made.key}`);
    const unfinished = yield* this.#unfinished(tx, made);
    if (unfinished !== undefined) return { id: unfinished, duplicate: true };
    const now = yield* tx.time();
    yield* this.#parts.audit.record(tx, { action: "schedule.triggered", name: key, after: { scheduledFor: now } });
    return yield* this.#add(tx, made, [now], null);
  }

  *#remove(tx: Tx, key: string): Script<boolean> {
    const [row] = yield* tx.returning<ScheduleRow>(this.#sql.remove, { key });
    if (row === undefined) return false;
    const before = auditedSchedule(toSchedule(row));
    yield* this.#parts.audit.record(tx, { action: "schedule.removed", name: key, before, after: null });
    return true;
  }

  update(key: string, to: "paused" | "removed" | { resumed: number; revision: number }): Promise<boolean> {
    if (to === "paused") return this.#write("schedule", key, (tx) => this.#pause(tx, key));
    if (to === "removed") return this.#write("schedule", key, (tx) => this.#remove(tx, key));
    return this.#write("schedule", key, (tx) => this.#resume(tx, key, to.revision, to.resumed));
  }

  *#pause(tx: Tx, key: string): Script<boolean> {
    if (!(yield* tx.run(this.#sql.pause, { key }))) return (yield* this.#read(tx, key)).length === 1;
    const act = { action: "schedule.paused", name: key, before: { paused: false }, after: { paused: true } } as const;
    yield* this.#parts.audit.record(tx, act);
    return true;
  }

  *#resume(tx: Tx, key: string, revision: number, nextAt: number): Script<boolean> {
    if (!(yield* tx.run(this.#sql.resume, { key, revision, nextAt }))) return false;
    const act = { action: "schedule.resumed", name: key, before: { paused: true }, after: { paused: false, nextAt } } as const;
    yield* this.#parts.audit.record(tx, act);
    return true;
  }

  *#read(db: Reads, key: string | null, sql = this.#sql.list): Script<StoredSchedule[]> {
    return (yield* db.all<ScheduleRow>(sql, { key })).map(toSchedule);
  }

  *#locked(tx: Tx, key: string): Script<Made | undefined> {
    yield* tx.lock(this.#sql.lock, { key });
    return yield* tx.get<Made>(this.#sql.made, { key });
  }

  *#add(tx: Tx, made: Made, ticks: readonly number[], lastAt: number | null): Script<Enqueued> {
    const answers = yield* wait(this.#parts.enqueue.run(tx, jobsOf(made.template, ticks)));
    yield* tx.run(this.#sql.added, { key: made.key, lastAt, lastJob: madeLast(answers) });
    return answers.at(-1) as Enqueued;
  }

  /** Returns the id of its last job, unless that job has ended, or may overlap with others. */
  *#unfinished(db: Reads, { overlap, lastJob }: Made): Script<string | undefined> {
    if (isYes(overlap) || lastJob === null) return undefined;
    const job = yield* db.get<{ state: JobState; createdAt: number }>(this.#sql.job, { lastJob });
    return job === undefined || isFinished(job.state) ? undefined : generatedId(job.createdAt, lastJob);
  }

  #write<T>(operation: "schedule" | "tick", key: string, script: (tx: Tx) => Script<T>): Promise<T> {
    return this.#access.write(operation, script, { row: `schedule ${key}` });
  }
}

const COLUMNS = `key, revision, name as job, cron, timezone, missed, within, overlap, paused,
  last_at as "lastAt", next_at as "nextAt"`;

function statements(dialect: Dialect, guard: RowGuard) {
  const table = dialect.table("schedules");
  const made = `key, cron, timezone, missed, within, overlap, template, name, last_job as "lastJob"${guard.column}`;
  const runs = dialect.isFalse("paused");
  return {
    // Every start of a program saves the same pattern again, which leaves next_at alone: a tick that is due stays due.
    save: `
      insert into ${table} as old (key, revision, cron, timezone, missed, within, overlap, paused, template, name,
        created_at, next_at${guard.column})
      values (:key, :revision, :cron, :timezone, :missed, :within, :overlap, false, :template, :name,
        :now, :nextAt${guard.value})
      on conflict (key) do update set
        revision = excluded.revision, missed = excluded.missed, within = excluded.within, overlap = excluded.overlap,
        template = excluded.template, name = excluded.name, cron = excluded.cron, timezone = excluded.timezone,
        next_at = case when old.cron = excluded.cron and old.timezone = excluded.timezone
          then old.next_at else excluded.next_at end${guard.update}
      returning ${COLUMNS}`,
    list: `
      select ${COLUMNS} from ${table} where cast(:key as text) is null or key = :key order by ${dialect.byBytes("key")}`,
    due: `
      select ${COLUMNS} from ${table}
      where ${runs} and (cast(:key as text) is null or key = :key)
        and next_at <= ${dialect.greatest(":now", `(select min(next_at) from ${table} where ${runs})`)}
      order by next_at, ${dialect.byBytes("key")}`,
    move: `
      update ${table} set next_at = :nextAt where key = :key and revision = :revision and next_at = :from and not paused
      returning ${made}`,
    added: `update ${table} set last_at = coalesce(:lastAt, last_at), last_job = :lastJob where key = :key`,
    lock: `select 1 from ${table} where key = :key`,
    made: `select ${made} from ${table} where key = :key`,
    job: `select state, created_at as "createdAt" from ${dialect.table("jobs")} where key = :lastJob`,
    remove: `delete from ${table} where key = :key returning ${COLUMNS}`,
    pause: `update ${table} set paused = true where key = :key and not paused`,
    // Resume only a paused schedule: a resume that changes nothing must not skip a tick that is due.
    resume: `update ${table} set paused = false, next_at = :nextAt where key = :key and revision = :revision and paused`,
  };
}
