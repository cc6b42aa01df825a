import { FINISHED_STATES, JOB_STATES, type JobState } from "../core/job.ts";
import type { Holdfast } from "../runtime/holdfast.ts";
import type { Durability, Life, LockView, QueueOverview, RecoveryTotals } from "../store/store.ts";

/** A process that has the database open; `dead` ones are there until somebody recovers what they left behind. */
export interface ProcessStatus {
  pid: number;
  host: string;
  program: string;
  startedAt: number;
  life: Life;
  running: number;
}

/** How a database stands, at one moment. */
export interface Overview {
  at: number;
  database: { path: string; id: string; durability: Durability };
  counts: Record<JobState, number>;
  queues: QueueOverview[];
  processes: ProcessStatus[];
  /** Running, claimed by hand. */
  byHand: number;
  /** Whether some job could start now. */
  ready: boolean;
  locks: LockView[];
  recovery: RecoveryTotals;
}

export async function overviewOf(hf: Holdfast): Promise<Overview> {
  const { store, clock, location } = hf.engine;
  const [queues, probed, running, locks, recovery] = await Promise.all([
    store.queues(),
    store.probe(),
    store.running(),
    store.locks(),
    store.recovery(),
  ]);
  const { ready } = await store.outlook(queues.map(({ name }) => ({ queue: name, lease: 1 })));
  const processes = probed
    .map(({ process, life }) => {
      const { id, pid, host, program, startedAt } = process;
      return { pid, host, program, startedAt, life, running: running.get(id) ?? 0 };
    })
    .filter((process) => !isPassing(process));
  return {
    at: clock.now(),
    database: { path: location.path, id: store.databaseId, durability: store.durability },
    counts: sum(queues),
    queues: queues.filter(({ counts }) => JOB_STATES.some((state) => counts[state] > 0)),
    processes,
    byHand: running.get(null) ?? 0,
    ready,
    locks,
    recovery,
  };
}

/** Another command like this one, gone in a moment: it would pass for somebody who works. */
function isPassing({ program, running }: ProcessStatus): boolean {
  return program.startsWith("holdfast ") && !program.startsWith("holdfast work") && running === 0;
}

export function finishedIn(counts: Record<JobState, number>): number {
  return FINISHED_STATES.reduce((total, state) => total + counts[state], 0);
}

function sum(queues: readonly QueueOverview[]): Record<JobState, number> {
  const total = Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
  for (const { counts } of queues) for (const state of JOB_STATES) total[state] += counts[state];
  return total;
}
