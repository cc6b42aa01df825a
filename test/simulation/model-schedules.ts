import { isDeepStrictEqual } from "node:util";
import { parseGeneratedId } from "../../src/core/text/ids.ts";
import type { ScheduleDraft, StoredSchedule, Tick } from "../../src/store/queues.ts";
import type { Enqueued, NewJob } from "../../src/store/store.ts";
import type { Model } from "./model.ts";
import { must, mustEqual } from "./violation.ts";

/** Patterns, and how far apart their ticks are: whole multiples of it since 1970. */
export const PERIODS: Record<string, number> = {
  "*/10 * * * * *": 10_000,
  "* * * * *": 60_000,
  "0 * * * *": 3_600_000,
};

const ON_TIME = 10_000;
const DAY = 86_400_000;
/** At most so many at once. */
const CHUNK = 250;

interface ModelSchedule extends StoredSchedule {
  template: NewJob;
  lastJob: string | null;
  /** The ticks that have become jobs since the pattern was set or it was resumed. */
  ticked: Set<number>;
}

/** What is enqueued when: each tick once, by the first process. */
export class ModelSchedules {
  readonly #model: Model;
  readonly #schedules = new Map<string, ModelSchedule>();

  constructor(model: Model) {
    this.#model = model;
  }

  views(): StoredSchedule[] {
    return [...this.#schedules.values()].map(view).sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  save(at: number, draft: ScheduleDraft, answer: StoredSchedule): void {
    const { template, ...rest } = draft;
    const old = this.#schedules.get(draft.key);
    const same = old?.cron === draft.cron && old.timezone === draft.timezone;
    const schedule: ModelSchedule = {
      ...rest,
      job: template.name,
      revision: answer.revision,
      paused: old?.paused ?? false,
      ...(old?.lastAt !== undefined && { lastAt: old.lastAt }),
      nextAt: old !== undefined && same ? old.nextAt : draft.nextAt,
      // As it comes back from the disk.
      template: JSON.parse(JSON.stringify(template)) as NewJob,
      lastJob: old?.lastJob ?? null,
      ticked: old !== undefined && same ? old.ticked : new Set(),
    };
    must(answer.revision >= (old?.revision ?? 0), "the revision of a schedule rises");
    this.#schedules.set(draft.key, schedule);
    mustEqual(answer, view(schedule), `the schedule ${draft.key}`);
    if (old === undefined || isOther(old, schedule)) this.#model.events.tell(at, "schedule.saved", draft.key);
  }

  due(at: number, answer: readonly StoredSchedule[]): void {
    const running = this.views().filter(({ paused }) => !paused);
    const last = Math.max(at, Math.min(...running.map(({ nextAt }) => nextAt)));
    const due = running.filter(({ nextAt }) => nextAt <= last).sort((a, b) => a.nextAt - b.nextAt);
    const inOrder = answer.toSorted((a, b) => a.nextAt - b.nextAt || (a.key < b.key ? -1 : 1));
    mustEqual(inOrder, due, "the schedules that are due, or tick next");
  }

  /** What has to become of the ticks up to now. */
  checkTicks(at: number, schedule: StoredSchedule, { fire, nextAt }: { fire: readonly number[]; nextAt: number }): void {
    const period = PERIODS[schedule.cron] as number;
    const reach = schedule.missed === "all" ? Math.max(ON_TIME, schedule.within ?? DAY) : ON_TIME;
    const all: number[] = [];
    for (let tick = schedule.nextAt; tick <= at; tick += period) all.push(tick);
    let expected = all.filter((tick) => tick >= at - reach).slice(0, CHUNK);
    const newest = all.at(-1) as number;
    if (expected.length === 0 && schedule.missed === "once" && at - newest <= (schedule.within ?? Infinity)) expected = [newest];
    mustEqual(fire, expected, `the ticks of ${schedule.key}`);
    mustEqual(
      nextAt,
      (expected.length === CHUNK ? (expected.at(-1) as number) : newest) + period,
      `the next tick of ${schedule.key}`,
    );
  }

  /** `strangers`: ids of jobs that are there and that the model does not know yet, in the order of acceptance. */
  tick(at: number, tick: Tick, answer: boolean, strangers: string[]): void {
    const schedule = this.#schedules.get(tick.key);
    const isFirst =
      schedule !== undefined && !schedule.paused && schedule.revision === tick.revision && schedule.nextAt === tick.from;
    mustEqual(answer, isFirst, `a tick of ${tick.key} from ${tick.from}`);
    if (schedule === undefined || !answer) return;
    schedule.nextAt = tick.nextAt;
    const ticks = schedule.overlap ? tick.fire : this.#unfinished(schedule) === undefined ? tick.fire.slice(0, 1) : [];
    for (const one of ticks) {
      must(!schedule.ticked.has(one), () => `the tick ${one} of ${schedule.key} was a job before`);
      schedule.ticked.add(one);
      const id = strangers.shift();
      must(id !== undefined, () => `the tick ${one} of ${schedule.key} is no job`);
      this.#make(at, schedule, one, { id, duplicate: false });
      schedule.lastAt = one;
    }
  }

  trigger(at: number, key: string, answer: Enqueued | null): void {
    const schedule = this.#schedules.get(key);
    if (schedule === undefined) return mustEqual(answer, null, `triggering ${key}`);
    const unfinished = schedule.overlap ? undefined : this.#unfinished(schedule);
    if (unfinished !== undefined) return mustEqual(answer, { id: unfinished, duplicate: true }, `triggering ${key}`);
    this.#model.events.tell(at, "schedule.triggered", key);
    this.#make(at, schedule, at, answer as Enqueued);
  }

  remove(at: number, key: string, answer: boolean): void {
    mustEqual(answer, this.#schedules.delete(key), `removing ${key}`);
    if (answer) this.#model.events.tell(at, "schedule.removed", key);
  }

  pause(at: number, key: string, answer: boolean): void {
    const schedule = this.#schedules.get(key);
    mustEqual(answer, schedule !== undefined, `pausing ${key}`);
    if (schedule === undefined || schedule.paused) return;
    schedule.paused = true;
    this.#model.events.tell(at, "schedule.paused", key);
  }

  resume(at: number, { key, revision }: { key: string; revision: number }, nextAt: number, answer: boolean): void {
    const schedule = this.#schedules.get(key);
    const may = schedule !== undefined && schedule.paused && schedule.revision === revision;
    mustEqual(answer, may, `resuming ${key}`);
    if (schedule === undefined || !answer) return;
    Object.assign(schedule, { paused: false, nextAt, ticked: new Set() });
    this.#model.events.tell(at, "schedule.resumed", key);
  }

  #make(at: number, schedule: ModelSchedule, tick: number, answer: Enqueued): void {
    must(parseGeneratedId(answer.id) !== null, () => `the job of a tick has a made id, not ${answer.id}`);
    this.#model.enqueue(at, [{ ...schedule.template, scheduledFor: tick, runAt: tick }], [answer]);
    schedule.lastJob = answer.id;
  }

  #unfinished({ lastJob }: ModelSchedule): string | undefined {
    const job = lastJob === null ? undefined : this.#model.jobs.get(lastJob);
    return job?.unfinished ? job.id : undefined;
  }
}

function view({
  key,
  job,
  cron,
  timezone,
  missed,
  within,
  overlap,
  paused,
  lastAt,
  nextAt,
  revision,
}: ModelSchedule): StoredSchedule {
  const shown = { key, job, cron, timezone, missed, within, overlap, paused, nextAt, revision };
  return lastAt === undefined ? shown : { ...shown, lastAt };
}

/** What is changed by saving it: not its number, nor what it has done so far. */
function isOther(old: ModelSchedule, schedule: ModelSchedule): boolean {
  const kept = (one: ModelSchedule) => ({ ...one, revision: 0, lastAt: 0, lastJob: null, ticked: null });
  return !isDeepStrictEqual(kept(old), kept(schedule));
}
