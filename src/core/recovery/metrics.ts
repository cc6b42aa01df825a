import { addMinutes, BUCKET_BOUNDS_MS, noMinute, type QueueMinute } from "../jobs/minutes.ts";
import { JOB_STATES, type JobState } from "../jobs/job.ts";
import { BUILD_STATES, type BuildState } from "../pipelines/build.ts";
import type { RecoveryCounts } from "./recovery-report.ts";

/** A database at one moment, with times in milliseconds. A part that is null or absent is unreadable, or does not exist. */
export interface MetricsSnapshot {
  at: number;
  isDamaged: boolean;
  isPending?: boolean;
  isHealthy?: boolean;
  database?: { id: string; store: string; durability: string };
  alarms?: Readonly<Record<string, number>> | null;
  minutes?: readonly QueueMinute[] | null;
  queues?: readonly QueueSnapshot[] | null;
  expiredLeases?: number | null;
  stale?: { entries: number; locks: number } | null;
  processes?: Readonly<Record<string, number>> | null;
  workers?: number | null;
  builds?: readonly { pipeline: string; state: BuildState }[] | null;
  schedules?: readonly { paused: boolean; nextAt: number }[] | null;
  sinks?: readonly { name: string; kind: string; behind: number; oldestAt: number | null; failures: number }[] | null;
  reclaimed?: { leases: number; locks: number } | null;
  reports?: (RecoveryCounts & { reports: number; open: number; failed: number; commitsMissing: number }) | null;
  lastReport?: LastReport | null;
  size?: { bytes: number; unused: number } | null;
  wal?: { bytes: number; copied: number } | null;
  diskFree?: number | null;
  backups?: { count: number; newest: number | null } | null;
}

interface QueueSnapshot {
  name: string;
  paused: boolean;
  counts: Readonly<Record<JobState, number>>;
  oldestAt?: number;
  ended: number;
}

interface LastReport extends Omit<RecoveryCounts, "jobsRunningBeforeCrash"> {
  recoveredAt: number;
  wasSuccessful: boolean;
  crashed: readonly unknown[];
  commitsMissing: number | null;
}

interface Metric {
  type: Family["type"];
  help: string;
  labels: readonly string[];
  samples: (facts: MetricsSnapshot) => Sample[];
}

const PREFIX = "holdfast";

const RECOVERY_COUNTS = {
  jobs_recovered: ["jobsRecovered", "Jobs reclaimed from crashed processes"],
  jobs_reset_to_pending: ["jobsResetToPending", "Reclaimed jobs that were set back to pending"],
  jobs_quarantined: ["jobsQuarantined", "Reclaimed jobs that were quarantined because they had crashed too often"],
  builds_crashed: ["buildsCrashed", "Builds whose orchestrator died"],
  locks_released: ["locksReleased", "Locks of crashed processes that were released"],
  commits_missing: ["commitsMissing", "Acknowledged commits that were missing after a crash"],
} as const;

export const METRICS: Readonly<Record<string, Metric>> = {
  up: gauge("1 when the database can be opened and read.", ({ database }) => database !== undefined),
  database_info: gauge(
    "Always 1. The labels identify the database.",
    ({ database }) => database && [{ labels: { ...database }, value: 1 }],
    ["id", "store", "durability"],
  ),
  healthy: gauge("1 when `holdfast health` reports ok.", ({ isHealthy = false }) => isHealthy),
  damaged: gauge("1 when the database is damaged and read-only.", ({ isDamaged }) => isDamaged),
  recovery_pending: gauge(
    "1 when a manual recovery is waiting for `holdfast recover --apply`.",
    ({ isPending = false }) => isPending,
  ),
  alarms: gauge("Open alarms, as in `holdfast status`.", ({ alarms }) => alarms && samplesBy("code", alarms), ["code"]),

  jobs: gauge(
    "Jobs in the database.",
    ({ queues }) =>
      queues?.flatMap(({ name, counts }) => JOB_STATES.map((state) => sample(counts[state], { queue: name, state }))),
    ["queue", "state"],
  ),
  jobs_ended_total: {
    ...perQueue("Jobs that have ended, including jobs that were removed since.", ({ ended }) => ended),
    type: "counter",
  },
  job_wait_seconds: histogram(
    "Time from when a job could start, after its delay and the jobs before it, to its first start, by queue.",
    (one) => [one.waits, one.waitMs],
  ),
  job_run_seconds: histogram("Time that attempts ran, by queue.", (one) => [one.runs, one.runMs]),
  queue_paused: perQueue("1 when the queue is paused.", ({ paused }) => (paused ? 1 : 0)),
  queue_oldest_pending_seconds: perQueue("Age of the oldest pending job that is ready to run.", ({ oldestAt }, at) =>
    oldestAt === undefined ? 0 : seconds(at - oldestAt),
  ),
  stale_entries: gauge("Running jobs that a recovery would reclaim now.", ({ stale }) => stale?.entries),
  stale_locks: gauge("Locks that a recovery would release now.", ({ stale }) => stale?.locks),
  leases_expired: gauge(
    "Running jobs whose lease has expired and that are not reclaimed yet.",
    ({ expiredLeases }) => expiredLeases,
  ),
  leases_reclaimed_total: counter("Jobs reclaimed, after a crash or an expired lease.", ({ reclaimed }) => reclaimed?.leases),
  locks_cleaned_total: counter("Stale locks released.", ({ reclaimed }) => reclaimed?.locks),

  processes: gauge("Registered processes, alive or dead.", ({ processes }) => processes && samplesBy("life", processes), [
    "life",
  ]),
  workers: gauge("Registered processes that run a worker and are alive.", ({ workers }) => workers),
  build_state: gauge(
    "1 for the state of the pipeline's newest build.",
    ({ builds }) =>
      builds?.flatMap(({ pipeline, state }) =>
        BUILD_STATES.map((each) => sample(each === state ? 1 : 0, { pipeline, state: each })),
      ),
    ["pipeline", "state"],
  ),
  schedules: gauge(
    "Schedules.",
    ({ schedules }) => {
      if (!schedules) return null;
      const paused = schedules.filter((schedule) => schedule.paused).length;
      return samplesBy("state", { active: schedules.length - paused, paused });
    },
    ["state"],
  ),
  schedules_overdue_seconds: gauge("Delay of the most overdue tick; 0 when none is overdue.", ({ schedules, at }) => {
    if (!schedules) return null;
    return Math.max(0, ...schedules.filter(({ paused }) => !paused).map(({ nextAt }) => (at - nextAt) / 1_000));
  }),
  sink_behind_events: perSink("Events not delivered yet.", ({ behind }) => behind),
  sink_lag_seconds: perSink(
    "Age of the oldest event that is not delivered yet.",
    ({ oldestAt }, at) => oldestAt && seconds(at - oldestAt),
  ),
  sink_failures: perSink("Consecutive failed deliveries.", ({ failures }) => failures),

  recoveries_total: counter("Recoveries after a crash. Each has a report.", ({ reports }) => reports?.reports),
  recoveries_failed: gauge("Stored recovery reports with errors, acknowledged or not.", ({ reports }) => reports?.failed),
  recoveries_open: gauge(
    "Stored recovery reports with errors that no operator has acknowledged.",
    ({ reports }) => reports?.open,
  ),
  ...recoveryCounts("total"),
  recovery_seconds_total: counter("Time spent in recoveries.", ({ reports }) => seconds(reports?.recoveryDurationMs)),
  recovery_last_timestamp_seconds: gauge("Time of the last recovery.", ({ lastReport }) => seconds(lastReport?.recoveredAt)),
  recovery_last_successful: gauge("1 when the last recovery found no error.", ({ lastReport }) => lastReport?.wasSuccessful),
  recovery_last_processes: gauge("Dead processes in the last recovery.", ({ lastReport }) => lastReport?.crashed.length),
  ...recoveryCounts("last"),
  recovery_last_seconds: gauge("Duration of the last recovery.", ({ lastReport }) => seconds(lastReport?.recoveryDurationMs)),

  database_size_bytes: gauge("Size of the database.", ({ size }) => size?.bytes),
  database_unused_bytes: gauge("Free space inside the database file. SQLite only.", ({ size }) => size?.unused),
  disk_free_bytes: gauge("Free space on the disk of the database file. SQLite only.", ({ diskFree }) => diskFree),
  wal_size_bytes: gauge("Size of the write-ahead log. SQLite only.", ({ wal }) => wal?.bytes),
  wal_copied_bytes: gauge("Part of the write-ahead log that is checkpointed.", ({ wal }) => wal?.copied),
  backups: gauge("Complete backups in the backup folder. SQLite only.", ({ backups }) => backups?.count),
  backup_newest_timestamp_seconds: gauge("Time of the newest backup.", ({ backups }) => seconds(backups?.newest)),
};

export function familiesOf(snapshot: MetricsSnapshot): Family[] {
  const facts = { ...snapshot, ...capQueues(snapshot) };
  return Object.entries(METRICS).map(([name, { type, help, samples }]) => ({
    name: `${PREFIX}_${name}`,
    type,
    help,
    samples: samples(facts),
  }));
}

/** Further queues share one label, because each label costs Prometheus a series for ever. */
const MAX_QUEUES = 200;
const REST = "(other)";

function capQueues({ queues, minutes }: MetricsSnapshot): Pick<MetricsSnapshot, "queues" | "minutes"> {
  if (!queues || queues.length <= MAX_QUEUES) return {};
  const byEnded = queues.toSorted((a, b) => b.ended - a.ended);
  const kept = byEnded.slice(0, MAX_QUEUES);
  const names = new Set(kept.map(({ name }) => name));
  const rest: QueueMinute = { queue: REST, minute: 0, ...noMinute() };
  for (const one of minutes ?? []) if (!names.has(one.queue)) addMinutes(rest, one);
  return {
    queues: [...kept, sumQueues(byEnded.slice(MAX_QUEUES))],
    minutes: minutes ? [...minutes.filter(({ queue }) => names.has(queue)), rest] : null,
  };
}

function sumQueues(queues: readonly QueueSnapshot[]): QueueSnapshot {
  const counts = Object.fromEntries(
    JOB_STATES.map((state) => [state, queues.reduce((sum, one) => sum + one.counts[state], 0)]),
  ) as QueueSnapshot["counts"];
  const oldest = queues.flatMap(({ oldestAt }) => oldestAt ?? []);
  return {
    name: REST,
    paused: false,
    counts,
    ended: queues.reduce((sum, { ended }) => sum + ended, 0),
    ...(oldest.length === 0 ? {} : { oldestAt: oldest.reduce((a, b) => Math.min(a, b)) }),
  };
}

/** What a metric reads. An unknown value (null or undefined) is left out, because a zero would be a claim. */
type Reading = Sample[] | number | boolean | null | undefined;

function gauge(help: string, read: (snapshot: MetricsSnapshot) => Reading, labels: readonly string[] = []): Metric {
  return { type: "gauge", help, labels, samples: (snapshot) => toSamples(read(snapshot)) };
}

function counter(...given: Parameters<typeof gauge>): Metric {
  return { ...gauge(...given), type: "counter" };
}

function recoveryCounts(of: "total" | "last"): Record<string, Metric> {
  const counts = Object.entries(RECOVERY_COUNTS).map(([name, [count, help]]): [string, Metric] =>
    of === "total"
      ? [`recovery_${name}_total`, counter(`${help}.`, ({ reports }) => reports?.[count])]
      : [`recovery_last_${name}`, gauge(`${help}, in the last recovery.`, ({ lastReport }) => lastReport?.[count])],
  );
  return Object.fromEntries(counts);
}

function toSamples(reading: Reading): Sample[] {
  if (reading === null || reading === undefined) return [];
  return typeof reading === "object" ? reading : [sample(Number(reading))];
}

function perQueue(help: string, read: (queue: QueueSnapshot, at: number) => number | null): Metric {
  const samples = ({ queues, at }: MetricsSnapshot) =>
    queues && queues.map((queue) => sample(read(queue, at) ?? 0, { queue: queue.name }));
  return gauge(help, samples, ["queue"]);
}

function histogram(help: string, read: (queue: QueueMinute) => [buckets: readonly number[], sumMs: number]): Metric {
  const samples = ({ minutes }: MetricsSnapshot) =>
    (minutes ?? []).flatMap((one) => {
      const [buckets, sumMs] = read(one);
      let below = 0;
      const of = (suffix: string, value: number, labels: Sample["labels"] = {}): Sample => ({
        value,
        suffix,
        labels: { queue: one.queue, ...labels },
      });
      const counted = buckets.map((n, i) => {
        const bound = BUCKET_BOUNDS_MS[i];
        return of("_bucket", (below += n), { le: bound === undefined ? "+Inf" : String(bound / 1_000) });
      });
      return counted.concat(of("_sum", sumMs / 1_000), of("_count", below));
    });
  return { type: "histogram", help, labels: ["queue", "le"], samples };
}

function perSink(help: string, read: (sink: NonNullable<MetricsSnapshot["sinks"]>[number], at: number) => number | null): Metric {
  const samples = ({ sinks, at }: MetricsSnapshot) =>
    sinks && sinks.map((sink) => sample(read(sink, at) ?? 0, { sink: sink.name, kind: sink.kind }));
  return gauge(help, samples, ["sink", "kind"]);
}

function sample(value: number, labels: Sample["labels"] = {}): Sample {
  return { labels, value };
}

function samplesBy(label: string, values: Readonly<Record<string, number>>): Sample[] {
  return Object.entries(values).map(([name, value]) => sample(value, { [label]: name }));
}

function seconds(millis: number | null | undefined): number | null {
  return millis === null || millis === undefined ? null : Math.max(0, millis) / 1_000;
}

/** The samples of one name. A counter never falls within one database. */
export interface Family {
  name: string;
  type: "gauge" | "counter" | "histogram";
  help: string;
  samples: readonly Sample[];
}

interface Sample {
  labels: Readonly<Record<string, string>>;
  value: number;
  suffix?: string;
}

export function exposition(families: readonly Family[]): string {
  return families.map(familyText).join("");
}

function familyText({ name, type, help, samples }: Family): string {
  if (samples.length === 0) return "";
  const lines = samples.map(({ labels, value, suffix = "" }) => `${name}${suffix}${labelsText(labels)} ${valueText(value)}\n`);
  return `# HELP ${name} ${escape(help)}\n# TYPE ${name} ${type}\n${lines.join("")}`;
}

function labelsText(labels: Sample["labels"]): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escape(value.toWellFormed()).replaceAll('"', '\\"')}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}

/** Escapes line breaks in users' queue names, which would end a sample. */
function escape(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

function valueText(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return "+Inf";
  return value === Number.NEGATIVE_INFINITY ? "-Inf" : String(value);
}
