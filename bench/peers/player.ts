/** A queue or a workflow engine in one process, on an empty database, in the fastest of the settings that were tried. */
export interface Player {
  /** Enqueues jobs with the numbers from 0 on. */
  fill?(jobs: number): Promise<void>;
  /** Committed when it resolves. */
  enqueue?(i: number): Promise<unknown>;
  /** Starts a worker, and calls `onRun` with the number of each job that runs. */
  work?(onRun: (i: number) => void): Promise<void>;
  /** How many jobs have not ended. */
  left?(): Promise<number>;
  /** Takes so many targets through three steps, and calls `onStep` for each step that runs. */
  pipeline?(targets: number, onStep: () => void): Promise<void>;
  close(): Promise<void>;
}

export type StoreKind = "SQLite" | "PostgreSQL" | "Redis";
export type Purpose = "throughput" | "latency";

interface Entry {
  name: string;
  store: StoreKind;
  does: readonly ("jobs" | "pipelines")[];
  open(place: string, purpose: Purpose): Promise<Player>;
}

const JOBS = ["jobs"] as const;
const PIPELINES = ["pipelines"] as const;

export const PLAYERS: readonly Entry[] = [
  entry("Holdfast", "SQLite", ["jobs", "pipelines"], async (place) => (await import("./holdfast.ts")).open(place)),
  entry("plainjob", "SQLite", JOBS, async (place, purpose) => (await import("./plainjob.ts")).open(place, purpose)),
  entry("OpenWorkflow", "SQLite", PIPELINES, async (place) => (await import("./openworkflow.ts")).open(place)),
  entry("Holdfast", "PostgreSQL", ["jobs", "pipelines"], async (place) => (await import("./holdfast.ts")).open(place)),
  entry("graphile-worker", "PostgreSQL", JOBS, (...how) => contender("graphile-worker", ...how)),
  entry("pg-boss", "PostgreSQL", JOBS, (...how) => contender("pg-boss", ...how)),
  entry("DBOS", "PostgreSQL", PIPELINES, async (place) => (await import("./dbos.ts")).open(place)),
  entry("OpenWorkflow", "PostgreSQL", PIPELINES, async (place) => (await import("./openworkflow.ts")).open(place)),
  entry("BullMQ", "Redis", JOBS, async (place) => (await import("./bullmq.ts")).open(place)),
];

export function openPlayer(index: number, place: string, purpose: Purpose): Promise<Player> {
  return (PLAYERS[index] as Entry).open(place, purpose);
}

export function labelOf({ name, store }: { name: string; store: StoreKind }): string {
  return `${name} (${store})`;
}

async function contender(name: "graphile-worker" | "pg-boss", place: string, purpose: Purpose): Promise<Player> {
  const { open, playerOf } = await import("../postgres/contender.ts");
  return playerOf(open(name, place, purpose));
}

function entry(name: string, store: StoreKind, does: Entry["does"], open: Entry["open"]): Entry {
  return { name, store, does, open };
}

/** A package that is installed only for this comparison, so that nothing is known of its types. */
export async function peer<T>(name: string): Promise<T> {
  return (await import(name)) as T;
}
