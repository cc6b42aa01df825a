import { JOB_STATES, type JobState } from "../../core/job.ts";
import type { CrashRecoveryReport } from "../../core/recovery-report.ts";
import type { Schedule } from "../../core/schedule.ts";
import type { WalView } from "../../core/wal.ts";
import { bootId } from "../boot.ts";
import { isDamage } from "../readable.ts";
import type { Holdfast } from "../holdfast.ts";
import { isOfCrash, type RecoveryPlan } from "../recovery/preview.ts";
import { reportOf, type StoredReport } from "../../store/recoveries.ts";
import type { LockView } from "../../store/locks.ts";
import type { Life, Works } from "../../store/processes.ts";
import type { SinkView } from "../../store/sinks.ts";
import type { RecoveryTotals } from "../../store/healing.ts";
import type { LaneOverview, QueueOverview } from "../../store/look.ts";
import type { Durability } from "../../store/store.ts";
import { type OpenBuild, openBuilds } from "./open-builds.ts";

/** A process that has the database open; `dead` ones are there until somebody recovers what they left behind. */
export interface ProcessStatus {
  pid: number;
  host: string;
  program: string;
  startedAt: number;
  life: Life;
  /** Empty for those who only enqueue or look. */
  works: readonly Works[];
  running: number;
  /** It was asked to stop. */
  stopping: boolean;
}

/** Jobs that no process says it works on. */
export interface Unworked {
  name: string;
  version: number;
  /** Waiting ones, too. */
  pending: number;
}

/** How a database stands, at one moment. */
export interface Overview {
  at: number;
  database: { path: string; id: string; durability: Durability };
  /** Why it is only read; null: it is whole, as far as is known. */
  damaged: string | null;
  /** What of the rest cannot be read for that, and is left empty. */
  unreadable: string[];
  /** What was acknowledged, is not there, and stands in no report yet. */
  lost: string[];
  counts: Record<JobState, number>;
  queues: QueueOverview[];
  processes: ProcessStatus[];
  /** Running, claimed by hand. */
  byHand: number;
  /** Whether some job could start now. */
  ready: boolean;
  unworked: Unworked[];
  /** Those that have not ended. */
  builds: OpenBuild[];
  locks: LockView[];
  schedules: Schedule[];
  /** Who is told of events, and how far behind each is. */
  sinks: SinkView[];
  recovery: RecoveryTotals;
  /** Its write-ahead log; null: the server's own. */
  wal: WalView | null;
  /** The newest report of a crash, and those that stand open. */
  crashes: { last: CrashRecoveryReport | null; open: StoredReport[] };
  /** What a crash has left waits for an operator's word. */
  pending: RecoveryPlan | null;
}

/** `counted`: all queues, where they were asked for already: what is pending is counted one by one. */
export async function overviewOf(hf: Holdfast, counted = hf.engine.store.look.queues()): Promise<Overview> {
  const { store, clock, location } = hf.engine;
  const read = new PartialReading();
  const [queues, lanes, probed, running, locks, schedules, sinks, recovery, builds, [last], open, wal, findings] =
    await Promise.all([
      read.of("queues", [], () => counted),
      read.of("names", [], () => store.look.lanes()),
      read.of("processes", [], () => store.processes.probe(bootId())),
      read.of("running jobs", new Map(), () => store.processes.running()),
      read.of("locks", [], () => store.locks.all()),
      read.of("schedules", [], () => hf.schedules.list({ incomplete: true })),
      read.of("sinks", [], () => store.sinks.all()),
      read.of("recoveries", NO_RECOVERY, () => store.healing.totals()),
      read.of("builds", [], () => openBuilds(hf)),
      read.of("reports", [], () => store.recoveries.reports({ limit: 1 })),
      read.of("open reports", [], () => store.recoveries.reports({ limit: 20, which: "open" })),
      read.of("log", null, () => store.vitals.wal()),
      store.damage.findings(),
    ]);
  const asked = queues.map(({ name }) => ({ queue: name, lease: 1 }));
  const { ready } = await read.of("what could start", { ready: false, nextIn: null }, () => store.outlook(asked));
  const processes = probed
    .map(({ process, life }): ProcessStatus => {
      const { id, pid, host, program, startedAt, works, stop } = process;
      return { pid, host, program, startedAt, life, works, running: running.get(id) ?? 0, stopping: stop !== null };
    })
    .filter((process) => !isPassing(process));
  return {
    at: clock.now(),
    database: { path: location.name, id: store.databaseId, durability: store.durability },
    damaged: store.damage.damaged,
    unreadable: read.unreadable,
    lost: findings.filter(({ severity }) => severity === "loss").map(({ what }) => what),
    counts: sum(queues),
    queues: queues.filter(({ paused, counts }) => paused || JOB_STATES.some((state) => counts[state] > 0)),
    processes,
    byHand: running.get(null) ?? 0,
    ready,
    unworked: unworkedIn(lanes, queues, processes),
    builds,
    locks,
    schedules,
    sinks,
    recovery,
    wal,
    crashes: { last: last === undefined ? null : reportOf(last), open },
    pending: hf.engine.isSealed ? await crashPending(hf) : null,
  };
}

const NO_RECOVERY: RecoveryTotals = { locksCleaned: 0, entriesReclaimed: 0, recoveredAt: 0, log: [] };

/** Of a damaged database, what can be read; what cannot is named. */
class PartialReading {
  readonly unreadable: string[] = [];

  async of<T>(what: string, otherwise: T, look: () => Promise<T>): Promise<T> {
    try {
      return await look();
    } catch (error) {
      if (!isDamage(error)) throw error;
      this.unreadable.push(what);
      return otherwise;
    }
  }
}

/** As far as can be told from here: one elsewhere may live. */
export function isThere({ life }: ProcessStatus): boolean {
  return life === "alive" || life === "unknown";
}

/** A process that only enqueues is no worker. */
export function workersIn({ processes }: { processes: readonly ProcessStatus[] }): ProcessStatus[] {
  return processes.filter((process) => isThere(process) && process.works.length > 0);
}

/** Commands that stay, also while they have nothing to do: `run --watch` waits for a change of its source. */
const STAYING = /^holdfast (?:work|run)\b/;

/** Another command like this one, gone in a moment. */
function isPassing({ program, running, works }: ProcessStatus): boolean {
  return program.startsWith("holdfast ") && !STAYING.test(program) && running === 0 && works.length === 0;
}

/** What is paused is not worked on for a reason that is shown. A worker takes its names from whatever queue they are in. */
function unworkedIn(
  lanes: readonly LaneOverview[],
  queues: readonly QueueOverview[],
  processes: readonly ProcessStatus[],
): Unworked[] {
  const paused = new Set(queues.filter((queue) => queue.paused).map(({ name }) => name));
  const worked = new Set(workersIn({ processes }).flatMap(({ works }) => works.map(idOf)));
  const found = new Map<string, Unworked>();
  for (const lane of lanes) {
    if (lane.pending === 0 || paused.has(lane.queue) || worked.has(idOf(lane))) continue;
    const { name, version } = lane;
    const pending = lane.pending + (found.get(idOf(lane))?.pending ?? 0);
    found.set(idOf(lane), { name, version, pending });
  }
  return [...found.values()].sort((a, b) => b.pending - a.pending);
}

function idOf({ name, version }: { name: string; version: number }): string {
  return `${version} ${name}`;
}

function sum(queues: readonly QueueOverview[]): Record<JobState, number> {
  const total = Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
  for (const { counts } of queues) for (const state of JOB_STATES) total[state] += counts[state];
  return total;
}

async function crashPending(hf: Holdfast): Promise<RecoveryPlan | null> {
  const plan = await hf.recovery.preview();
  return plan !== null && isOfCrash(plan) ? plan : null;
}
