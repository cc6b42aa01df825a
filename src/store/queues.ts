import { isDeepStrictEqual } from "node:util";
import type { QueueSettings } from "../core/jobs/claiming.ts";
import type { Policy } from "../core/jobs/retry.ts";
import type { Missed, Schedule } from "../core/jobs/schedule.ts";
import { type Declaration, type SetQueue, type SetRule, SettingsView } from "../core/limits/settings.ts";
import { type JobKey, parseGeneratedId } from "../core/text/ids.ts";
import type { Act } from "./audit.ts";
import { type Flag, isYes } from "./job-row.ts";
import type { Enqueued, NewJob } from "./store.ts";

/** What is said of queues, by programs and by operators. */
export interface QueueStore {
  /** What these definitions say about their queues and limits; the newest word counts. */
  declare(declarations: readonly Declaration[]): Promise<void>;
  /** From a paused queue nothing is claimed; running jobs continue. False if it is so already. */
  setPaused(queue: string, paused: boolean): Promise<boolean>;
}

/** What is set for a queue, as it is read. */
export interface QueueRow {
  name: string;
  paused: Flag;
  events: Flag;
  /** JSON. */
  keep: string | null;
}

/** A limit, as it is read; `job` is "" where it is one of the whole queue. */
export interface RuleRow {
  id: number;
  queue: string;
  job: string;
  position: number;
  keyed: Flag;
  concurrency: number | null;
  starts: number | null;
  per: number | null;
}

export function toSettings(queues: readonly QueueRow[], rules: readonly RuleRow[]): SettingsView {
  return new SettingsView(queues.map(toQueue), rules.map(toRule));
}

function toQueue({ name, paused, events, keep }: QueueRow): SetQueue {
  const kept = keep === null ? {} : (JSON.parse(keep) as QueueSettings["keep"]);
  return { name, paused: isYes(paused), events: isYes(events), keep: kept };
}

function toRule({ id, queue, job, position, keyed, concurrency, starts, per }: RuleRow): SetRule {
  const rate = starts === null || per === null ? null : { starts, per };
  return { id, queue, job, rule: { of: job === "" ? "queue" : "job", position, keyed: isYes(keyed), concurrency, rate } };
}

/** A policy as it is stored: the same for the same policy, whatever the order in which its parts were written. */
export function policyText(policy: Policy): string {
  return JSON.stringify(policy, Object.keys(policy).sort());
}

/** What is enqueued when. */
export interface ScheduleStore {
  /** Makes it, or changes the one with that key: it stays paused, and keeps its next tick unless cron or time zone differ. */
  save(draft: ScheduleDraft): Promise<StoredSchedule>;
  /** By key: all of them, or the one with this key. */
  list(key?: string): Promise<StoredSchedule[]>;
  /** Those whose next tick has come, the most overdue first, and when the soonest tick of all is; paused ones have none. */
  due(): Promise<DueSchedules>;
  /**
   * Adds a job for each tick and moves the schedule on, if it is still exactly as it was read; false otherwise: another
   * process did it. Without `overlap` nothing is added while its last job is unfinished, and never more than one.
   */
  tick(tick: Tick): Promise<boolean>;
  /** A job now, whatever the pattern says; null when there is no such schedule. */
  trigger(key: string): Promise<Enqueued | null>;
  remove(key: string): Promise<boolean>;
  /**
   * Pauses a schedule (`nextAt` null), or continues it with this tick. False if there is no such schedule; of a continuation
   * also if the schedule was not paused, or was saved again since it was read.
   */
  setPaused(schedule: { key: string; revision?: number }, nextAt: number | null): Promise<boolean>;
}

export interface ScheduleDraft {
  key: string;
  cron: string;
  timezone: string;
  missed: Missed;
  within: number | null;
  overlap: boolean;
  /** The job of each tick; without instants and ids of its own. */
  template: NewJob;
  nextAt: number;
}

export interface StoredSchedule extends Schedule {
  missed: Missed;
  within: number | null;
  overlap: boolean;
  /** Another with each save. */
  revision: number;
}

export interface DueSchedules {
  due: StoredSchedule[];
  nextAt: number | null;
  /** By the store's clock: ticks up to here are due. */
  now: number;
}

export interface Tick {
  key: string;
  /** As it was read: of the save, and of the tick that comes next. */
  revision: number;
  from: number;
  fire: readonly number[];
  nextAt: number;
}

/** A schedule as it is read. */
export interface ScheduleRow extends Omit<StoredSchedule, "paused" | "overlap" | "lastAt"> {
  paused: Flag;
  overlap: Flag;
  lastAt: number | null;
}

export function toSchedule({ paused, overlap, lastAt, ...row }: ScheduleRow): StoredSchedule {
  const schedule: StoredSchedule = { ...row, paused: isYes(paused), overlap: isYes(overlap) };
  return lastAt === null ? schedule : { ...schedule, lastAt };
}

/** What is kept of it in the audit: not the input of its jobs. */
export function auditedSchedule(schedule: StoredSchedule): object {
  const { job, cron, timezone, missed, within, overlap, paused, nextAt } = schedule;
  return { job, cron, timezone, missed, within, overlap, paused, nextAt };
}

/** Null: it was saved as it is, as at every start of a program. That its jobs are made otherwise is said, and not how. */
export function scheduleSaved(
  before: { schedule: StoredSchedule; template: string } | null,
  after: { schedule: StoredSchedule; template: string },
): Act | null {
  const { key } = after.schedule;
  const now = auditedSchedule(after.schedule);
  if (before === null) return { action: "schedule.saved", name: key, before: null, after: now };
  const was = auditedSchedule(before.schedule);
  const sameJobs = before.template === after.template;
  if (sameJobs && isDeepStrictEqual(was, now)) return null;
  return { action: "schedule.saved", name: key, before: was, after: sameJobs ? now : { ...now, template: "changed" } };
}

/** The jobs of some ticks. The template is the row's own, read in this transaction: what was saved last counts. */
export function jobsOf(template: string, ticks: readonly number[]): NewJob[] {
  const job = JSON.parse(template) as NewJob;
  return ticks.map((tick) => ({ ...job, scheduledFor: tick, runAt: tick }));
}

/** The key of the job that was made last; null: it was a duplicate of one whose id a caller chose. */
export function madeLast(answers: readonly Enqueued[]): JobKey | null {
  const last = answers.at(-1);
  return last === undefined ? null : (parseGeneratedId(last.id)?.key ?? null);
}

/** Named, leased mutexes. */
export interface LockStore {
  acquire(name: string, holder: string, token: string, ttl: number): Promise<boolean>;
  extend(name: string, token: string, ttl: number): Promise<boolean>;
  release(name: string, token: string): Promise<boolean>;
  /** All locks, or the one with this name; expired ones too. */
  list(name?: string): Promise<LockView[]>;
  /** Removes a lock, whatever holds it: an operator's action. `stale`: only if its time, or its exclusive claim, is over. */
  break(name: string, options?: { stale: boolean }): Promise<boolean>;
  /** Removes locks that are expired, or whose exclusive claim is over. */
  clean(): Promise<string[]>;
}

export interface LockView {
  name: string;
  holder: string;
  acquiredAt: number;
  expiresAt: number;
  stale: boolean;
}

/** A lock as it is read; `job` is the one of the exclusive claim that it belongs to. */
export interface LockRow extends Omit<LockView, "stale"> {
  ended: Flag;
  job: number | null;
}

/** Expired locks are shown too; the lock of an exclusive claim that is over is simply gone. */
export function toLocks(rows: readonly LockRow[]): LockView[] {
  return rows
    .filter(({ ended, job }) => job === null || !isYes(ended))
    .map(({ name, holder, acquiredAt, expiresAt, ended }) => ({ name, holder, acquiredAt, expiresAt, stale: isYes(ended) }));
}

/** What was taken from its holder; `expiresAt` is null where it belonged to an exclusive claim. */
export interface BrokenLock {
  holder: string;
  acquiredAt: number;
  expiresAt: number | null;
}
