import { nextTick, dueTicks } from "../../src/core/jobs/schedule.ts";
import type { ScheduleDraft, Tick } from "../../src/store/queues.ts";
import type { NewJob } from "../../src/store/store.ts";
import type { Actor } from "./actor.ts";
import { newJobs } from "./made-up.ts";
import { PERIODS } from "./model-schedules.ts";
import type { Random } from "./random.ts";
import { must } from "./violation.ts";
import type { World } from "./world.ts";

const KEYS = ["hourly", "nightly"] as const;

/** An action of an actor on a schedule. */
export function useSchedule(world: World, actor: Actor, random: Random): Promise<unknown> {
  const { store } = actor;
  const known = world.model.schedules.views();
  const key = known.length > 0 && random.chance(0.8) ? random.pick(known).key : random.pick(KEYS);
  const schedule = known.find((one) => one.key === key);
  switch (random.pick(["save", "save", "save", "trigger", "trigger", "pause", "resume", "resume", "remove"] as const)) {
    case "save":
      return store.schedules.save(draft(world, actor, key, random));
    case "trigger":
      return store.schedules.trigger(key);
    case "pause":
      return store.schedules.update(key, "paused");
    case "remove":
      return random.chance(0.5) ? store.schedules.update(key, "removed") : store.schedules.list();
    case "resume": {
      // By the revision that an actor has read, be it a while ago.
      const revision = (schedule?.revision ?? 1) - (random.chance(0.2) ? 1 : 0);
      const resumed = nextTick(schedule?.cron ?? "* * * * *", "UTC", actor.clock.now());
      return store.schedules.update(key, { resumed, revision });
    }
  }
}

/** An actor looks which ticks are due and takes them, at once, twice, late, or never because it dies before. */
export async function tickAll(world: World, actor: Actor, other: Actor, random: Random): Promise<void> {
  const next = await actor.store.schedules.list({ due: true });
  const now = actor.clock.now();
  for (const schedule of next) {
    const ticks = dueTicks(schedule, now);
    if (ticks === null) continue;
    world.model.schedules.checkTicks(now, schedule, ticks);
    world.ticks.push({ key: schedule.key, revision: schedule.revision, from: schedule.nextAt, ...ticks });
  }
  if (random.chance(0.2)) return;
  if (random.chance(0.2)) world.ticks.shift();
  const ticks = random.chance(0.3) ? [...world.ticks, ...world.ticks] : world.ticks.slice();
  if (random.chance(0.7)) world.ticks = [];
  // In one turn, of one process or of two.
  const second = world.isShared ? actor : other;
  await Promise.all(ticks.map((tick, i) => fire(tick, i % 2 === 0 ? actor : second)));
  await checkNoMore(actor);
}

function fire(tick: Tick, actor: Actor): Promise<boolean> {
  return actor.store.schedules.tick(tick);
}

async function checkNoMore(actor: Actor): Promise<void> {
  const strangers = await actor.store.strangers();
  must(strangers.length === 0, () => `${strangers.join(", ")} came from nowhere`);
}

function draft(world: World, actor: Actor, key: string, random: Random): ScheduleDraft {
  const { name, queue, version, policy, input, priority, declares, limitKeys } = newJobs(world, actor, random, 1)[0] as NewJob;
  const missed = random.pick(["skip", "once", "all"] as const);
  // Not too many at once when a clock is set forward by an hour.
  const crons = Object.keys(PERIODS).filter((one) => missed !== "all" || (PERIODS[one] as number) >= 60_000);
  const cron = random.pick(crons);
  const declared = declares !== undefined && limitKeys !== undefined && { declares: { ...declares, old: true }, limitKeys };
  return {
    key,
    cron,
    timezone: "UTC",
    missed,
    within: random.pick(missed === "all" ? [15_000, 300_000] : [null, null, 15_000]),
    overlap: random.chance(0.5),
    // Old, because by the time of a tick another process may have declared otherwise.
    template: { name, queue, version, policy, input, priority, delay: 0, ...declared },
    nextAt: nextTick(cron, "UTC", actor.clock.now()),
  };
}
