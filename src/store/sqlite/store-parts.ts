import type { Alive } from "../alive.ts";
import { Attempts } from "../sql/attempts.ts";
import { Audit, AuditLog } from "../sql/audit.ts";
import { Builds } from "../sql/builds/builds.ts";
import { EventLog } from "../sql/events.ts";
import { Locks } from "../sql/locks.ts";
import { Cancel, Operate } from "../sql/operate.ts";
import { Notes } from "../sql/notes.ts";
import { Queues, Schedules } from "../sql/queues.ts";
import { type FileFacts, Recoveries } from "../sql/recoveries.ts";
import { RecoveryLog } from "../sql/reports.ts";
import { ArtifactCheck } from "../sql/work/work-batch.ts";
import type { StoreHooks } from "../store.ts";
import { Work } from "../sql/work/work.ts";
import type { DriverName } from "./driver.ts";
import { Claim, ClaimedLanes, ClaimLocks } from "./jobs/claim.ts";
import { EnqueueParts } from "./jobs/enqueue.ts";
import { eventNumbers } from "./jobs/events.ts";
import { operateDatabase, workHooks } from "./script-hooks.ts";
import { Leases, Settle } from "./jobs/settle.ts";
import type { Damage } from "./maintenance/damage/damage.ts";
import { walSize } from "./maintenance/wal.ts";
import type { OpenedSqlite } from "./open.ts";
import { Processes } from "./processes.ts";
import { Queries } from "../sql/queries.ts";
import { QUERY_DIALECT } from "./queries.ts";
import { AUDIT_GUARDS, DIALECT, scriptAccess, statementsOn, type StoreAccess } from "./scripts.ts";
import { UserTransactions, OwnTransaction } from "./user-transaction.ts";

interface Parts {
  path: string;
  driver: DriverName;
  random: () => number;
  actor?: string;
  damage: Damage;
  beWitness: (token: string) => void;
  access: StoreAccess;
  hooks: StoreHooks;
}

export type StoreParts = ReturnType<typeof storeParts>;

export function storeParts(opened: OpenedSqlite & { alive: Alive | null }, parts: Parts) {
  const { db, databaseId, durability, alive, token } = opened;
  const { path, driver, random, damage, access, beWitness } = parts;
  const enqueueParts = new EnqueueParts(db, { canDeclare: true, artifacts: new ArtifactCheck(parts.hooks) });
  const { settings, events, enqueue, batches, catalog } = enqueueParts;
  const statements = statementsOn(db);
  const scripts = scriptAccess(statements, access);
  const audit = new Audit(DIALECT, { actor: parts.actor ?? null, events });
  const recoveryLog = new RecoveryLog(DIALECT, events);
  const attempts = new Attempts(DIALECT);
  const notes = new Notes(DIALECT, { items: batches.items, attempts }, scripts);
  const onRegistered = () => damage.recordCleared();
  const processes = new Processes(db, { audit, driver, alive, token, beWitness, onRegistered }, access);
  const locks = new Locks(DIALECT, { audit, processes, recoveryLog }, scripts);
  const lanes = new ClaimedLanes(db);
  const shared = { ...enqueueParts, attempts, locks: new ClaimLocks(db), lanes, random };
  const database = operateDatabase(db, enqueueParts);
  const cancel = new Cancel(DIALECT, { attempts, database });
  const settle = new Settle(db, { ...shared, cancel });
  const leases = new Leases(db, settle);
  const builds = new Builds(DIALECT, { settings, events, enqueue, audit, recoveryLog }, scripts);
  const hooks = workHooks(db, { enqueueParts, cancel, notes, access });
  const file: FileFacts = {
    logAtOpening: () => damage.logAtOpening ?? { bytes: 0, frames: 0 },
    logSize: () => walSize(path),
    commitsMissing: () => damage.commitsMissing(),
    reported: (ids) => damage.reported(ids),
  };
  const recovered = { settle, leases, events, recoveryLog, locks, processes, audit, builds, file };
  return {
    statements,
    enqueueParts,
    lanes,
    settle,
    leases,
    notes,
    locks,
    processes,
    audit,
    builds,
    own: new OwnTransaction(db, enqueueParts, path),
    userTransactions: new UserTransactions({ path, driver, durability, now: access.now }),
    claim: new Claim(db, shared),
    operate: new Operate(DIALECT, { ...enqueueParts, cancel, audit, database }, scripts),
    schedules: new Schedules(DIALECT, { enqueue, audit }, scripts),
    queries: new Queries(DIALECT, QUERY_DIALECT, { lanes: catalog, attempts }, scripts),
    queues: new Queues(DIALECT, { settings, audit }, scripts),
    events: new EventLog(DIALECT, { numbers: eventNumbers(scripts), databaseId, audit }, scripts),
    auditLog: new AuditLog({ audit, guards: AUDIT_GUARDS, keptHeads: () => damage.auditHeads() }, scripts),
    work: new Work(DIALECT, { batches, hooks }, scripts),
    recoveries: new Recoveries(DIALECT, recovered, scripts),
  };
}
