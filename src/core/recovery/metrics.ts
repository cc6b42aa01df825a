import { JOB_STATES, type JobState } from "../jobs/job.ts";
import { BUILD_STATES, type BuildState } from "../pipelines/build.ts";
import type { RecoveryCounts } from "./recovery-report.ts";

/** A database at one moment. Instants and durations in milliseconds; null: unreadable, or there is none. */
export interface Facts {
  at: number;
  database: { id: string; store: string; durability: string } | null;
  isDamaged: boolean;
  /** Crash recovery waits for an operator's approval. */
  isPending: boolean;
  alarms: Readonly<Record<string, number>> | null;
  isHealthy: boolean;
  queues: readonly QueueFacts[] | null;
  expiredLeases: number | null;
  stale: { entries: number; locks: number } | null;
  processes: Readonly<Record<string, number>> | null;
  workers: number | null;
  builds: readonly { pipeline: string; state: BuildState }[] | null;
  schedules: readonly { paused: boolean; nextAt: number }[] | null;
  sinks: readonly { name: string; kind: string; behind: number; oldestAt: number | null; failures: number }[] | null;
  /** All reclaimed leases and locks, crash or not. */
  healed: { leases: number; locks: number } | null;
  reports: (RecoveryCounts & { reports: number; open: number; failed: number; commitsMissing: number }) | null;
  lastReport: LastReport | null;
  size: { bytes: number; unused: number } | null;
  wal: { bytes: number; copied: number } | null;
  diskFree: number | null;
  backups: { count: number; newest: number | null } | null;
}

interface QueueFacts {
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
  samples: (facts: Facts) => Sample[];
}

const PREFIX = "holdfast";

export const METRICS: Readonly<Record<string, Metric>> = {
  up: gauge("Whether the database could be opened and read.", ({ database }) => flag(database !== null)),
  database_info: gauge("Always 1; what it is called.", ({ database }) => database && [{ labels: { ...database }, value: 1 }], [
    "id",
    "store",
    "durability",
  ]),
  healthy: gauge("Whether `holdfast health` says ok.", ({ isHealthy }) => flag(isHealthy)),
  damaged: gauge("Whether the database is damaged, and only read.", ({ isDamaged }) => flag(isDamaged)),
  recovery_pending: gauge("Whether what a crash has left waits for an operator's word.", ({ isPending }) => flag(isPending)),
  alarms: gauge("Alarms that stand, as `holdfast status` shows them.", ({ alarms }) => alarms && by("code", alarms), ["code"]),

  jobs: gauge(
    "Jobs that there are.",
    ({ queues }) =>
      queues?.flatMap(({ name, counts }) => JOB_STATES.map((state) => one(counts[state], { queue: name, state }))) ?? null,
    ["queue", "state"],
  ),
  jobs_ended_total: counter(
    "Jobs that have ended so far, also those that were forgotten since.",
    ({ queues }) => queues?.map(({ name, ended }) => one(ended, { queue: name })) ?? null,
    ["queue"],
  ),
  queue_paused: gauge(
    "Whether a queue hands out nothing.",
    ({ queues }) => queues?.map(({ name, paused }) => one(paused ? 1 : 0, { queue: name })) ?? null,
    ["queue"],
  ),
  queue_oldest_pending_seconds: gauge(
    "How long the oldest job has waited that could run now.",
    ({ queues, at }) =>
      queues?.map(({ name, oldestAt }) => one(oldestAt === undefined ? 0 : seconds(at - oldestAt), { queue: name })) ?? null,
    ["queue"],
  ),
  stale_entries: gauge("Running jobs that a recovery would take back now.", ({ stale }) => figure(stale?.entries)),
  stale_locks: gauge("Locks that a recovery would release now.", ({ stale }) => figure(stale?.locks)),
  leases_expired: gauge("Running jobs whose lease has expired and that were not reclaimed yet.", ({ expiredLeases }) =>
    figure(expiredLeases),
  ),
  leases_reclaimed_total: counter("Jobs that were ever taken back, after a crash or not.", ({ healed }) =>
    figure(healed?.leases),
  ),
  locks_cleaned_total: counter("Locks that were ever cleaned up.", ({ healed }) => figure(healed?.locks)),

  processes: gauge(
    "Processes that have the database open, or died with it open.",
    ({ processes }) => processes && by("life", processes),
    ["life"],
  ),
  workers: gauge("Processes among them that work, as far as can be told.", ({ workers }) => figure(workers)),
  build_state: gauge(
    "1 for the state that the newest build of a pipeline is in.",
    ({ builds }) =>
      builds?.flatMap(({ pipeline, state }) =>
        BUILD_STATES.map((each) => one(each === state ? 1 : 0, { pipeline, state: each })),
      ) ?? null,
    ["pipeline", "state"],
  ),
  schedules: gauge(
    "Schedules that there are.",
    ({ schedules }) => {
      if (schedules === null) return null;
      const paused = schedules.filter((schedule) => schedule.paused).length;
      return by("state", { active: schedules.length - paused, paused });
    },
    ["state"],
  ),
  schedules_overdue_seconds: gauge("By how much the most overdue tick is late; 0 where none is.", ({ schedules, at }) => {
    if (schedules === null) return null;
    return figure(Math.max(0, ...schedules.filter(({ paused }) => !paused).map(({ nextAt }) => seconds(at - nextAt))));
  }),
  sink_behind_events: gauge(
    "Events that a sink or subscriber has yet to get.",
    ({ sinks }) => sinks?.map(({ name, kind, behind }) => one(behind, { sink: name, kind })) ?? null,
    ["sink", "kind"],
  ),
  sink_lag_seconds: gauge(
    "How long ago the oldest of them happened.",
    ({ sinks, at }) =>
      sinks?.map(({ name, kind, oldestAt }) => one(oldestAt === null ? 0 : seconds(at - oldestAt), { sink: name, kind })) ?? null,
    ["sink", "kind"],
  ),
  sink_failures: gauge(
    "Deliveries that have failed in a row.",
    ({ sinks }) => sinks?.map(({ name, kind, failures }) => one(failures, { sink: name, kind })) ?? null,
    ["sink", "kind"],
  ),

  recoveries_total: counter("Crashes that were recovered from, each with its report.", ({ reports }) => figure(reports?.reports)),
  recoveries_failed: gauge("Reports with errors among those that are kept, acknowledged or not.", ({ reports }) =>
    figure(reports?.failed),
  ),
  recoveries_open: gauge("Reports with errors that no operator has acknowledged.", ({ reports }) => figure(reports?.open)),
  recovery_jobs_recovered_total: counter("Jobs taken back from crashed processes.", ({ reports }) =>
    figure(reports?.jobsRecovered),
  ),
  recovery_jobs_reset_to_pending_total: counter("Those of them that are tried again.", ({ reports }) =>
    figure(reports?.jobsResetToPending),
  ),
  recovery_jobs_quarantined_total: counter("Those of them that had crashed too often.", ({ reports }) =>
    figure(reports?.jobsQuarantined),
  ),
  recovery_builds_crashed_total: counter("Builds that lost their orchestrator.", ({ reports }) => figure(reports?.buildsCrashed)),
  recovery_locks_released_total: counter("Locks of crashed processes.", ({ reports }) => figure(reports?.locksReleased)),
  recovery_commits_missing_total: counter("Acknowledged commits that were not there any more.", ({ reports }) =>
    figure(reports?.commitsMissing),
  ),
  recovery_seconds_total: counter("Time that it took to give everything back.", ({ reports }) =>
    figure(reports && seconds(reports.recoveryDurationMs)),
  ),
  recovery_last_timestamp_seconds: gauge("When the last crash was recovered from.", ({ lastReport }) =>
    figure(lastReport && seconds(lastReport.recoveredAt)),
  ),
  recovery_last_successful: gauge("Whether nothing was found to be wrong then.", ({ lastReport }) =>
    figure(lastReport && (lastReport.wasSuccessful ? 1 : 0)),
  ),
  recovery_last_processes: gauge("Processes that died then.", ({ lastReport }) => figure(lastReport?.crashed.length)),
  recovery_last_jobs_recovered: gauge("Jobs taken back then.", ({ lastReport }) => figure(lastReport?.jobsRecovered)),
  recovery_last_jobs_reset_to_pending: gauge("Those of them that are tried again.", ({ lastReport }) =>
    figure(lastReport?.jobsResetToPending),
  ),
  recovery_last_jobs_quarantined: gauge("Those of them that had crashed too often.", ({ lastReport }) =>
    figure(lastReport?.jobsQuarantined),
  ),
  recovery_last_builds_crashed: gauge("Builds that lost their orchestrator then.", ({ lastReport }) =>
    figure(lastReport?.buildsCrashed),
  ),
  recovery_last_locks_released: gauge("Locks of the processes that died then.", ({ lastReport }) =>
    figure(lastReport?.locksReleased),
  ),
  recovery_last_commits_missing: gauge("Acknowledged commits that were not there then.", ({ lastReport }) =>
    figure(lastReport?.commitsMissing),
  ),
  recovery_last_seconds: gauge("How long it took to give everything back then.", ({ lastReport }) =>
    figure(lastReport && seconds(lastReport.recoveryDurationMs)),
  ),

  database_size_bytes: gauge("Size of the database.", ({ size }) => figure(size?.bytes)),
  database_unused_bytes: gauge("What of it is free for what comes; of a file.", ({ size }) => figure(size?.unused)),
  disk_free_bytes: gauge("What is left on the disk of the file.", ({ diskFree }) => figure(diskFree)),
  wal_size_bytes: gauge("The write-ahead log that is in use; of a file.", ({ wal }) => figure(wal?.bytes)),
  wal_copied_bytes: gauge("What of it is in the database, too.", ({ wal }) => figure(wal?.copied)),
  backups: gauge("Whole backups in their folder; of a file.", ({ backups }) => figure(backups?.count)),
  backup_newest_timestamp_seconds: gauge("When the newest of them was made.", ({ backups }) =>
    figure(backups && backups.newest && seconds(backups.newest)),
  ),
};

export function familiesOf(facts: Facts): Family[] {
  return Object.entries(METRICS).map(([name, { type, help, samples }]) => ({
    name: `${PREFIX}_${name}`,
    type,
    help,
    samples: samples(facts),
  }));
}

type Samples = (facts: Facts) => Sample[] | null;

function gauge(help: string, samples: Samples, labels: readonly string[] = []): Metric {
  return { type: "gauge", help, labels, samples: (facts) => samples(facts) ?? [] };
}

function counter(help: string, samples: Samples, labels: readonly string[] = []): Metric {
  return { ...gauge(help, samples, labels), type: "counter" };
}

function one(value: number, labels: Sample["labels"] = {}): Sample {
  return { labels, value };
}

/** An unknown value is left out: a zero would be a claim. */
function figure(value: number | null | undefined): Sample[] | null {
  return value === null || value === undefined ? null : [one(value)];
}

function flag(is: boolean): Sample[] {
  return [one(is ? 1 : 0)];
}

function by(label: string, values: Readonly<Record<string, number>>): Sample[] {
  return Object.entries(values).map(([name, value]) => one(value, { [label]: name }));
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
  return families.map(sayFamily).join("");
}

function sayFamily({ name, type, help, samples }: Family): string {
  if (samples.length === 0) return "";
  const lines = samples.map(({ labels, value }) => `${name}${sayLabels(labels)} ${sayValue(value)}\n`);
  return `# HELP ${name} ${escape(help)}\n# TYPE ${name} ${type}\n${lines.join("")}`;
}

function sayLabels(labels: Sample["labels"]): string {
  const said = Object.entries(labels).map(([name, value]) => `${name}="${escape(value.toWellFormed()).replaceAll('"', '\\"')}"`);
  return said.length === 0 ? "" : `{${said.join(",")}}`;
}

/** Escapes line breaks in users' queue names, which would end a sample. */
function escape(text: string): string {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

function sayValue(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return "+Inf";
  return value === Number.NEGATIVE_INFINITY ? "-Inf" : String(value);
}
