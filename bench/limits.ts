import { type Claim, type Holdfast, job, type JobDef, open } from "../src/index.ts";
import type { Durability } from "../src/store/store.ts";
import { type Figure, median, rate } from "./measure.ts";
import { payload } from "./scratch.ts";

type Input = ReturnType<typeof payload> & { key: string };

const KEYS = 1_000;

/** Where databases are measured. */
export interface Place {
  /** On an empty one, which is gone afterwards. */
  fresh<T>(run: (where: string) => Promise<T>): Promise<T>;
  durability: Durability;
}

/** One key with a great many waiting must not slow the others, and counting keys must not halve the rate. */
export async function limits(place: Place, many: number, rounds: number): Promise<Figure[]> {
  const { alone, beside } = await claimBeside(place, many);
  let [without, within] = [0, 0];
  for (let round = 0; round < rounds; round++) {
    without = Math.max(without, await place.fresh((where) => drain(place, where, definition({}))));
    within = Math.max(within, await place.fresh((where) => drain(place, where, definition(limitOf(2)))));
  }
  return [
    {
      what: `claim beside ${many.toLocaleString("en")} parked of one key`,
      ours: beside,
      limit: alone,
      unit: "µs",
      target: { atMost: 1.5 },
    },
    {
      what: `drain, limited over ${KEYS.toLocaleString("en")} keys, against without`,
      ours: within,
      limit: without,
      unit: "jobs/s",
      target: { atLeast: 0.5 },
    },
  ];
}

function limitOf(concurrency: number): Pick<Parameters<typeof job<Input, void>>[0], "limit"> {
  return { limit: { key: ({ key }) => key, concurrency } };
}

function definition(options: ReturnType<typeof limitOf> | object): JobDef<Input, void> {
  return job<Input, void>({ name: "limited", run: async () => {}, ...options });
}

/**
 * Microseconds for one claim of another key, with its commit, while the slots of the great one are taken. The two take
 * turns, so that what else the machine does is the same for both.
 */
function claimBeside(place: Place, parked: number): Promise<{ alone: number; beside: number }> {
  return place.fresh((without) =>
    place.fresh(async (withMany) => {
      const crowds = [await Crowd.gather(place, without, 0), await Crowd.gather(place, withMany, parked)] as const;
      for (let i = 0; i < 1_000; i++) for (const crowd of i % 2 === 0 ? crowds : crowds.toReversed()) await crowd.claim();
      for (const crowd of crowds) await crowd.disperse();
      const [alone, beside] = crowds;
      return { alone: median(alone.times), beside: median(beside.times) };
    }),
  );
}

/** The slots of the great key are taken, so many of it are parked, and a thousand others wait. */
class Crowd {
  readonly times: number[] = [];
  readonly #hf: Holdfast;
  readonly #def = definition(limitOf(2));
  readonly #held: (Claim<Input> | null)[] = [];

  static async gather(place: Place, where: string, parked: number): Promise<Crowd> {
    const crowd = new Crowd(await open(where, { durability: place.durability }));
    await fill(crowd.#hf, crowd.#def, parked + 2, () => "great");
    // For as long as it takes: the great key must not come free while it is measured.
    for (let i = 0; i < 2; i++) crowd.#held.push(await crowd.#hf.claim(crowd.#def, { worker: "bench", lease: "1h" }));
    await fill(crowd.#hf, crowd.#def, 1_000, (i) => `small-${i}`);
    return crowd;
  }

  private constructor(hf: Holdfast) {
    this.#hf = hf;
  }

  async claim(): Promise<void> {
    const start = performance.now();
    const claim = await this.#hf.claim(this.#def, { worker: "bench" });
    this.times.push((performance.now() - start) * 1_000);
    await claim?.release();
  }

  async disperse(): Promise<void> {
    for (const claim of this.#held) await claim?.release();
    await this.#hf.close();
  }
}

/** Jobs a second, over many keys. */
async function drain(place: Place, where: string, def: JobDef<Input, void>): Promise<number> {
  const jobs = 50_000;
  const hf = await open(where, { durability: place.durability });
  await fill(hf, def, jobs, (i) => `key-${i % KEYS}`);
  const start = performance.now();
  const worker = hf.work([def]);
  await hf.jobs.wait(await hf.enqueue(def, { ...payload(0), key: "last" }, { priority: -1 }));
  // Some may have waited behind the last of their key.
  for (const state of ["pending", "running"] as const) {
    for (const { id } of (await hf.jobs.list({ state, limit: 1_000 })).items) await hf.jobs.wait(id);
  }
  const perSecond = rate(jobs, start);
  await worker.stop();
  await hf.close();
  return perSecond;
}

async function fill(hf: Holdfast, def: JobDef<Input, void>, jobs: number, keyOf: (i: number) => string): Promise<void> {
  for (let i = 0; i < jobs; i += 1_000) {
    const inputs = Array.from({ length: Math.min(1_000, jobs - i) }, (_, k) => ({ ...payload(i + k), key: keyOf(i + k) }));
    await hf.enqueueMany(def, inputs);
  }
}
