import { isDeepStrictEqual } from "node:util";
import type { QueueSettings } from "../core/jobs/claiming.ts";
import type { Policy } from "../core/jobs/retry.ts";
import type { Missed, Schedule } from "../core/jobs/schedule.ts";
import { type SetQueue, type SetRule, SettingsView } from "../core/limits/settings.ts";
import { type JobKey, parseGeneratedId } from "../core/text/ids.ts";
import type { Act } from "./audit.ts";
import { type Flag, isYes } from "./job-row.ts";
import type { Enqueued, NewJob } from "./store.ts";

export interface MinutesQuery {
  from: number;
  queue?: string;
  /** How many minutes are added up to a sum, which has the first of them. Default: 1. */
  step?: number;
}

export interface LimitUsage {
  queue: string;
  /** Empty for a limit of the whole queue. */
  job: string;
  /** Empty for a limit without keys. */
  key: string;
  concurrency: number | null;
  /** At most `starts` in `per` milliseconds. */
  starts: number | null;
  per: number | null;
  running: number;
  waiting: number;
  /** Instant until which earlier starts use up the rate. */
  usedUntil: number;
  now: number;
}

export interface QueueRow {
  name: string;
  paused: Flag;
  events: Flag;
  keep: string | null;
  attempts: number | null;
}

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

function toQueue({ name, paused, events, keep, attempts }: QueueRow): SetQueue {
  const kept = keep === null ? {} : (JSON.parse(keep) as QueueSettings["keep"]);
  const queue = { name, paused: isYes(paused), events: isYes(events), keep: kept };
  return attempts === null ? queue : { ...queue, attempts };
}

export function toRule({ id, queue, job, position, keyed, concurrency, starts, per }: RuleRow): SetRule {
  const rate = starts === null || per === null ? null : { starts, per };
  return { id, queue, job, rule: { of: job === "" ? "queue" : "job", position, keyed: isYes(keyed), concurrency, rate } };
}

/** Returns a text that is equal for equal policies, whatever the order of their properties. */
export function policyText(policy: Policy): string {
  return JSON.stringify(policy, Object.keys(policy).sort());
}

export interface ScheduleDraft {
  key: string;
  cron: string;
  timezone: string;
  missed: Missed;
  within: number | null;
  overlap: boolean;
  template: NewJob;
  nextAt: number;
}

export interface StoredSchedule extends Schedule {
  missed: Missed;
  within: number | null;
  overlap: boolean;
  revision: number;
}

export interface Tick {
  key: string;
  revision: number;
  from: number;
  fire: readonly number[];
  nextAt: number;
}

export interface ScheduleRow extends Omit<StoredSchedule, "paused" | "overlap" | "lastAt"> {
  paused: Flag;
  overlap: Flag;
  lastAt: number | null;
}

export function toSchedule({ paused, overlap, lastAt, ...row }: ScheduleRow): StoredSchedule {
  const schedule: StoredSchedule = { ...row, paused: isYes(paused), overlap: isYes(overlap) };
  return lastAt === null ? schedule : { ...schedule, lastAt };
}

export function auditedSchedule(schedule: StoredSchedule): object {
  const { job, cron, timezone, missed, within, overlap, paused, nextAt } = schedule;
  return { job, cron, timezone, missed, within, overlap, paused, nextAt };
}

/** Returns the audit entry of a save, which does not show the template. Null: nothing changed, as at most starts of a program. */
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

/** Makes the jobs of ticks. Callers read the template in the same transaction, so that the last save wins. */
export function jobsOf(template: string, ticks: readonly number[]): NewJob[] {
  const job = JSON.parse(template) as NewJob;
  return ticks.map((tick) => ({ ...job, scheduledFor: tick, runAt: tick }));
}

/** Returns the key of the last new job. Null: it was a duplicate of a job whose id a caller chose. */
export function madeLast(answers: readonly Enqueued[]): JobKey | null {
  const last = answers.at(-1);
  return last === undefined ? null : (parseGeneratedId(last.id)?.key ?? null);
}

export interface CleanedLocks {
  removed: string[];
  shortened: string[];
}

export interface LockView {
  name: string;
  holder: string;
  acquiredAt: number;
  expiresAt: number;
  stale: boolean;
}

export interface LockRow extends Omit<LockView, "stale"> {
  ended: Flag;
  job: number | null;
}

/** Lists locks, also expired ones, but no locks of ended exclusive claims. */
export function toLocks(rows: readonly LockRow[]): LockView[] {
  return rows
    .filter(({ ended, job }) => job === null || !isYes(ended))
    .map(({ name, holder, acquiredAt, expiresAt, ended }) => ({ name, holder, acquiredAt, expiresAt, stale: isYes(ended) }));
}

export interface BrokenLock {
  holder: string;
  acquiredAt: number;
  expiresAt: number | null;
}
