import { JOB_STATES, type JobState } from "../jobs/job.ts";
import { BUILD_STATES, type BuildState } from "../pipelines/build.ts";
import type { RecoveryCounts } from "./recovery-report.ts";

/** A database at one moment. Instants and durations in milliseconds; null: unreadable, or there is none. */
export interface MetricsSnapshot {
  at: number;
  database: { id: string; store: string; durability: string } | null;
  isDamaged: boolean;
  /** Crash recovery waits for an operator's approval. */
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
  /** All reclaimed leases and locks, crash or not. */
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
  up: gauge("Whether the database could be opened and read.", ({ database }) => booleanSample(database !== null)),
  database_info: gauge("Always 1; what it is called.", ({ database }) => database && [{ labels: { ...database }, value: 1 }], [
    "id",
    "store",
    "durability",
  ]),
  healthy: gauge("Whether `holdfast health` says ok.", ({ isHealthy }) => booleanSample(isHealthy)),
  damaged: gauge("Whether the database is damaged, and only read.", ({ isDamaged }) => booleanSample(isDamaged)),
  recovery_pending: gauge("Whether what a crash has left waits for an operator's word.", ({ isPending }) =>
    booleanSample(isPending),
  ),
  alarms: gauge("Alarms that stand, as `holdfast status` shows them.", ({ alarms }) => alarms && samplesBy("code", alarms), [
    "code",
  ]),

  jobs: gauge(
    "Jobs that there are.",
    ({ queues }) =>
      queues?.flatMap(({ name, counts }) => JOB_STATES.map((state) => sample(counts[state], { queue: name, state }))) ?? null,
    ["queue", "state"],
  ),
  jobs_ended_total: counter(
    "Jobs that have ended so far, also those that were forgotten since.",
    ({ queues }) => queues?.map(({ name, ended }) => sample(ended, { queue: name })) ?? null,
    ["queue"],
  ),
  queue_paused: gauge(
    "Whether a queue hands out nothing.",
    ({ queues }) => queues?.map(({ name, paused }) => sample(paused ? 1 : 0, { queue: name })) ?? null,
    ["queue"],
  ),
  queue_oldest_pending_seconds: gauge(
    "How long the oldest job has waited that could run now.",
    ({ queues, at }) =>
      queues?.map(({ name, oldestAt }) => sample(oldestAt === undefined ? 0 : seconds(at - oldestAt), { queue: name })) ?? null,
    ["queue"],
  ),
  stale_entries: gauge("Running jobs that a recovery would take back now.", ({ stale }) => valueSample(stale?.entries)),
  stale_locks: gauge("Locks that a recovery would release now.", ({ stale }) => valueSample(stale?.locks)),
  leases_expired: gauge("Running jobs whose lease has expired and that were not reclaimed yet.", ({ expiredLeases }) =>
    valueSample(expiredLeases),
  ),
  leases_reclaimed_total: counter("Jobs that were ever taken back, after a crash or not.", ({ reclaimed }) =>
    valueSample(reclaimed?.leases),
  ),
  locks_cleaned_total: counter("Locks that were ever cleaned up.", ({ reclaimed }) => valueSample(reclaimed?.locks)),

  processes: gauge(
    "Processes that have the database open, or died with it open.",
    ({ processes }) => processes && samplesBy("life", processes),
    ["life"],
  ),
  workers: gauge("Processes among them that work, as far as can be told.", ({ workers }) => valueSample(workers)),
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
    return valueSample(Math.max(0, ...schedules.filter(({ paused }) => !paused).map(({ nextAt }) => seconds(at - nextAt))));
  }),
  sink_behind_events: gauge(
    "Events that a sink or subscriber has yet to get.",
    ({ sinks }) => sinks?.map(({ name, kind, behind }) => sample(behind, { sink: name, kind })) ?? null,
    ["sink", "kind"],
  ),
  sink_lag_seconds: gauge(
    "How long ago the oldest of them happened.",
    ({ sinks, at }) =>
      sinks?.map(({ name, kind, oldestAt }) => sample(oldestAt === null ? 0 : seconds(at - oldestAt), { sink: name, kind })) ??
      null,
    ["sink", "kind"],
  ),
  sink_failures: gauge(
    "Deliveries that have failed in a row.",
    ({ sinks }) => sinks?.map(({ name, kind, failures }) => sample(failures, { sink: name, kind })) ?? null,
    ["sink", "kind"],
  ),

  recoveries_total: counter("Crashes that were recovered from, each with its report.", ({ reports }) =>
    valueSample(reports?.reports),
  ),
  recoveries_failed: gauge("Reports with errors among those that are kept, acknowledged or not.", ({ reports }) =>
    valueSample(reports?.failed),
  ),
  recoveries_open: gauge("Reports with errors that no operator has acknowledged.", ({ reports }) => valueSample(reports?.open)),
  recovery_jobs_recovered_total: counter("Jobs taken back from crashed processes.", ({ reports }) =>
    valueSample(reports?.jobsRecovered),
  ),
  recovery_jobs_reset_to_pending_total: counter("Those of them that are tried again.", ({ reports }) =>
    valueSample(reports?.jobsResetToPending),
  ),
  recovery_jobs_quarantined_total: counter("Those of them that had crashed too often.", ({ reports }) =>
    valueSample(reports?.jobsQuarantined),
  ),
  recovery_builds_crashed_total: counter("Builds that lost their orchestrator.", ({ reports }) =>
    valueSample(reports?.buildsCrashed),
  ),
  recovery_locks_released_total: counter("Locks of crashed processes.", ({ reports }) => valueSample(reports?.locksReleased)),
  recovery_commits_missing_total: counter("Acknowledged commits that were not there any more.", ({ reports }) =>
    valueSample(reports?.commitsMissing),
  ),
  recovery_seconds_total: counter("Time that it took to give everything back.", ({ reports }) =>
    valueSample(reports && seconds(reports.recoveryDurationMs)),
  ),
  recovery_last_timestamp_seconds: gauge("When the last crash was recovered from.", ({ lastReport }) =>
    valueSample(lastReport && seconds(lastReport.recoveredAt)),
  ),
  recovery_last_successful: gauge("Whether nothing was found to be wrong then.", ({ lastReport }) =>
    valueSample(lastReport && (lastReport.wasSuccessful ? 1 : 0)),
  ),
  recovery_last_processes: gauge("Processes that died then.", ({ lastReport }) => valueSample(lastReport?.crashed.length)),
  recovery_last_jobs_recovered: gauge("Jobs taken back then.", ({ lastReport }) => valueSample(lastReport?.jobsRecovered)),
  recovery_last_jobs_reset_to_pending: gauge("Those of them that are tried again.", ({ lastReport }) =>
    valueSample(lastReport?.jobsResetToPending),
  ),
  recovery_last_jobs_quarantined: gauge("Those of them that had crashed too often.", ({ lastReport }) =>
    valueSample(lastReport?.jobsQuarantined),
  ),
  recovery_last_builds_crashed: gauge("Builds that lost their orchestrator then.", ({ lastReport }) =>
    valueSample(lastReport?.buildsCrashed),
  ),
  recovery_last_locks_released: gauge("Locks of the processes that died then.", ({ lastReport }) =>
    valueSample(lastReport?.locksReleased),
  ),
  recovery_last_commits_missing: gauge("Acknowledged commits that were not there then.", ({ lastReport }) =>
    valueSample(lastReport?.commitsMissing),
  ),
  recovery_last_seconds: gauge("How long it took to give everything back then.", ({ lastReport }) =>
    valueSample(lastReport && seconds(lastReport.recoveryDurationMs)),
  ),

  database_size_bytes: gauge("Size of the database.", ({ size }) => valueSample(size?.bytes)),
  database_unused_bytes: gauge("What of it is free for what comes; of a file.", ({ size }) => valueSample(size?.unused)),
  disk_free_bytes: gauge("What is left on the disk of the file.", ({ diskFree }) => valueSample(diskFree)),
  wal_size_bytes: gauge("The write-ahead log that is in use; of a file.", ({ wal }) => valueSample(wal?.bytes)),
  wal_copied_bytes: gauge("What of it is in the database, too.", ({ wal }) => valueSample(wal?.copied)),
  backups: gauge("Whole backups in their folder; of a file.", ({ backups }) => valueSample(backups?.count)),
  backup_newest_timestamp_seconds: gauge("When the newest of them was made.", ({ backups }) =>
    valueSample(backups && backups.newest && seconds(backups.newest)),
  ),
};

export function familiesOf(facts: MetricsSnapshot): Family[] {
  return Object.entries(METRICS).map(([name, { type, help, samples }]) => ({
    name: `${PREFIX}_${name}`,
    type,
    help,
    samples: samples(facts),
  }));
}

type Samples = (facts: MetricsSnapshot) => Sample[] | null;

function gauge(help: string, samples: Samples, labels: readonly string[] = []): Metric {
  return { type: "gauge", help, labels, samples: (facts) => samples(facts) ?? [] };
}

function counter(help: string, samples: Samples, labels: readonly string[] = []): Metric {
  return { ...gauge(help, samples, labels), type: "counter" };
}

function sample(value: number, labels: Sample["labels"] = {}): Sample {
  return { labels, value };
}

/** An unknown value is left out: a zero would be a claim. */
function valueSample(value: number | null | undefined): Sample[] | null {
  return value === null || value === undefined ? null : [sample(value)];
}

function booleanSample(is: boolean): Sample[] {
  return [sample(is ? 1 : 0)];
}

function samplesBy(label: string, values: Readonly<Record<string, number>>): Sample[] {
  return Object.entries(values).map(([name, value]) => sample(value, { [label]: name }));
}

function seconds(millis: number): number {
  return Math.max(0, millis) / 1_000;
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
  const said = Object.entries(labels).map(([name, value]) => `${name}="${escape(value.toWellFormed()).replaceAll('"', '\\"')}"`);
  return said.length === 0 ? "" : `{${said.join(",")}}`;
}

/** Escapes line breaks in users' queue names, which would end a sample. */
function escape(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

function valueText(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return "+Inf";
  return value === Number.NEGATIVE_INFINITY ? "-Inf" : String(value);
}
