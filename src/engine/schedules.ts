import { type Clock, type Duration, toMillis } from "../core/text/duration.ts";
import {
  checkBoolean,
  checkName,
  checkOneOf,
  checkText,
  didYouMean,
  limitArguments,
  refuseUnknown,
} from "../core/text/options.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { dueTicks, type Missed, nextTick, type Schedule } from "../core/jobs/schedule.ts";
import type { ScheduleDraft, StoredSchedule } from "../store/queues.ts";
import type { Store } from "../store/store.ts";
import type { Enqueued } from "../core/pipelines/stage.ts";
import { definitionOf, newJob } from "./definition.ts";
import type { Engine } from "./engine.ts";
import { describeError, type Log, RepeatedFailure } from "./log.ts";
import { type ReadOptions, rejectIncomplete } from "./client.ts";

export interface ScheduleOptions<In = unknown> {
  /** Key of the schedule. A second call with the same key replaces it. Default: the job's name. */
  key?: string;
  /** Minute, hour, day of month, month, weekday, optionally a second in front; or `@hourly`, `@daily` and so on. */
  cron: string;
  /** IANA time zone of the pattern. Default: "UTC". */
  timezone?: string;
  /** Input of each job. */
  input: In;
  /** Ticks during which no process ran: "skip" them, run the newest "once", or run "all". Default: "once". */
  missed?: Missed;
  /** How late a missed tick may still run. Default: unlimited for "once", a day for "all". */
  within?: Duration;
  /** False: skip a tick while the job of the last one is unfinished. Default: true. */
  overlap?: boolean;
}

const SCHEDULE_OPTIONS: readonly (keyof ScheduleOptions)[] = ["key", "cron", "timezone", "input", "missed", "within", "overlap"];

export class Schedules {
  static {
    const counts = { save: 2, list: 1, remove: 1, pause: 1, resume: 1, trigger: 1 } as const;
    limitArguments(this.prototype, "schedules", counts, (schedules) => schedules.#refuseClosed());
  }

  readonly #engine: Engine;
  readonly #refuseClosed: () => void;

  /** @internal */
  constructor(engine: Engine, refuseClosed: () => void) {
    this.#engine = engine;
    this.#refuseClosed = refuseClosed;
  }

  /** @internal Creates or replaces a schedule, for `hf.schedule`. */
  async save(def: unknown, options: ScheduleOptions): Promise<Schedule> {
    const draft = await draftOf(def, options, this.#engine.clock.now());
    this.#refuseClosed();
    const { declared } = definitionOf(def);
    if (!declared.isEmpty) await this.#engine.store.queues.declare([declared.declaration]);
    const saved = await this.#engine.store.schedules.save(draft);
    this.#engine.scheduler.start();
    this.#engine.scheduler.changed();
    return toSchedule(saved);
  }

  /** Lists the schedules by key. */
  async list(options: ReadOptions = {}): Promise<Schedule[]> {
    await rejectIncomplete(this.#engine.store.damage, options, "schedules.list", "Schedules cannot be listed");
    return (await this.#engine.store.schedules.list()).map(toSchedule);
  }

  /** Removes a schedule; its jobs stay. False: there is no such schedule. */
  async remove(key: string): Promise<boolean> {
    return this.#engine.store.schedules.update(checkKey(key), "removed");
  }

  /** Stops the ticks of a schedule in all processes, also after a restart, until `resume`. */
  async pause(key: string): Promise<void> {
    if (!(await this.#engine.store.schedules.update(checkKey(key), "paused"))) throw await this.#missing(key);
  }

  /** Resumes a schedule with its next tick. Ticks that fell into the pause do not count as missed. */
  async resume(key: string): Promise<void> {
    const { store, clock, scheduler } = this.#engine;
    for (;;) {
      const [schedule] = await store.schedules.list({ key: checkKey(key) });
      if (schedule === undefined) throw await this.#missing(key);
      if (!schedule.paused) return;
      // The store rejects this if another pattern was saved meanwhile; the next try then uses that pattern.
      const resumed = nextTick(schedule.cron, schedule.timezone, clock.now());
      if (await store.schedules.update(key, { resumed, revision: schedule.revision })) return scheduler.changed();
    }
  }

  /** Enqueues one job now, besides those of the ticks. With `overlap: false` it returns an unfinished last job instead. */
  async trigger(key: string): Promise<Enqueued> {
    const answer = await this.#engine.store.schedules.trigger(checkKey(key));
    if (answer === null) throw await this.#missing(key);
    return answer as Enqueued;
  }

  async #missing(key: string): Promise<HoldfastError> {
    return noSuchSchedule(key, await this.#engine.store.schedules.list());
  }
}

function checkKey(key: unknown): string {
  return checkText(key, "The key of a schedule");
}

export function noSuchSchedule(key: string, schedules: readonly Schedule[]): HoldfastError {
  const some = schedules.slice(0, 20).map((schedule) => schedule.key);
  if (schedules.length > some.length) some.push("…");
  const meant = didYouMean(
    key,
    schedules.map((schedule) => schedule.key),
  );
  const hint =
    some.length === 0 ? "There are no schedules. Call hf.schedule to create one." : `${meant}Schedules: ${some.join(", ")}.`;
  return new HoldfastError("NO_SUCH_SCHEDULE", `There is no schedule ${String(key)}.`, hint);
}

async function draftOf(def: unknown, options: ScheduleOptions, now: number): Promise<ScheduleDraft> {
  const definition = definitionOf(def, "hf.schedule");
  refuseUnknown(options, SCHEDULE_OPTIONS, "schedule");
  const { cron, timezone = "UTC", missed = "once", within, overlap = true } = options;
  checkOneOf(missed, ["skip", "once", "all"], "missed");
  checkBoolean(overlap, "overlap");
  const template = await newJob(definition, options.input);
  // Declare these settings as old ones: by the time of a tick another process may have declared newer ones.
  if (template.declares !== undefined) template.declares = { ...template.declares, old: true };
  return {
    key: checkName(options.key === undefined ? definition.name : options.key, "The key of a schedule"),
    cron,
    timezone,
    missed,
    within: within === undefined ? null : toMillis(within, "within"),
    overlap,
    nextAt: nextTick(cron, timezone, now),
    template,
  };
}

export function toSchedule({ key, job, cron, timezone, paused, lastAt, nextAt }: Schedule): Schedule {
  return { key, job, cron, timezone, paused, ...(lastAt === undefined ? {} : { lastAt }), nextAt };
}

/** Longest pause between two checks, because clocks are set and other processes change schedules. */
const MAX_WAIT_MS = 5_000;
const RETRY_MS = 1_000;
const MAX_TICKS_PER_COMMIT = 100;

/** Enqueues jobs of due ticks. The store gives a tick to one process; if it dies before the commit, others get the tick. */
export class Scheduler {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #state: "idle" | "running" | "stopped" = "idle";
  #cancel: (() => void) | null = null;
  #checking: Promise<void> | null = null;
  /** True if a caller asked during a check, which may have read before the caller's change. */
  #checkAgain = false;
  readonly #failure = new RepeatedFailure();
  readonly #loggedErrors = new Map<string, string>();

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    ({ store: this.#store, clock: this.#clock, log: this.#log } = parts);
  }

  start(): void {
    if (this.#state !== "idle") return;
    this.#state = "running";
    void this.check();
  }

  changed(): void {
    if (this.#state === "running") void this.check();
  }

  async stop(): Promise<void> {
    this.#state = "stopped";
    this.#cancel?.();
    await this.#checking;
  }

  /** Runs due ticks. Never throws, because a worker or a claim continues without them. */
  check(): Promise<void> {
    this.#checkAgain = true;
    this.#checking ??= this.#runDue()
      .then(
        (wait) => {
          this.#failure.reset();
          return wait;
        },
        (error: unknown) => {
          this.#failure.log(this.#log, "warn", "looking for ticks of schedules failed; it is tried again", error);
          return RETRY_MS;
        },
      )
      .then((wait) => {
        this.#checking = null;
        this.#scheduleCheck(wait);
      });
    return this.#checking;
  }

  #scheduleCheck(wait: number): void {
    this.#cancel?.();
    if (this.#state !== "running") return;
    this.#cancel = this.#clock.after(Math.max(1, Math.min(MAX_WAIT_MS, wait)), () => void this.check());
  }

  /** Returns the wait until the next check. The store's clock decides what is due, because this process's may be wrong. */
  async #runDue(): Promise<number> {
    for (;;) {
      this.#checkAgain = false;
      if (this.#store.damage.damaged !== null) return MAX_WAIT_MS;
      const next = await this.#store.schedules.list({ due: true });
      const now = this.#store.clock.now();
      const due = next.filter(({ nextAt }) => nextAt <= now);
      if (this.#state === "stopped" || (due.length === 0 && !this.#checkAgain))
        return next[0] === undefined ? MAX_WAIT_MS : next[0].nextAt - now;
      let failed = 0;
      for (let at = 0; at < due.length; at += MAX_TICKS_PER_COMMIT) {
        const ticked = await Promise.all(due.slice(at, at + MAX_TICKS_PER_COMMIT).map((schedule) => this.#tick(schedule, now)));
        failed += ticked.filter((done) => !done).length;
      }
      // All of them failed and are still due, so an immediate check would repeat for ever.
      if (failed > 0 && failed === due.length) return RETRY_MS;
    }
  }

  /** Runs one schedule's ticks. Its error, such as a time zone unknown to this host, must not stop the others. */
  async #tick(schedule: StoredSchedule, now: number): Promise<boolean> {
    const { key, revision, nextAt: from } = schedule;
    try {
      const due = dueTicks(schedule, now);
      if (due !== null) await this.#store.schedules.tick({ key, revision, from, ...due });
      this.#loggedErrors.delete(key);
      return true;
    } catch (error) {
      if (this.#loggedErrors.get(key) !== String(error)) {
        this.#log.warn("a schedule could not tick; it is tried again", { schedule: key, ...describeError(error) });
      }
      this.#loggedErrors.set(key, String(error));
      return false;
    }
  }
}
