import type { Missed, Schedule } from "../core/schedule.ts";
import type { Enqueued, NewJob } from "./store.ts";

/** What is enqueued when. */
export interface ScheduleStore {
  /** Makes it, or changes the one with that key: it stays paused, and keeps its next tick unless cron or time zone differ. */
  save(draft: ScheduleDraft): Promise<StoredSchedule>;
  /** By key. */
  all(): Promise<StoredSchedule[]>;
  get(key: string): Promise<StoredSchedule | null>;
  /** Those whose next tick has come, the most overdue first, and when the soonest tick of all is; paused ones have none. */
  due(): Promise<DueSchedules>;
  /**
   * Adds a job for each tick and moves the schedule on, if it is still exactly as it was read; false otherwise: somebody
   * else did it. Without `overlap` nothing is added while its last job is unfinished, and never more than one.
   */
  tick(tick: Tick): Promise<boolean>;
  /** A job now, whatever the pattern says; null when there is no such schedule. */
  trigger(key: string): Promise<Enqueued | null>;
  remove(key: string): Promise<boolean>;
  pause(key: string): Promise<boolean>;
  /** It goes on with this tick; false when it was not paused, or was saved anew since it was read. */
  resume(schedule: { key: string; revision: number }, nextAt: number): Promise<boolean>;
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
