import { existsSync, statfsSync, statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { countOrphans } from "../artifacts/sweep.ts";
import { type Inspection, diagnose, type Diagnosis } from "../core/recovery/diagnosis.ts";
import { isProvenDead } from "../core/jobs/lease.ts";
import type { CrashRecoveryReport } from "../core/recovery/recovery-report.ts";
import { bootId } from "../engine/host.ts";
import { verifyAudit } from "../engine/maintenance/check.ts";
import { ifReadable } from "../engine/client.ts";
import type { Holdfast } from "../holdfast.ts";
import { backupsFolder, backupsIn } from "../store/backups.ts";
import type { StoreLocation } from "../store/open-store.ts";
import { reportOf } from "../store/recoveries.ts";
import { isLogDamaged } from "../store/sqlite/maintenance/damage/arrival.ts";
import { Findings } from "../store/sqlite/maintenance/damage/findings.ts";
import { networkFileSystem } from "../store/sqlite/open.ts";
import { schemaAt } from "../store/sqlite/migrate.ts";
import type { Store } from "../store/store.ts";
import type { Vitals } from "../store/maintenance.ts";

/** A younger artifact may belong to a running attempt whose result does not reference it yet. */
const MIN_ORPHAN_AGE_MS = 86_400_000;
const AUDIT_ENTRIES_READ = 500;
/** The clocks of two processes that write in turn may differ by this much. */
const MIN_STEP_BACK_MS = 1_000;

export interface Examination {
  seen: Inspection;
  lastReport: CrashRecoveryReport | null;
  storeVersion: string | null;
  databaseId: string | null;
  found: Diagnosis[];
}

export interface ExamineOptions {
  location: StoreLocation;
  /** Null if the database could not be opened, or if opening would change it. */
  hf: Holdfast | null;
  backups: { folder?: string; every?: number };
  now: number;
  /** Skips what reads the whole database: pages, artifacts and the audit chain. Known damage is still reported. */
  isBrief?: boolean;
}

export async function examine({ location, hf, backups, now, isBrief = false }: ExamineOptions): Promise<Examination> {
  const engine = hf?.engine ?? null;
  const store = engine?.store ?? null;
  const vitals = store && (await ifReadable(() => store.maintenance.diagnose()));
  const deep = isBrief ? null : store;
  const checked = deep && (await ifReadable(() => deep.damage.check("quick")));
  const folder = engine?.artifactFolder.path ?? null;
  const audit = deep && (await ifReadable(() => verifyAudit(deep)));
  const seen: Inspection = {
    now,
    disk: diskOf(location),
    file: fileOf(location),
    size: vitals?.size ?? null,
    schema: vitals?.schema ?? schemaOf(location),
    settings: vitals?.settings ?? [],
    wal: store && (await ifReadable(async () => (await store.maintenance.gauge({ readers: true })).wal)),
    processes: (store && (await ifReadable(() => processesOf(store)))) ?? [],
    locks: (store && (await ifReadable(() => store.locks.list()))) ?? [],
    stuck: vitals?.stuck ?? [],
    artifacts:
      checked === null || folder === null
        ? null
        : await countOrphans(folder, new Set(checked.artifacts), now - MIN_ORPHAN_AGE_MS),
    audit: audit && { entries: audit.entries, fault: audit.fault?.message ?? null },
    backups: backupsOf(location, store?.databaseId ?? null, backups),
    journal: vitals?.journal ?? null,
    clock: vitals &&
      store && { latest: vitals.latest, store: vitals.now, stepsBack: (await ifReadable(() => stepsBack(store))) ?? [] },
    reports: (store && (await ifReadable(() => store.recoveries.history({ limit: 20, which: "open" }))))?.reports ?? [],
    // Read after the check, which may have added findings.
    findings: location.kind === "sqlite" ? new Findings(location.path).all() : [],
    checked: checked?.findings ?? [],
    transactions: vitals?.transactions ?? [],
  };
  const [last] = (store && (await ifReadable(() => store.recoveries.history({ limit: 1 }))))?.reports ?? [];
  return {
    seen,
    lastReport: last === undefined ? null : reportOf(last),
    storeVersion: (vitals as Vitals | null)?.engine ?? null,
    databaseId: store?.databaseId ?? null,
    found: diagnose(seen),
  };
}

function fileOf(location: StoreLocation): Inspection["file"] {
  if (location.kind !== "sqlite" || process.platform === "win32") return null;
  const mode = statSync(location.path, { throwIfNoEntry: false })?.mode;
  return mode === undefined ? null : { path: location.path, mode };
}

async function processesOf(store: Store): Promise<Inspection["processes"]> {
  const { running } = await store.queries.overview();
  const { others } = await store.processes.probe(bootId());
  return others.map(({ process: { id, pid, host, program }, life }) => {
    return { pid, host, program, dead: isProvenDead(life), running: running.get(id) ?? 0 };
  });
}

/** Finds entries with an earlier time than the entry before. Entries are numbered in commit order, so a clock was set back. */
async function stepsBack({ audit }: Store): Promise<{ at: number; by: number }[]> {
  const entries = await audit.page({ after: 0, limit: AUDIT_ENTRIES_READ, last: true });
  return entries.flatMap(({ at }, i) => {
    const by = (entries[i - 1]?.at ?? at) - at;
    return by > MIN_STEP_BACK_MS ? [{ at, by }] : [];
  });
}

export function diskOf(location: StoreLocation): Inspection["disk"] {
  if (location.kind !== "sqlite" || location.path === ":memory:") return null;
  const folder = dirname(location.path);
  const { bavail, bsize } = statfsSync(folder);
  return { folder, network: networkFileSystem(folder), free: bavail * bsize };
}

export function backupsOf(
  location: StoreLocation,
  databaseId: string | null,
  { folder, every }: { folder?: string; every?: number },
): Inspection["backups"] {
  // Only the server's own tools know its backups.
  if (location.kind !== "sqlite" || location.path === ":memory:") return null;
  const where = resolve(folder ?? backupsFolder(location.path));
  const whole = backupsIn(where, databaseId).filter(({ findings }) => findings.length === 0);
  const newest = whole.length === 0 ? null : Math.max(...whole.map(({ takenAt }) => takenAt));
  return { folder: where, count: whole.length, newest, every: every ?? null };
}

export function schemaOf(location: StoreLocation): Inspection["schema"] {
  if (location.kind !== "sqlite" || !existsSync(location.path)) return null;
  return schemaAt(location.path, location.driver);
}

/** Whether opening would migrate the database. With a damaged log the schema may be newer than it looks: the answer is no. */
export async function needsMigration(location: StoreLocation): Promise<boolean> {
  const schema = schemaOf(location);
  if (location.kind !== "sqlite" || schema === null || schema.version === 0 || schema.version >= schema.known) return false;
  return !(await isLogDamaged(location.path, { driver: location.driver, identity: "", boot: bootId() }));
}
