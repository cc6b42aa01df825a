import { type Holdfast, type Job, job, NonRetryableError } from "../../src/index.ts";

export const REGIONS = ["north", "south", "east", "west"];

/** Regions whose data of a night cannot be read. */
export const broken = new Set<string>();

/** Each night: a batch for every region, and a report after all of them. All of it is there, or none. */
export const nightly = job<null>({
  name: "nightly",
  run: ({ scheduledFor, enqueue }) => {
    // The night that is meant, however late this runs.
    const night = (scheduledFor as Date).toISOString().slice(0, 10);
    const batches = REGIONS.map((region) => enqueue(batch, { night, region }, { id: `${night} ${region}` }).id);
    enqueue(report, { night, batches }, { id: `${night} report`, after: batches });
    return night;
  },
});

export const batch = job<{ night: string; region: string }, { sold: number }>({
  name: "batch",
  queue: { name: "batches", limit: { concurrency: 2 } }, // two at once, in whatever process
  run: ({ input }) => {
    if (broken.has(`${input.night} ${input.region}`)) throw new NonRetryableError("The data cannot be read.");
    return { sold: input.region.length * Number(input.night.slice(-2)) };
  },
});

type Night = { night: string; batches: string[] };

export const report = job<Night, string>({ name: "report", run: () => "" });

/** Its handler reads what the batches have found: they have all succeeded by now. */
export function reporting(hf: Holdfast): typeof report {
  return report.handle(async ({ input }) => {
    let sold = 0;
    for (const id of input.batches) {
      const done = (await hf.jobs.get(id)) as Job<unknown, { sold: number }> | null;
      sold += done?.output?.sold ?? 0;
    }
    return `${input.batches.length} regions sold ${sold}`;
  });
}
