import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { countAttempt, noMinute, type QueueMinute } from "../../src/core/jobs/minutes.ts";
import { exposition, type MetricsSnapshot, familiesOf, METRICS } from "../../src/core/recovery/metrics.ts";
import { NO_COUNTS } from "../../src/core/recovery/recovery-report.ts";
import { parseExposition } from "./exposition-parser.ts";

const hasPromtool = spawnSync("promtool", ["--version"]).status === 0;
const COUNTS = { waiting: 1, pending: 2, running: 3, succeeded: 4, failed: 5, cancelled: 6, quarantined: 7 };
const REPORT = { ...NO_COUNTS, jobsRecovered: 4, recoveryDurationMs: 1_500 };

const MINUTE: QueueMinute = { queue: "mail", minute: 0, ...noMinute() };
for (const runMs of [3, 20, 1e9]) countAttempt(MINUTE, { end: "succeeded", waitMs: runMs === 3 ? 200 : null, runMs });

/** Something of everything. */
const FACTS: MetricsSnapshot = {
  at: 1_000_000,
  database: { id: "7f", store: "sqlite", durability: "power" },
  isDamaged: false,
  isPending: false,
  isHealthy: true,
  alarms: { FAILED: 1, DAMAGED: 0 },
  queues: [
    { name: "mail", paused: true, counts: COUNTS, oldestAt: 998_750, ended: 90 },
    { name: 'the "odd"\\one\n', paused: false, counts: COUNTS, ended: 0 },
  ],
  minutes: [MINUTE],
  expiredLeases: 2,
  stale: { entries: 3, locks: 4 },
  processes: { alive: 3, dead: 1 },
  workers: 2,
  builds: [{ pipeline: "docs", state: "FAILED" }],
  schedules: [
    { paused: false, nextAt: 996_000 },
    { paused: false, nextAt: 1_200_000 },
    { paused: true, nextAt: 0 },
  ],
  sinks: [{ name: "hook", kind: "webhook", behind: 8, oldestAt: 940_000, failures: 3 }],
  reclaimed: { leases: 11, locks: 12 },
  reports: { ...REPORT, reports: 3, open: 1, failed: 2, commitsMissing: 2 },
  lastReport: { ...REPORT, recoveredAt: 900_000, wasSuccessful: false, crashed: [{}, {}], commitsMissing: 2 },
  size: { bytes: 8_192, unused: 4_096 },
  wal: { bytes: 100, copied: 50 },
  diskFree: 1e12,
  backups: { count: 2, newest: 500_000 },
};

test("a snapshot is written as metrics, each figure where it belongs", () => {
  const families = parse(FACTS);
  const value = (name: string, labels: Record<string, string> = {}) => {
    const found = families.get(`holdfast_${name}`)?.samples.filter((sample) => {
      return Object.entries(labels).every(([label, value]) => sample.labels[label] === value);
    });
    assert.equal(found?.length, 1, `${name} ${JSON.stringify(labels)}`);
    return found[0]?.value;
  };
  assert.equal(value("up"), 1);
  assert.equal(value("alarms", { code: "FAILED" }), 1);
  assert.equal(value("jobs", { queue: "mail", state: "quarantined" }), 7);
  assert.equal(value("jobs", { queue: 'the "odd"\\one\n', state: "pending" }), 2);
  assert.equal(value("jobs_ended_total", { queue: "mail" }), 90);
  assert.equal(value("queue_paused", { queue: "mail" }), 1);
  assert.equal(value("queue_oldest_pending_seconds", { queue: "mail" }), 1.25);
  assert.equal(value("queue_oldest_pending_seconds", { queue: 'the "odd"\\one\n' }), 0, "nothing waits there");
  assert.equal(value("build_state", { pipeline: "docs", state: "FAILED" }), 1);
  assert.equal(value("build_state", { pipeline: "docs", state: "ACTIVE" }), 0);
  assert.equal(value("schedules", { state: "active" }), 2);
  assert.equal(value("schedules", { state: "paused" }), 1);
  assert.equal(value("schedules_overdue_seconds"), 4, "and the paused one is not late");
  assert.equal(value("sink_lag_seconds", { sink: "hook" }), 60);
  assert.equal(value("recoveries_total"), 3);
  assert.equal(value("recovery_seconds_total"), 1.5);
  assert.equal(value("recovery_last_timestamp_seconds"), 900);
  assert.equal(value("recovery_last_successful"), 0);
  assert.equal(value("recovery_last_processes"), 2);
  assert.equal(value("recovery_last_commits_missing"), 2);
  assert.equal(value("backup_newest_timestamp_seconds"), 500);
});

test("every family has samples and the documented labels when everything is known", () => {
  const families = parse(FACTS);
  assert.deepEqual(
    [...families.keys()],
    Object.keys(METRICS).map((name) => `holdfast_${name}`),
  );
  for (const [name, { type, help, labels }] of Object.entries(METRICS)) {
    const family = families.get(`holdfast_${name}`);
    assert.deepEqual([family?.type, family?.help], [type, help]);
    for (const sample of family?.samples ?? []) {
      const own = sample.suffix === "_sum" || sample.suffix === "_count" ? labels.filter((label) => label !== "le") : labels;
      assert.deepEqual(Object.keys(sample.labels), own, name);
    }
  }
});

test("a histogram counts values below each bound, and ends with all of them", () => {
  const { samples = [] } = parse(FACTS).get("holdfast_job_run_seconds") ?? {};
  const buckets = samples.filter(({ suffix }) => suffix === "_bucket");
  assert.deepEqual(
    buckets.slice(0, 2).map(({ labels, value }) => [labels["le"], value]),
    [
      ["0.005", 1],
      ["0.025", 2],
    ],
  );
  assert.deepEqual([buckets.at(-1)?.labels["le"], buckets.at(-1)?.value], ["+Inf", 3]);
  assert.equal(samples.find(({ suffix }) => suffix === "_count")?.value, 3);
  assert.equal(samples.find(({ suffix }) => suffix === "_sum")?.value, (1e9 + 23) / 1_000);
});

test("promtool reports no problem", { skip: hasPromtool ? false : "there is no promtool here" }, () => {
  const { status, stderr, stdout } = spawnSync("promtool", ["check", "metrics"], {
    input: exposition(familiesOf(FACTS)),
    encoding: "utf8",
  });
  assert.deepEqual([status, stderr, stdout], [0, "", ""]);
});

test("queues beyond the label cap share one label, and the sum is unchanged", () => {
  const queues = Array.from({ length: 1_000 }, (_, i) => ({ name: `q${i}`, paused: false, counts: COUNTS, ended: i }));
  const minutes = queues.map(({ name }) => ({ ...MINUTE, queue: name }));
  const families = parse({ ...FACTS, queues, minutes });
  const pending = families.get("holdfast_jobs")?.samples.filter(({ labels }) => labels["state"] === "pending") ?? [];
  assert.equal(pending.length, 201);
  assert.equal(
    pending.reduce((sum, { value }) => sum + value, 0),
    1_000 * COUNTS.pending,
  );
  const counts = families.get("holdfast_job_run_seconds")?.samples.filter(({ suffix }) => suffix === "_count") ?? [];
  assert.deepEqual(
    [counts.length, counts.reduce((sum, { value }) => sum + value, 0), counts.at(-1)?.labels["queue"]],
    [201, 3_000, "(other)"],
  );
});

test("names follow Prometheus: only counters end in _total, and units are base units", () => {
  for (const [name, { type }] of Object.entries(METRICS)) {
    assert.match(name, /^[a-z]+(_[a-z]+)*$/);
    assert.equal(name.endsWith("_total"), type === "counter", name);
    assert.doesNotMatch(name, /_(ms|millis|minutes|hours|days|kb|mb|kilobytes|megabytes)(_|$)/);
  }
});

test("a database that cannot be opened has only `up`", () => {
  const families = parse({ at: 0, isDamaged: true });
  const said = [...families].map(([name, { samples }]) => [name, samples[0]?.value]);
  assert.deepEqual(said, [
    ["holdfast_up", 0],
    ["holdfast_healthy", 0],
    ["holdfast_damaged", 1],
    ["holdfast_recovery_pending", 0],
  ]);
});

test("unknown figures are left out, and instants in the future are not negative", () => {
  const { lastReport } = FACTS;
  const families = parse({
    ...FACTS,
    at: 0,
    lastReport: lastReport ? { ...lastReport, commitsMissing: null } : null,
    backups: { count: 0, newest: null },
    wal: null,
  });
  for (const name of ["recovery_last_commits_missing", "backup_newest_timestamp_seconds", "wal_size_bytes"]) {
    assert.equal(families.has(`holdfast_${name}`), false, name);
  }
  for (const [name, { samples }] of families)
    assert.ok(
      samples.every(({ value }) => value >= 0),
      name,
    );
});

function parse(facts: MetricsSnapshot): ReturnType<typeof parseExposition> {
  return parseExposition(exposition(familiesOf(facts)));
}
