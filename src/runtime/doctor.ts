import { statSync } from "node:fs";
import { countOrphans } from "../artifacts/sweep.ts";
import { type Circumstance, diagnose, type Diagnosis } from "../core/diagnosis.ts";
import type { CrashRecoveryReport } from "../core/recovery-report.ts";
import { isProven } from "../core/lease.ts";
import type { StoreLocation } from "../store/open-store.ts";
import { Findings } from "../store/sqlite/damage/findings.ts";
import { reportOf } from "../store/recoveries.ts";
import type { Store } from "../store/store.ts";
import type { Vitals } from "../store/vitals.ts";
import { verifyAudit } from "./audit.ts";
import { bootId } from "./boot.ts";
import type { Holdfast } from "./holdfast.ts";
import { readable } from "./readable.ts";
import { backupsOf, diskOf, schemaOf } from "./surroundings.ts";

/** What is stored and not referenced yet may belong to an attempt that is under way. */
const JUST_STORED = 86_400_000;
/** So many entries of the audit are looked at for a clock that went back. */
const ENTRIES = 500;
/** Two processes that write in turn may differ by that much, in milliseconds. */
const BACK = 1_000;

export interface Examination {
  seen: Circumstance;
  /** The newest report of a crash; null: there was none. */
  lastReport: CrashRecoveryReport | null;
  /** Name and version of the database, for example "SQLite 3.51.3". */
  storeVersion: string | null;
  databaseId: string | null;
  found: Diagnosis[];
}

export interface ExamineOptions {
  location: StoreLocation;
  /** Null if the database could not be opened, or opening would change it. */
  hf: Holdfast | null;
  backups: { folder?: string; every?: number };
  now: number;
}

/** Looks at everything that there is to see, and says what stands out. Nothing is changed. */
export async function examine({ location, hf, backups, now }: ExamineOptions): Promise<Examination> {
  const engine = hf?.engine ?? null;
  const store = engine?.store ?? null;
  const vitals = store && (await readable(() => store.vitals.look()));
  const checked = store && (await readable(() => store.damage.check("quick")));
  const folder = engine?.artifactFolder.path ?? null;
  const audit = store && (await readable(() => verifyAudit(store)));
  const seen: Circumstance = {
    now,
    disk: diskOf(location),
    file: fileOf(location),
    size: vitals?.size ?? null,
    schema: vitals?.schema ?? schemaOf(location),
    settings: vitals?.settings ?? [],
    wal: store && (await readable(() => store.vitals.wal({ readers: true }))),
    processes: (store && (await readable(() => processesOf(store)))) ?? [],
    locks: (store && (await readable(() => store.locks.all()))) ?? [],
    stuck: vitals?.stuck ?? [],
    artifacts:
      checked === null || folder === null ? null : await countOrphans(folder, new Set(checked.artifacts), now - JUST_STORED),
    audit: audit && { entries: audit.entries, fault: audit.fault?.message ?? null },
    backups: backupsOf(location, store?.databaseId ?? null, backups),
    journal: store && (await readable(() => store.backups.journalLag())),
    clock: vitals &&
      store && { latest: vitals.latest, store: vitals.now, stepsBack: (await readable(() => stepsBack(store))) ?? [] },
    reports: (store && (await readable(() => store.recoveries.reports({ limit: 20, which: "open" })))) ?? [],
    // The check may have added to them.
    findings: location.kind === "sqlite" ? new Findings(location.path).all() : [],
    checked: checked?.findings ?? [],
    transactions: vitals?.transactions ?? [],
  };
  const [last] = (store && (await readable(() => store.recoveries.reports({ limit: 1 })))) ?? [];
  return {
    seen,
    lastReport: last === undefined ? null : reportOf(last),
    storeVersion: (vitals as Vitals | null)?.engine ?? null,
    databaseId: store?.databaseId ?? null,
    found: diagnose(seen),
  };
}

function fileOf(location: StoreLocation): Circumstance["file"] {
  if (location.kind !== "sqlite" || process.platform === "win32") return null;
  const mode = statSync(location.path, { throwIfNoEntry: false })?.mode;
  return mode === undefined ? null : { path: location.path, mode };
}

async function processesOf(store: Store): Promise<Circumstance["processes"]> {
  const running = await store.processes.running();
  return (await store.processes.probe(bootId())).map(({ process: { id, pid, host, program }, life }) => {
    return { pid, host, program, dead: isProven(life), running: running.get(id) ?? 0 };
  });
}

/** Entries are numbered in the order of their commits: one with an earlier time than the one before it was written by an earlier clock. */
async function stepsBack({ audit }: Store): Promise<{ at: number; by: number }[]> {
  const entries = await audit.page({ after: 0, limit: ENTRIES, last: true });
  return entries.flatMap(({ at }, i) => {
    const by = (entries[i - 1]?.at ?? at) - at;
    return by > BACK ? [{ at, by }] : [];
  });
}
