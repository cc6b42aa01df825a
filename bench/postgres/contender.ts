import type { Player } from "../peers/player.ts";
import { payload } from "../scratch.ts";

export type Payload = ReturnType<typeof payload>;

/** A queue on an empty database of its own, in the configuration that was the fastest of those tried. */
export interface Contender {
  /** How many jobs it is best handed in one call, and how many such calls at once. */
  readonly bulk: { batch: number; atOnce: number };
  /** Committed when it resolves. */
  enqueue(job: Payload): Promise<unknown>;
  enqueueMany(jobs: Payload[]): Promise<unknown>;
  /** Runs that many no-op jobs, which are there already; resolves when the database says that all are done. */
  drain(jobs: number): Promise<void>;
  /** Works until it is closed; called when a job starts. */
  listen(onStart: (i: number) => void): Promise<void>;
  /** How many jobs have not ended. */
  left(): Promise<number>;
  close(): Promise<void>;
}

/** As one of the players that also compete with other stores. */
export async function playerOf(contender: Promise<Contender>): Promise<Player> {
  const { bulk, enqueue, enqueueMany, listen, left, close } = await contender;
  return {
    fill: async (jobs) => {
      for (let from = 0; from < jobs; from += bulk.batch)
        await enqueueMany(Array.from({ length: Math.min(bulk.batch, jobs - from) }, (_, k) => payload(from + k)));
    },
    enqueue: (i) => enqueue(payload(i)),
    work: listen,
    left,
    close,
  };
}

/** What it is opened for: some have to choose between the most a second and the least delay. */
export type Purpose = "throughput" | "latency";

const CONTENDERS = {
  Holdfast: async (url: string, purpose: Purpose) => (await import("./holdfast.ts")).open(url, purpose),
  "graphile-worker": async (url: string, purpose: Purpose) => (await import("./graphile-worker.ts")).open(url, purpose),
  "pg-boss": async (url: string, purpose: Purpose) => (await import("./pg-boss.ts")).open(url, purpose),
  "raw SQL": async (url: string) => (await import("./raw.ts")).open(url),
} satisfies Record<string, (url: string, purpose: Purpose) => Promise<Contender>>;

export type Name = keyof typeof CONTENDERS;

export const NAMES = Object.keys(CONTENDERS) as Name[];
export const PEERS: readonly Name[] = ["graphile-worker", "pg-boss"];

/** Each is loaded only in the process that measures it. */
export function open(name: Name, url: string, purpose: Purpose): Promise<Contender> {
  return CONTENDERS[name](url, purpose);
}
