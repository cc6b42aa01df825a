import { drain } from "./drain.ts";
import { start } from "./reclaim.ts";
import { operations } from "./operations.ts";
import { inMemory, onFile, type Place } from "./place.ts";
import { Random } from "./random.ts";
import { END } from "./trace.ts";
import { type Break, World } from "./world.ts";

export interface ScheduleOptions {
  break?: Break | undefined;
  misguide?: Break | undefined;
  /** Where its store is; else in memory, and now and then on a file. */
  place?: (seed: number) => Place;
  /** Only these steps of it. */
  steps?: readonly number[] | undefined;
}

export interface Failure {
  seed: number;
  steps: readonly number[];
  error: unknown;
  trace: string;
}

export interface Run {
  steps: number;
  failure: Failure | null;
  trace: () => string;
}

/** Streams of a seed that are not steps. */
const PLAN = -1;
const STORE = -2;
const DRAIN = -3;
/** Between two comparisons of everything. */
const STRIDE = 25;

/**
 * One schedule, wholly decided by its seed. Each step draws from a stream of its own, so a schedule can be run without
 * some of its steps and the others stay much as they were: that is how a failure is shortened.
 */
export async function runSchedule(seed: number, options: ScheduleOptions = {}): Promise<Run> {
  const plan = new Random(seed, PLAN);
  const usual = plan.chance(0.04) ? onFile : inMemory;
  const place = options.place?.(seed) ?? usual();
  const kinds = moods(plan);
  const length = plan.chance(0.1) ? 120 : plan.int(30, 60);
  const processes = place.isShared ? plan.int(2, 4) : 2;
  const steps = options.steps ?? Array.from({ length }, (_, step) => step);
  const jitter = new Random(seed, STORE);
  const world = new World({ place, random: () => jitter.next(), break: options.break, misguide: options.misguide });
  const trace = () => world.trace.toString();
  let done = 0;
  try {
    await world.start("byHand", plan);
    for (let i = 0; i < processes; i++) await start(world, plan);
    for (const step of steps) {
      const random = new Random(seed, step);
      world.trace.step(step);
      done++;
      await random.weighted(kinds)(world, random);
      await world.checkStep(step % STRIDE === STRIDE - 1);
    }
    world.trace.step(END);
    await world.checkStep(true);
    await drain(world, new Random(seed, DRAIN));
    return { steps: done, failure: null, trace };
  } catch (thrown) {
    const error = world.violation ?? thrown;
    return { steps: done, failure: { seed, steps: steps.slice(0, done), error, trace: trace() }, trace };
  } finally {
    await world.close();
  }
}

/** Each schedule has moods: some kinds of steps often, some never. That reaches further than the same mixture always. */
function moods(plan: Random) {
  return Object.values(operations).map(({ weight, run }) => ({ weight: weight * plan.pick([0, 1, 1, 1, 3]) + 0.01, value: run }));
}

/** The fewest steps, found within so many tries, that still fail. */
export async function shorten(failure: Failure, options: ScheduleOptions, tries = 250): Promise<Failure> {
  let best = failure;
  for (let size = Math.ceil(best.steps.length / 2); size >= 1; size = size === 1 ? 0 : Math.ceil(size / 2)) {
    for (let from = 0; from < best.steps.length;) {
      if (tries-- <= 0) return best;
      const steps = [...best.steps.slice(0, from), ...best.steps.slice(from + size)];
      const { failure: again } = await runSchedule(best.seed, { ...options, steps });
      if (again === null) from += size;
      else best = again;
    }
  }
  return best;
}

/** How to see it again, and what happened. */
export function describe({ seed, steps, error, trace }: Failure): string {
  const said =
    error instanceof Error ? (error.name === "Violation" ? error.message : (error.stack ?? error.message)) : String(error);
  return [
    said,
    `Replay the whole schedule:  HOLDFAST_SEED=${seed} node --test test/simulation/simulation.test.ts`,
    `Replay what is shown here:  HOLDFAST_SEED=${seed} HOLDFAST_STEPS=${steps.join(",")} node --test test/simulation/simulation.test.ts`,
    trace,
  ].join("\n");
}
