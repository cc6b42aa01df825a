import type { Access } from "./transactions/access.ts";
import { Audit, AuditLog } from "../sql/audit.ts";
import { Builds } from "../sql/builds/builds.ts";
import { EventLog } from "../sql/event-log.ts";
import { Locks } from "../sql/locks.ts";
import { Queues } from "../sql/queues.ts";
import { Reclaim } from "../sql/reclaim.ts";
import { Recoveries, type WriteAheadLog } from "../sql/recoveries.ts";
import { RecoveryLog } from "../sql/recovery-log.ts";
import { Schedules } from "../sql/schedules.ts";
import { Sinks } from "../sql/sinks.ts";
import { Work } from "../sql/work/work.ts";
import { auditGuards, BUILD_GUARD, EVENT_GUARD, RESULT_GUARD, SCHEDULE_GUARD, TARGET_GUARD } from "./guards.ts";
import { ClaimLocks } from "./claims/claim-locks.ts";
import { dialectOf } from "./dialect.ts";
import { Cancel } from "./settling/cancel.ts";
import { Claim } from "./claims/claim.ts";
import { Intake } from "./transactions/intake.ts";
import { Leases } from "./claims/leases.ts";
import { Look } from "./look.ts";
import { Notes } from "./settling/notes.ts";
import { Numbering } from "./news/numbering.ts";
import type { OpenedPostgres } from "./connection/open.ts";
import { Operate } from "./operate.ts";
import { Outlooks } from "./claims/outlook.ts";
import { Processes } from "./processes.ts";
import { scriptAccess, Statements } from "./scripts.ts";
import type { ServerTime } from "./connection/server-time.ts";
import { Settle } from "./settling/settle.ts";
import { PostgresVitals } from "./connection/vitals.ts";
import { WorkWriter } from "./work/work.ts";

/** The server looks after its own log. */
const NO_LOG: WriteAheadLog = {
  atOpening: () => ({ bytes: 0, frames: 0 }),
  size: () => 0,
  checkpoint: async () => {},
};

/** The areas of SQL of one schema, and who of them needs whom. */
export class Areas {
  readonly statements: Statements;
  readonly intake: Intake;
  readonly claim: Claim;
  readonly settle: Settle;
  readonly leases: Leases;
  readonly notes: Notes;
  readonly healing: Reclaim;
  readonly locks: Locks;
  readonly schedules: Schedules;
  readonly look: Look;
  readonly outlooks: Outlooks;
  readonly operate: Operate;
  readonly queues: Queues;
  readonly events: EventLog;
  readonly sinks: Sinks;
  readonly processes: Processes;
  readonly audit: Audit;
  readonly auditLog: AuditLog;
  readonly vitals: PostgresVitals;
  readonly builds: Builds;
  readonly work: Work;
  readonly recoveries: Recoveries;

  /** `actor`: who acts, for the audit; null: that is not said. */
  constructor(opened: OpenedPostgres, parts: { random: () => number; actor: string | null; time: ServerTime; access: Access }) {
    const { s, reader, databaseId } = opened;
    const { random, actor, time, access } = parts;
    const intake = (this.intake = new Intake(s, { speaks: true, random }));
    const { catalog, settings, limits, endings, enqueue, tally, sheets, jobEvents: events } = intake;
    const dialect = dialectOf(s);
    const statements = (this.statements = new Statements(s));
    const scripts = scriptAccess(statements, access, intake);
    const audit = (this.audit = new Audit(dialect, { actor, events: intake.events }));
    const recoveryLog = new RecoveryLog(dialect, intake.events, scripts);
    this.processes = new Processes(s, { ...opened, audit, time }, access);
    this.locks = new Locks(dialect, { audit, processes: this.processes, recoveryLog }, scripts);
    this.claim = new Claim(s, { catalog, settings, limits, events, locks: new ClaimLocks(s), random, read: reader.rows });
    this.settle = new Settle(s, { catalog, settings, limits, events, endings, enqueue, tally, sheets, random });
    this.leases = new Leases(s, this.settle);
    this.notes = new Notes(s, this.settle);
    this.healing = new Reclaim(dialect, { settle: this.settle, leases: this.leases, recoveryLog, audit }, scripts);
    this.schedules = new Schedules(dialect, { enqueue, audit, guard: SCHEDULE_GUARD }, scripts);
    this.look = new Look(s, catalog, access);
    const cancel = new Cancel(s, { ...intake, events });
    this.operate = new Operate(s, { ...intake, cancel, events, audit });
    this.outlooks = new Outlooks(s, { rows: reader.rows, catalog, random });
    this.queues = new Queues({ settings, audit }, scripts);
    const numbers = new Numbering(s, reader, access);
    this.events = new EventLog(dialect, { numbers, guard: EVENT_GUARD, databaseId }, scripts);
    this.sinks = new Sinks(dialect, { audit, numbers }, scripts);
    this.auditLog = new AuditLog({ audit, guards: auditGuards(s) }, scripts);
    this.vitals = new PostgresVitals(s, access);
    this.builds = new Builds(dialect, { settings, events: intake.events, enqueue, audit, guard: BUILD_GUARD }, scripts);
    const writes = new WorkWriter(s, { intake, settle: this.settle, cancel, notes: this.notes, reader }, access);
    const guards = { builds: BUILD_GUARD, targets: TARGET_GUARD, results: RESULT_GUARD };
    this.work = new Work(dialect, { writes, guards }, scripts);
    const { settle, locks, processes, builds } = this;
    const recovered = { settle, events: intake.events, recoveryLog, locks, processes, audit, builds, log: NO_LOG };
    this.recoveries = new Recoveries(dialect, recovered, scripts);
  }
}
