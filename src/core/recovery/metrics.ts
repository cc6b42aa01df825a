import { JOB_STATES, type JobState } from "../jobs/job.ts";
import { BUILD_STATES, type BuildState } from "../pipelines/build.ts";
import type { RecoveryCounts } from "./recovery-report.ts";

/** A database at one moment. Instants and durations in milliseconds; null: unreadable, or there is none. */
export interface MetricsSnapshot {
  at: number;
  database: { id: string; store: string; durability: string } | null;
  isDamaged: boolean;
  isPending: boolean;
  alarms: Readonly<Record<string, number>> | null;
  isHealthy: boolean;
  queues: readonly QueueSnapshot[] | null;
  expiredLeases: number | null;
  stale: { entries: number; locks: number } | null;
  processes: Readonly<Record<string, number>> | null;
  workers: number | null;
  builds: readonly { pipeline: string; state: BuildState }[] | null;
  schedules: readonly { paused: boolean; nextAt: number }[] | null;
  sinks: readonly { name: string; kind: string; behind: number; oldestAt: number | null; failures: number }[] | null;
  reclaimed: { leases: number; locks: number } | null;
  reports: (RecoveryCounts & { reports: number; open: number; failed: number; commitsMissing: number }) | null;
  lastReport: LastReport | null;
  size: { bytes: number; unused: number } | null;
  wal: { bytes: number; copied: number } | null;
  diskFree: number | null;
  backups: { count: number; newest: number | null } | null;
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

export const METRICS: Readonly<Record<string, Metric>> = {
  up: gauge("Whether the database could be opened and read.", ({ database }) => database !== null),
  database_info: gauge("Always 1; what it is called.", ({ database }) => database && [{ labels: { ...database }, value: 1 }], [
    "id",
    "store",
    "durability",
  ]),
  healthy: gauge("Whether `holdfast health` says ok.", ({ isHealthy }) => isHealthy),
  damaged: gauge("Whether the database is damaged, and only read.", ({ isDamaged }) => isDamaged),
  recovery_pending: gauge("Whether what a crash has left waits for an operator's word.", ({ isPending }) => isPending),
  alarms: gauge("Alarms that stand, as `holdfast status` shows them.", ({ alarms }) => alarms && samplesBy("code", alarms), [
    "code",
  ]),

  jobs: gauge(
    "Jobs that there are.",
    ({ queues }) =>
      queues?.flatMap(({ name, counts }) => JOB_STATES.map((state) => sample(counts[state], { queue: name, state }))) ?? null,
    ["queue", "state"],
  ),
  jobs_ended_total: {
    ...perQueue("Jobs that have ended so far, also those that were forgotten since.", ({ ended }) => ended),
    type: "counter",
  },
  queue_paused: perQueue("Whether a queue hands out nothing.", ({ paused }) => (paused ? 1 : 0)),
  queue_oldest_pending_seconds: perQueue("How long the oldest job has waited that could run now.", ({ oldestAt }, at) =>
    oldestAt === undefined ? 0 : seconds(at - oldestAt),
  ),
  stale_entries: gauge("Running jobs that a recovery would take back now.", ({ stale }) => stale?.entries),
  stale_locks: gauge("Locks that a recovery would release now.", ({ stale }) => stale?.locks),
  leases_expired: gauge(
    "Running jobs whose lease has expired and that were not reclaimed yet.",
    ({ expiredLeases }) => expiredLeases,
  ),
  leases_reclaimed_total: counter("Jobs that were ever taken back, after a crash or not.", ({ reclaimed }) => reclaimed?.leases),
  locks_cleaned_total: counter("Locks that were ever cleaned up.", ({ reclaimed }) => reclaimed?.locks),

  processes: gauge(
    "Processes that have the database open, or died with it open.",
    ({ processes }) => processes && samplesBy("life", processes),
    ["life"],
  ),
  workers: gauge("Processes among them that work, as far as can be told.", ({ workers }) => workers),
  build_state: gauge(
    "1 for the state that the newest build of a pipeline is in.",
    ({ builds }) =>
      builds?.flatMap(({ pipeline, state }) =>
        BUILD_STATES.map((each) => sample(each === state ? 1 : 0, { pipeline, state: each })),
      ) ?? null,
    ["pipeline", "state"],
  ),
  schedules: gauge(
    "Schedules that there are.",
    ({ schedules }) => {
      if (schedules === null) return null;
      const paused = schedules.filter((schedule) => schedule.paused).length;
      return samplesBy("state", { active: schedules.length - paused, paused });
    },
    ["state"],
  ),
  schedules_overdue_seconds: gauge("By how much the most overdue tick is late; 0 where none is.", ({ schedules, at }) => {
    if (schedules === null) return null;
    return Math.max(0, ...schedules.filter(({ paused }) => !paused).map(({ nextAt }) => (at - nextAt) / 1_000));
  }),
  sink_behind_events: perSink("Events that a sink or subscriber has yet to get.", ({ behind }) => behind),
  sink_lag_seconds: perSink(
    "How long ago the oldest of them happened.",
    ({ oldestAt }, at) => oldestAt && seconds(at - oldestAt),
  ),
  sink_failures: perSink("Deliveries that have failed in a row.", ({ failures }) => failures),

  recoveries_total: counter("Crashes that were recovered from, each with its report.", ({ reports }) => reports?.reports),
  recoveries_failed: gauge(
    "Reports with errors among those that are kept, acknowledged or not.",
    ({ reports }) => reports?.failed,
  ),
  recoveries_open: gauge("Reports with errors that no operator has acknowledged.", ({ reports }) => reports?.open),
  recovery_jobs_recovered_total: counter("Jobs taken back from crashed processes.", ({ reports }) => reports?.jobsRecovered),
  recovery_jobs_reset_to_pending_total: counter(
    "Those of them that are tried again.",
    ({ reports }) => reports?.jobsResetToPending,
  ),
  recovery_jobs_quarantined_total: counter(
    "Those of them that had crashed too often.",
    ({ reports }) => reports?.jobsQuarantined,
  ),
  recovery_builds_crashed_total: counter("Builds that lost their orchestrator.", ({ reports }) => reports?.buildsCrashed),
  recovery_locks_released_total: counter("Locks of crashed processes.", ({ reports }) => reports?.locksReleased),
  recovery_commits_missing_total: counter(
    "Acknowledged commits that were not there any more.",
    ({ reports }) => reports?.commitsMissing,
  ),
  recovery_seconds_total: counter("Time that it took to give everything back.", ({ reports }) =>
    seconds(reports?.recoveryDurationMs),
  ),
  recovery_last_timestamp_seconds: gauge("When the last crash was recovered from.", ({ lastReport }) =>
    seconds(lastReport?.recoveredAt),
  ),
  recovery_last_successful: gauge("Whether nothing was found to be wrong then.", ({ lastReport }) => lastReport?.wasSuccessful),
  recovery_last_processes: gauge("Processes that died then.", ({ lastReport }) => lastReport?.crashed.length),
  recovery_last_jobs_recovered: gauge("Jobs taken back then.", ({ lastReport }) => lastReport?.jobsRecovered),
  recovery_last_jobs_reset_to_pending: gauge(
    "Those of them that are tried again.",
    ({ lastReport }) => lastReport?.jobsResetToPending,
  ),
  recovery_last_jobs_quarantined: gauge(
    "Those of them that had crashed too often.",
    ({ lastReport }) => lastReport?.jobsQuarantined,
  ),
  recovery_last_builds_crashed: gauge("Builds that lost their orchestrator then.", ({ lastReport }) => lastReport?.buildsCrashed),
  recovery_last_locks_released: gauge("Locks of the processes that died then.", ({ lastReport }) => lastReport?.locksReleased),
  recovery_last_commits_missing: gauge(
    "Acknowledged commits that were not there then.",
    ({ lastReport }) => lastReport?.commitsMissing,
  ),
  recovery_last_seconds: gauge("How long it took to give everything back then.", ({ lastReport }) =>
    seconds(lastReport?.recoveryDurationMs),
  ),

  database_size_bytes: gauge("Size of the database.", ({ size }) => size?.bytes),
  database_unused_bytes: gauge("What of it is free for what comes; of a file.", ({ size }) => size?.unused),
  disk_free_bytes: gauge("What is left on the disk of the file.", ({ diskFree }) => diskFree),
  wal_size_bytes: gauge("The write-ahead log that is in use; of a file.", ({ wal }) => wal?.bytes),
  wal_copied_bytes: gauge("What of it is in the database, too.", ({ wal }) => wal?.copied),
  backups: gauge("Whole backups in their folder; of a file.", ({ backups }) => backups?.count),
  backup_newest_timestamp_seconds: gauge("When the newest of them was made.", ({ backups }) => seconds(backups?.newest)),
};

export function familiesOf(facts: MetricsSnapshot): Family[] {
  return Object.entries(METRICS).map(([name, { type, help, samples }]) => ({
    name: `${PREFIX}_${name}`,
    type,
    help,
    samples: samples(facts),
  }));
}

/** Null and undefined: unknown. An unknown value is left out: a zero would be a claim. */
type Reading = Sample[] | number | boolean | null | undefined;

function gauge(help: string, read: (snapshot: MetricsSnapshot) => Reading, labels: readonly string[] = []): Metric {
  return { type: "gauge", help, labels, samples: (snapshot) => toSamples(read(snapshot)) };
}

function counter(...given: Parameters<typeof gauge>): Metric {
  return { ...gauge(...given), type: "counter" };
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

/** Samples of one name. A counter never falls within one database. */
export interface Family {
  name: string;
  type: "gauge" | "counter";
  help: string;
  samples: readonly Sample[];
}

interface Sample {
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** Prometheus' text format. A family without samples is left out. */
export function exposition(families: readonly Family[]): string {
  return families.map(familyText).join("");
}

function familyText({ name, type, help, samples }: Family): string {
  if (samples.length === 0) return "";
  const lines = samples.map(({ labels, value }) => `${name}${labelsText(labels)} ${valueText(value)}\n`);
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
