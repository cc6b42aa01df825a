import type { MetricsSnapshot } from "../core/recovery/metrics.ts";
import { ifReadable } from "../engine/client.ts";
import type { Holdfast } from "../holdfast.ts";
import type { Life } from "../store/processes.ts";
import { backupsOf, diskOf } from "./doctor.ts";
import { ALARM_CODES, alarmsOf, overviewOf, workersIn } from "./overview.ts";

const LIVES: readonly Life[] = ["alive", "dead", "rebooted", "unknown"];

/** Reads figures for metrics. The cost grows only with unfinished work. A damaged database yields what can be read. */
export async function metricsSnapshot(
  hf: Holdfast,
  { backups = {} }: { backups?: { folder?: string } } = {},
): Promise<MetricsSnapshot> {
  const { store, location, clock, isReadOnly } = hf.engine;
  // Empty queues have finished jobs, too.
  const counted = store.queries.overview();
  const [overview, queues, minutes, builds, schedules, sinks, stats, history, gauged] = await Promise.all([
    // An incomplete overview gives no figures, because a missing queue would count as zero.
    overviewOf(hf, counted).then((seen) => (seen.unreadable.length > 0 ? null : seen)),
    ifReadable(async () => (await counted).queues),
    ifReadable(() => store.queues.minutes("totals")),
    ifReadable(async () => (await store.builds.list({ newest: true })).items),
    ifReadable(() => store.schedules.list()),
    ifReadable(() => store.events.sinks()),
    ifReadable(() => hf.recovery.stats()),
    ifReadable(() => store.recoveries.history({ limit: 1 })),
    ifReadable(() => store.maintenance.gauge()),
  ]);
  const alarms = overview && alarmsOf(overview);
  return {
    at: clock.now(),
    database: { id: store.databaseId, store: location.kind, durability: store.durability },
    // A read may have found damage just now.
    isDamaged: overview === null || store.damage.damaged !== null,
    isPending: isReadOnly,
    isHealthy: alarms !== null && !alarms.some(({ grave }) => grave),
    alarms: alarms && countBy(ALARM_CODES, alarms, ({ code }) => code),
    queues,
    minutes,
    expiredLeases: gauged && gauged.expiredLeases,
    processes: overview && countBy(LIVES, overview.processes, ({ life }) => life),
    workers: overview && workersIn(overview).length,
    builds,
    schedules,
    sinks,
    reclaimed: stats && { leases: stats.entriesReclaimed, locks: stats.locksCleaned },
    stale: stats && { entries: stats.staleEntries, locks: stats.staleLocks },
    reports: history && history.totals.reports,
    lastReport: history?.reports[0] ?? null,
    size: gauged && gauged.size,
    wal: gauged && gauged.wal,
    diskFree: diskOf(location)?.free ?? null,
    backups: backupsOf(location, store.databaseId, backups),
  };
}

function countBy<Key extends string, One>(
  keys: readonly Key[],
  all: readonly One[],
  keyOf: (one: One) => Key,
): Record<Key, number> {
  const counts = Object.fromEntries(keys.map((key) => [key, 0])) as Record<Key, number>;
  for (const one of all) counts[keyOf(one)]++;
  return counts;
}
