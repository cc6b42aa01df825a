import { pipelineQueue } from "../core/pipelines/work.ts";
import { ageText } from "../core/text/duration.ts";
import type { Build } from "../core/pipelines/build-view.ts";
import { hasEnded } from "../core/pipelines/build.ts";
import { spentText } from "../core/pipelines/budget.ts";
import { JOB_STATES, type JobState } from "../core/jobs/job.ts";
import { isProvenDead } from "../core/jobs/lease.ts";
import { MINUTE_MS } from "../core/jobs/minutes.ts";
import {
  type CrashRecoveryReport,
  countPlan,
  isOfCrash,
  RECOVER_COMMAND,
  type RecoveryPlan,
} from "../core/recovery/recovery-report.ts";
import type { Schedule } from "../core/jobs/schedule.ts";
import { isLong, readersText, VERY_LONG_WAL_BYTES, type WalView } from "../core/recovery/loss.ts";
import { bytesText, numberText, plural } from "../core/text/text.ts";
import { bootId } from "../engine/host.ts";
import { ifReadable } from "../engine/client.ts";
import type { Holdfast } from "../holdfast.ts";
import type { OrchestratorLockRow } from "../store/builds.ts";
import type { ReclaimTotals } from "../store/recoveries.ts";
import type { LockView } from "../store/queues.ts";
import { type JobOverview, type LaneOverview, type QueueOverview, sumCounts } from "../store/queries.ts";
import type { Life, ProbedProcesses, ProcessView, Works } from "../store/processes.ts";
import { reportOf, type StoredReport } from "../store/recoveries.ts";
import type { SinkView } from "../store/events.ts";
import type { Durability, Store } from "../store/store.ts";

/** A process that has the database open. A dead process stays listed until recovery reclaims what it held. */
export interface ProcessStatus {
  pid: number;
  host: string;
  program: string;
  startedAt: number;
  life: Life;
  works: readonly Works[];
  running: number;
  stopping: boolean;
}

export interface LockStatus extends LockView {
  /** True if the process that holds the lock is proven dead. Recovery releases the lock. */
  holderDead: boolean;
}

interface Unworked {
  name: string;
  version: number;
  pending: number;
}

export interface Overview {
  at: number;
  database: { path: string; id: string; durability: Durability };
  damaged: string | null;
  /** Parts that damage makes unreadable. They are left empty. */
  unreadable: string[];
  /** Missing commits that no report contains yet. */
  lost: string[];
  counts: Record<JobState, number>;
  queues: QueueOverview[];
  processes: ProcessStatus[];
  byHand: number;
  /** Queues with claims settled by hand: each for a minute at least, from when its process has added it to the counts. */
  settledByHand: string[];
  ready: boolean;
  unworked: Unworked[];
  builds: OpenBuild[];
  locks: LockStatus[];
  schedules: Schedule[];
  sinks: SinkView[];
  recovery: ReclaimTotals;
  /** Null on a server, which has its own log. */
  wal: WalView | null;
  crashes: { last: CrashRecoveryReport | null; open: StoredReport[] };
  pending: RecoveryPlan | null;
}

/** Reads an overview. A caller that has read the queues passes them as `counted`, because counting pending jobs is expensive. */
export async function overviewOf(hf: Holdfast, counted = hf.engine.store.queries.overview()): Promise<Overview> {
  const { store, clock, location } = hf.engine;
  // Read what a damaged database still has, and name the rest.
  const unreadable: string[] = [];
  const read = async <T>(what: string, otherwise: T, load: () => Promise<T>): Promise<T> => {
    const found = await ifReadable(async () => ({ found: await load() }));
    if (found === null) unreadable.push(what);
    return found === null ? otherwise : found.found;
  };
  const [{ queues, lanes, running }, settled, probed, locks, schedules, sinks, history, builds, open, wal, findings] =
    await Promise.all([
      read("queues", NO_JOBS, () => counted),
      read("counts by minute", [], () => store.queues.minutes({ from: Math.floor(clock.now() / MINUTE_MS) - 1 })),
      read("processes", [], () => probedWithWorker(store)),
      read("locks", [], () => store.locks.list()),
      read("schedules", [], () => hf.schedules.list({ incomplete: true })),
      read("sinks", [], () => store.events.sinks()),
      read("recoveries", NO_RECOVERY, () => store.recoveries.history({ limit: 1 })),
      read("builds", [], () => openBuilds(hf)),
      read("open reports", NO_RECOVERY, () => store.recoveries.history({ limit: 20, which: "open" })),
      read("log", null, async () => (await store.maintenance.gauge()).wal),
      store.damage.findings(),
    ]);
  const [last] = history.reports;
  const asked = queues.map(({ name }) => ({ queue: name, lease: 1 }));
  const { ready } = await read("what could start", { ready: false, nextIn: null }, () => store.outlook(asked));
  const processes = probed
    .map(({ process, life }): ProcessStatus => {
      const { id, pid, host, program, startedAt, works, stop } = process;
      return { pid, host, program, startedAt, life, works, running: running.get(id) ?? 0, stopping: stop !== null };
    })
    .filter((process) => !isShortCommand(process));
  return {
    at: clock.now(),
    database: { path: location.name, id: store.databaseId, durability: store.durability },
    damaged: store.damage.damaged,
    unreadable,
    lost: findings.filter(({ severity }) => severity === "loss").map(({ what }) => what),
    counts: sumCounts(queues),
    queues: queues.filter(({ paused, counts }) => paused || JOB_STATES.some((state) => counts[state] > 0)),
    processes,
    byHand: running.get(null) ?? 0,
    settledByHand: [...new Set(settled.filter(({ byHand }) => byHand > 0).map(({ queue }) => queue))],
    ready,
    unworked: findUnworked(lanes, queues, processes),
    builds,
    locks: await markDeadHolders(store, locks, probed),
    schedules,
    sinks,
    recovery: history.totals,
    wal,
    crashes: { last: last === undefined ? null : reportOf(last), open: open.reports },
    pending: hf.engine.isReadOnly ? await crashPending(hf) : null,
  };
}

/** Returns the other processes, and this one if it has a worker, as an app that serves the dashboard may have. */
async function probedWithWorker({ processes }: Store): Promise<ProbedProcesses["others"]> {
  const { self, others } = await processes.probe(bootId());
  return self === null || self.works.length === 0 ? others : [{ process: self, life: "alive" }, ...others];
}

export async function markDeadHolders(
  { recoveries }: Pick<Store, "recoveries">,
  locks: readonly LockView[],
  probed: readonly { process: ProcessView; life: Life }[],
): Promise<LockStatus[]> {
  const dead = probed.filter(({ life }) => isProvenDead(life)).map(({ process }) => process.id);
  const isIdle = dead.length === 0 || locks.length === 0;
  const left = new Set(isIdle ? [] : (await recoveries.preview({ dead, alive: [] }, [])).locks);
  return locks.map((lock) => Object.assign({}, lock, { holderDead: left.has(lock.name) }));
}

const NO_JOBS: JobOverview = { queues: [], lanes: [], running: new Map() };

const NO_RECOVERY: { reports: StoredReport[]; totals: ReclaimTotals } = {
  reports: [],
  totals: { locksCleaned: 0, entriesReclaimed: 0, recoveredAt: 0, log: [] },
};

export function mayBeAlive({ life }: ProcessStatus): boolean {
  return life === "alive" || life === "unknown";
}

export function workersIn({ processes }: { processes: readonly ProcessStatus[] }): ProcessStatus[] {
  return processes.filter((process) => mayBeAlive(process) && process.works.length > 0);
}

/** Commands that stay while they are idle: `run --watch` waits for a change of its source. */
const LONG_COMMANDS = /^holdfast (?:work|run)\b/;

function isShortCommand({ program, running, works }: ProcessStatus): boolean {
  return program.startsWith("holdfast ") && !LONG_COMMANDS.test(program) && running === 0 && works.length === 0;
}

/** Finds names that no worker runs. Paused queues are left out, because they are shown as paused. */
function findUnworked(
  lanes: readonly LaneOverview[],
  queues: readonly QueueOverview[],
  processes: readonly ProcessStatus[],
): Unworked[] {
  const paused = new Set(queues.filter((queue) => queue.paused).map(({ name }) => name));
  const worked = new Set(workersIn({ processes }).flatMap(({ works }) => works.map(idOf)));
  const found = new Map<string, Unworked>();
  for (const lane of lanes) {
    const left = lane.counts.pending + lane.counts.waiting;
    if (left === 0 || paused.has(lane.queue) || worked.has(idOf(lane))) continue;
    const { name, version } = lane;
    const pending = left + (found.get(idOf(lane))?.pending ?? 0);
    found.set(idOf(lane), { name, version, pending });
  }
  return [...found.values()].sort((a, b) => b.pending - a.pending);
}

function idOf({ name, version }: { name: string; version: number }): string {
  return `${version} ${name}`;
}

async function crashPending(hf: Holdfast): Promise<RecoveryPlan | null> {
  const plan = await hf.recovery.preview();
  return plan !== null && isOfCrash(plan) ? plan : null;
}

export interface OpenBuild extends Pick<Build, "id" | "pipeline" | "state" | "reason" | "budget" | "spent" | "createdAt"> {
  left: number;
  failed: number;
  approved: boolean;
  lead: { pid: number; host: string; program: string; programHash: string; beatAt: number; life: Life | "gone" } | null;
}

const MAX_OPEN_BUILDS = 150;

export async function openBuilds(hf: Holdfast): Promise<OpenBuild[]> {
  const { builds } = hf.engine.store;
  const [leads, { others: probed }, { items: newest }] = await Promise.all([
    builds.orchestratorLocks(),
    hf.engine.store.processes.probe(bootId()),
    builds.list({ newest: true }),
  ]);
  const unended = newest.filter(({ state }) => !hasEnded(state)).toSorted((a, b) => a.key - b.key);
  return Promise.all(
    unended.slice(0, MAX_OPEN_BUILDS).map(async ({ id, approved }): Promise<OpenBuild> => {
      const build = (await hf.builds.get(id)) as Build;
      const lead = leads.find((one) => one.build === id);
      const { pipeline, state, reason, budget, spent, createdAt, stages } = build;
      const total = (of: "left" | "failed") => Object.values(stages).reduce((sum, stage) => sum + stage[of], 0);
      return {
        id,
        pipeline,
        state,
        reason,
        budget,
        spent,
        createdAt,
        approved,
        left: total("left"),
        failed: total("failed"),
        lead: lead === undefined ? null : toOrchestrator(lead, probed),
      };
    }),
  );
}

function toOrchestrator(
  { holder, pid, host, program, programHash, beatAt }: OrchestratorLockRow,
  probed: readonly { process: ProcessView; life: Life }[],
): OpenBuild["lead"] {
  const life = probed.find(({ process }) => process.id === holder)?.life ?? "gone";
  return { pid, host, program, programHash, beatAt, life };
}

/** Whether an ACTIVE build lacks a live orchestrator. The next run reports it as CRASHED. */
export function isOrphaned({ state, lead }: OpenBuild): boolean {
  return state === "ACTIVE" && lead?.life !== "alive" && lead?.life !== "unknown";
}

export const ALARM_CODES = [
  "DAMAGED",
  "COMMITS_MISSING",
  "BUILD_PAUSED",
  "BUILD_CRASHED",
  "NO_WORKER",
  "NAME_NOT_WORKED",
  "LEFT_BEHIND",
  "RECOVERY_FAILED",
  "RECOVERY_PENDING",
  "RECOVERY_STUCK",
  "QUARANTINED",
  "FAILED",
  "WAITING_LONG",
  "SINK_BEHIND",
  "WAL_LONG",
] as const;
type AlarmCode = (typeof ALARM_CODES)[number];

/** An alarm. `health` answers "not ok" only for a `grave` alarm. */
export interface Alarm {
  code: AlarmCode;
  grave: boolean;
  message: string;
  hint: string;
}

const MAX_NAMED = 4;
const STUCK_RECOVERY_MS = 60_000;
const SINK_LAG_MS = 60_000;

function alarm(code: AlarmCode, grave: boolean, message: string, hint: string): Alarm {
  return { code, grave, message, hint };
}

export function alarmsOf(overview: Overview, limits: { oldest?: number } = {}): Alarm[] {
  const { counts, processes, ready, byHand } = overview;
  const alarms: Alarm[] = [];
  if (overview.damaged !== null) {
    const message = `the database is damaged, and is only read: ${overview.damaged}`;
    alarms.push(alarm("DAMAGED", true, message, "holdfast doctor --recheck"));
  }
  for (const what of overview.lost) {
    alarms.push(alarm("COMMITS_MISSING", true, what, RECOVER_COMMAND));
  }
  const gone = processes.filter((process) => !mayBeAlive(process));
  const open = overview.queues.filter(({ paused }) => !paused);
  const noWorker = workersIn(overview).length === 0;
  const pending = open.reduce((total, queue) => total + queue.counts.pending, 0);
  // A script that claims by hand is not registered. Between its settle and its next claim, only the counts show it.
  const hasScript = open.some(({ name, counts: { pending } }) => pending > 0 && overview.settledByHand.includes(name));
  const isWorked = byHand > 0 || (gone.length === 0 && hasScript);
  // A counter of a limit that is due makes `ready` true, even if no job waits at it.
  if (ready && pending > 0 && noWorker && !isWorked) {
    const message = `${plural(pending, "job is", "jobs are")} pending and no worker runs`;
    // The jobs of a build whose orchestrator is dead wait until the build is resumed, whatever workers run.
    const orphan = overview.builds.find(isOrphaned);
    const needed = open.filter((queue) => queue.counts.pending > 0 && !hasQueue(orphan, queue.name));
    const hint = orphan !== undefined && needed.length === 0 ? `holdfast builds resume ${orphan.id}` : "holdfast work FILES…";
    alarms.push(alarm("NO_WORKER", true, message, hint));
  } else {
    alarms.push(...unworkedAlarms(overview.unworked, byHand > 0 || overview.settledByHand.length > 0));
  }
  const left = gone.reduce((total, { running }) => total + running, 0);
  if (left > 0) {
    const message = `${plural(left, "job was", "jobs were")} left running by a process that died`;
    // Any worker reclaims these jobs within a second, so the alarm is grave only without a worker.
    alarms.push(alarm("LEFT_BEHIND", noWorker, message, RECOVER_COMMAND));
  }
  alarms.push(...ofRecoveries(overview));
  if (counts.quarantined > 0) {
    const message = `${plural(counts.quarantined, "job is", "jobs are")} quarantined`;
    alarms.push(alarm("QUARANTINED", true, message, "holdfast quarantine list"));
  }
  const waited = overview.at - Math.min(...open.map(({ oldestAt }) => oldestAt ?? Number.POSITIVE_INFINITY));
  if (limits.oldest !== undefined && waited > limits.oldest) {
    const message = `the oldest job has waited for ${ageText(waited)}`;
    alarms.push(alarm("WAITING_LONG", true, message, "holdfast jobs list --state pending"));
  }
  for (const { name, behind, oldestAt, failures } of overview.sinks) {
    const lag = oldestAt === null ? 0 : overview.at - oldestAt;
    if (failures === 0 && lag < SINK_LAG_MS) continue;
    const message = `sink ${name} ${failures > 0 ? "fails" : "lags"}: ${plural(behind, "event")} behind, ${ageText(lag)}`;
    // A sink delays only itself, so this alarm is not grave.
    alarms.push(alarm("SINK_BEHIND", false, message, "holdfast events sinks"));
  }
  if (overview.wal !== null && isLong(overview.wal)) alarms.push(ofWal(overview.wal));
  alarms.push(...ofBuilds(overview.builds));
  if (counts.failed > 0) {
    const message = `${plural(counts.failed, "job")} failed`;
    alarms.push(alarm("FAILED", false, message, "holdfast jobs list --state failed"));
  }
  return alarms;
}

function hasQueue(build: OpenBuild | undefined, queue: string): boolean {
  if (build === undefined) return false;
  return queue === pipelineQueue(build.pipeline, null) || queue.startsWith(pipelineQueue(build.pipeline, ""));
}

function ofRecoveries({ at, crashes, pending }: Overview): Alarm[] {
  const alarms: Alarm[] = [];
  if (pending !== null) {
    const { jobs, locks } = countPlan(pending);
    const held = [plural(jobs, "job"), plural(pending.builds.length, "build"), plural(locks, "lock")].join(", ");
    const message = `a crash left something to recover, which waits for your approval: ${held}`;
    alarms.push(alarm("RECOVERY_PENDING", true, message, RECOVER_COMMAND));
  }
  for (const { state, errors, begunAt } of crashes.open) {
    if (state === "failed") {
      const more = errors.length === 1 ? "" : ` and ${errors.length - 1} more`;
      const message = `after a crash something was found to be wrong: ${errors[0] ?? ""}${more}`;
      alarms.push(alarm("RECOVERY_FAILED", true, message, "holdfast recover --last && holdfast recover --acknowledge"));
    } else if (at - begunAt > STUCK_RECOVERY_MS) {
      const message = `a recovery is under way for ${ageText(at - begunAt)}`;
      alarms.push(alarm("RECOVERY_STUCK", true, message, RECOVER_COMMAND));
    }
  }
  return alarms;
}

function ofWal({ bytes: size, readers }: WalView): Alarm {
  const who = readersText(readers);
  const message = `the write-ahead log has ${bytesText(size)}${who === null ? "" : `: ${who} reads an earlier state`}`;
  const hint = who === null ? "holdfast doctor" : "end that transaction, or that program";
  return alarm("WAL_LONG", size >= VERY_LONG_WAL_BYTES, message, hint);
}

/** Warns about builds. The alarms are not grave, because a process that is restarted continues its build. */
function ofBuilds(builds: readonly OpenBuild[]): Alarm[] {
  return builds.flatMap((build): Alarm[] => {
    const { id, pipeline, state, approved, spent, budget } = build;
    if (state === "CRASHED" || isOrphaned(build) || (state === "BUDGET_PAUSE" && approved)) {
      const message = `a build of ${pipeline} ${approved ? "was approved" : "was interrupted"} and waits for its next run`;
      return [alarm("BUILD_CRASHED", false, message, `holdfast builds resume ${id}`)];
    }
    if (state !== "BUDGET_PAUSE") return [];
    const message = `a build of ${pipeline} is paused at its budget: ${spentText(spent, budget)} spent`;
    return [alarm("BUILD_PAUSED", false, message, `holdfast builds show ${id}`)];
  });
}

/** Warns about jobs without a worker. Not grave: they may be claimed by hand, or wait for a version that is being rolled out. */
function unworkedAlarms(unworked: readonly Unworked[], hasScripts: boolean): Alarm[] {
  const shown = unworked.length > MAX_NAMED + 1 ? unworked.slice(0, MAX_NAMED) : unworked;
  const others = unworked.slice(shown.length);
  const messages = shown.map(({ name, version, pending }) => {
    return `no worker runs ${name}${version === 1 ? "" : ` v${version}`} (${numberText(pending)} pending)`;
  });
  if (others.length > 0) {
    const pending = others.reduce((total, one) => total + one.pending, 0);
    messages.push(`no worker runs ${others.length} other names (${numberText(pending)} pending)`);
  }
  const hint = hasScripts ? "claim, or holdfast work" : "holdfast work FILES…";
  return messages.map((message) => alarm("NAME_NOT_WORKED", false, message, hint));
}
