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
import { Claim, ClaimedLanes } from "./jobs/claim.ts";
import { EnqueueParts } from "./jobs/enqueue.ts";
import { eventNumbers } from "./jobs/events.ts";
import { ClaimLocks } from "./jobs/limits.ts";
import { operateDatabase } from "./jobs/operate.ts";
import { Leases, Settle } from "./jobs/settle.ts";
import type { Damage } from "./maintenance/damage/damage.ts";
import { walSize } from "./maintenance/wal.ts";
import type { OpenedSqlite } from "./open.ts";
import { Processes } from "./processes.ts";
import { Queries } from "../sql/queries.ts";
import { QUERY_DIALECT } from "./queries.ts";
import { AUDIT_GUARDS, DIALECT, scriptAccess, type Statements, statementsOn, type StoreAccess } from "./scripts.ts";
import { UserTransactions, OwnTransaction } from "./user-transaction.ts";
import { workHooks } from "./work.ts";

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

export class StoreParts {
  readonly statements: Statements;
  readonly enqueueParts: EnqueueParts;
  readonly own: OwnTransaction;
  readonly userTransactions: UserTransactions;
  readonly claim: Claim;
  readonly lanes: ClaimedLanes;
  readonly settle: Settle;
  readonly leases: Leases;
  readonly notes: Notes;
  readonly queries: Queries;
  readonly operate: Operate;
  readonly locks: Locks;
  readonly processes: Processes;
  readonly schedules: Schedules;
  readonly queues: Queues;
  readonly events: EventLog;
  readonly audit: Audit;
  readonly auditLog: AuditLog;
  readonly builds: Builds;
  readonly work: Work;
  readonly recoveries: Recoveries;

  constructor(opened: OpenedSqlite & { alive: Alive | null }, parts: Parts) {
    const { db, databaseId, durability } = opened;
    const { path, driver, random, damage, access } = parts;
    this.enqueueParts = new EnqueueParts(db, { canDeclare: true, artifacts: new ArtifactCheck(parts.hooks) });
    const { settings, events, enqueue } = this.enqueueParts;
    this.own = new OwnTransaction(db, this.enqueueParts, path);
    this.userTransactions = new UserTransactions({ path, driver, durability, now: access.now });
    const statements = (this.statements = statementsOn(db));
    const scripts = scriptAccess(statements, access);
    const audit = (this.audit = new Audit(DIALECT, { actor: parts.actor ?? null, events }));
    this.queues = new Queues(DIALECT, { settings, audit }, scripts);
    const recoveryLog = new RecoveryLog(DIALECT, events);
    const attempts = new Attempts(DIALECT);
    this.notes = new Notes(DIALECT, { items: this.enqueueParts.batches.items, attempts }, scripts);
    const { alive, token } = opened;
    this.processes = new Processes(
      db,
      { audit, driver, alive, token, beWitness: parts.beWitness, onRegistered: () => damage.recordCleared() },
      access,
    );
    this.locks = new Locks(DIALECT, { audit, processes: this.processes, recoveryLog }, scripts);
    const numbers = eventNumbers(scripts);
    this.events = new EventLog(DIALECT, { numbers, databaseId, audit }, scripts);
    this.schedules = new Schedules(DIALECT, { enqueue, audit }, scripts);
    this.lanes = new ClaimedLanes(db);
    const shared = { ...this.enqueueParts, attempts, locks: new ClaimLocks(db), lanes: this.lanes, random };
    this.claim = new Claim(db, shared);
    const database = operateDatabase(db, this.enqueueParts);
    const cancel = new Cancel(DIALECT, { attempts, database });
    this.settle = new Settle(db, { ...shared, cancel });
    this.leases = new Leases(db, this.settle);
    this.queries = new Queries(DIALECT, QUERY_DIALECT, { lanes: this.enqueueParts.catalog, attempts }, scripts);
    this.operate = new Operate(DIALECT, { ...this.enqueueParts, cancel, audit, database }, scripts);
    const { settle, leases, locks, processes } = this;
    this.auditLog = new AuditLog({ audit, guards: AUDIT_GUARDS, keptHeads: () => damage.auditHeads() }, scripts);
    this.builds = new Builds(DIALECT, { settings, events, enqueue, audit, recoveryLog }, scripts);
    const hooks = workHooks(db, { enqueueParts: this.enqueueParts, cancel, notes: this.notes, access });
    this.work = new Work(DIALECT, { batches: this.enqueueParts.batches, hooks }, scripts);
    const file: FileFacts = {
      logAtOpening: () => damage.logAtOpening ?? { bytes: 0, frames: 0 },
      logSize: () => walSize(path),
      commitsMissing: () => damage.commitsMissing(),
      reported: (ids) => damage.reported(ids),
    };
    const { builds } = this;
    const recovered = { settle, leases, events, recoveryLog, locks, processes, audit, builds, file };
    this.recoveries = new Recoveries(DIALECT, recovered, scripts);
  }
}
