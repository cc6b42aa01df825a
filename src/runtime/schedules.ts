import { type Duration, toMillis } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import { checkBoolean, checkName, checkOneOf, checkText, refuseUnknown } from "../core/options.ts";
import { type Missed, nextTick, type Schedule } from "../core/schedule.ts";
import type { ScheduleDraft } from "../store/schedules.ts";
import type { Enqueued } from "./context.ts";
import { definitionOf } from "./definition.ts";
import type { Engine } from "./engine.ts";
import { newJob } from "./new-job.ts";
import { type ReadOptions, refuseMissing } from "./readable.ts";

export interface ScheduleOptions<In = unknown> {
  /** One schedule of this key; default: the job's name. */
  key?: string;
  /** Minute, hour, day of the month, month, weekday; a second in front if need be; or `@hourly`, `@daily` and so on. */
  cron: string;
  /** Default "UTC". */
  timezone?: string;
  input: In;
  /** Ticks that nobody was there for: "skip" them, run the newest "once" (the default), or "all". */
  missed?: Missed;
  /** How late a missed tick may still run. Default: for "once" as late as it likes, for "all" a day. */
  within?: Duration;
  /** False: a tick is skipped while the last job is unfinished. Default true. */
  overlap?: boolean;
}

const KNOWN: readonly (keyof ScheduleOptions)[] = ["key", "cron", "timezone", "input", "missed", "within", "overlap"];

/** `hf.schedules`. */
export class Schedules {
  readonly #engine: Engine;
  readonly #refuseClosed: () => void;

  /** @internal */
  constructor(engine: Engine, refuseClosed: () => void) {
    this.#engine = engine;
    this.#refuseClosed = refuseClosed;
  }

  /** @internal `hf.schedule`: makes it, or changes the one with that key. */
  async save(def: unknown, options: ScheduleOptions): Promise<Schedule> {
    this.#refuseClosed();
    const draft = await draftOf(def, options, this.#engine.clock.now());
    this.#refuseClosed();
    const { declared } = definitionOf(def);
    if (!declared.empty) await this.#engine.store.queues.declare([declared.declaration]);
    const saved = await this.#engine.store.schedules.save(draft);
    this.#engine.scheduler.start();
    this.#engine.scheduler.changed();
    return shown(saved);
  }

  /** By key. */
  async list(options: ReadOptions = {}): Promise<Schedule[]> {
    this.#refuseClosed();
    await refuseMissing(this.#engine.store.damage, options, "schedules.list", "Schedules cannot be listed");
    return (await this.#engine.store.schedules.all()).map(shown);
  }

  /** Its jobs stay. False when there is no such schedule. */
  async remove(key: string): Promise<boolean> {
    this.#refuseClosed();
    return this.#engine.store.schedules.remove(checkKey(key));
  }

  /** No more ticks, until `resume`; in this and any other process, also after a restart. */
  async pause(key: string): Promise<void> {
    this.#refuseClosed();
    if (!(await this.#engine.store.schedules.pause(checkKey(key)))) throw await this.#noSuch(key);
  }

  /** Goes on with the next tick: those that fell into the pause were not missed. */
  async resume(key: string): Promise<void> {
    this.#refuseClosed();
    const { store, clock, scheduler } = this.#engine;
    for (;;) {
      const schedule = await store.schedules.get(checkKey(key));
      if (schedule === null) throw await this.#noSuch(key);
      if (!schedule.paused) return;
      // Refused when it was saved with another pattern meanwhile: then that one decides.
      if (await store.schedules.resume(schedule, nextTick(schedule.cron, schedule.timezone, clock.now())))
        return scheduler.changed();
    }
  }

  /** One job now, besides those of the ticks. With `overlap: false` an unfinished last job is the answer instead. */
  async trigger(key: string): Promise<Enqueued> {
    this.#refuseClosed();
    const answer = await this.#engine.store.schedules.trigger(checkKey(key));
    if (answer === null) throw await this.#noSuch(key);
    // A template has no id that could be taken, and comes after nothing.
    return answer as Enqueued;
  }

  async #noSuch(key: string): Promise<HoldfastError> {
    return noSuchSchedule(key, await this.#engine.store.schedules.all());
  }
}

function checkKey(key: unknown): string {
  return checkText(key, "The key of a schedule");
}

export function noSuchSchedule(key: string, schedules: readonly Schedule[]): HoldfastError {
  const some = schedules.slice(0, 20).map((schedule) => schedule.key);
  if (schedules.length > some.length) some.push("…");
  const hint = some.length === 0 ? "There are none; hf.schedule makes one." : `There are: ${some.join(", ")}.`;
  return new HoldfastError("NO_SUCH_SCHEDULE", `There is no schedule ${String(key)}.`, hint);
}

/** Checks everything there is to check, before anything is written. */
async function draftOf(def: unknown, options: ScheduleOptions, now: number): Promise<ScheduleDraft> {
  const definition = definitionOf(def);
  refuseUnknown(options, KNOWN, "schedule");
  const { cron, timezone = "UTC", missed = "once", within, overlap = true } = options;
  checkOneOf(missed, ["skip", "once", "all"], "missed");
  checkBoolean(overlap, "overlap");
  const template = await newJob(definition, options.input);
  // By the time of a tick somebody may have said otherwise.
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

function shown({ key, job, cron, timezone, paused, lastAt, nextAt }: Schedule): Schedule {
  return { key, job, cron, timezone, paused, ...(lastAt === undefined ? {} : { lastAt }), nextAt };
}
