import type { Access } from "./access.ts";
import { Acts } from "./acts.ts";
import { Audit } from "./audit.ts";
import { AuditLog } from "./audit-log.ts";
import { Builds } from "./builds/builds.ts";
import { Cancel } from "./cancel.ts";
import { Claim } from "./claim.ts";
import { Healed } from "./healed.ts";
import { Healing } from "./healing.ts";
import { Intake } from "./intake.ts";
import { Leases } from "./leases.ts";
import { Locks } from "./locks.ts";
import { Look } from "./look.ts";
import { Notes } from "./notes.ts";
import { Numbering } from "./numbering.ts";
import type { OpenedPostgres } from "./open.ts";
import { Operate } from "./operate.ts";
import { Outbox } from "./outbox.ts";
import { Outlooks } from "./outlook.ts";
import { Processes } from "./processes.ts";
import { Queues } from "./queues.ts";
import { Recoveries } from "./recoveries.ts";
import { Schedules } from "./schedules.ts";
import type { ServerTime } from "./server-time.ts";
import { Settle } from "./settle.ts";
import { Sinks } from "./sinks.ts";
import { PostgresVitals } from "./vitals.ts";
import { Work } from "./work/work.ts";

/** The areas of SQL of one schema, and who of them needs whom. */
export class Areas {
  readonly intake: Intake;
  readonly claim: Claim;
  readonly settle: Settle;
  readonly leases: Leases;
  readonly notes: Notes;
  readonly healing: Healing;
  readonly locks: Locks;
  readonly schedules: Schedules;
  readonly look: Look;
  readonly outlooks: Outlooks;
  readonly operate: Operate;
  readonly queues: Queues;
  readonly outbox: Outbox;
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
    const audit = (this.audit = new Audit(s, actor));
    const acts = new Acts({ audit, events: intake.events });
    const healed = new Healed(s, intake.events);
    this.processes = new Processes(s, { ...opened, acts, time }, access);
    this.locks = new Locks(s, { acts, processes: this.processes, healed }, access);
    this.claim = new Claim(s, { catalog, settings, limits, events, locks: this.locks, random, read: reader.rows });
    this.settle = new Settle(s, { catalog, settings, limits, events, endings, enqueue, tally, sheets, random });
    this.leases = new Leases(s, this.settle);
    this.notes = new Notes(s, this.settle);
    this.healing = new Healing(s, { settle: this.settle, healed, audit }, access);
    this.schedules = new Schedules(s, { enqueue, acts }, access);
    this.look = new Look(s, catalog, access);
    const cancel = new Cancel(s, { ...intake, events });
    this.operate = new Operate(s, { ...intake, cancel, events, audit, acts });
    this.outlooks = new Outlooks(s, { rows: reader.rows, catalog });
    this.queues = new Queues({ settings, acts }, access);
    const numbering = new Numbering(s, reader);
    this.outbox = new Outbox(s, { numbering, databaseId }, access);
    this.sinks = new Sinks(s, { acts, numbering }, access);
    this.auditLog = new AuditLog({ audit, acts }, access);
    this.vitals = new PostgresVitals(s, access);
    this.builds = new Builds(s, { ...intake, audit }, access);
    this.work = new Work(s, { intake, settle: this.settle, cancel, notes: this.notes, reader }, access);
    const { settle, locks, processes } = this;
    const { led } = this.builds;
    this.recoveries = new Recoveries(s, { settle, events: intake.events, healed, locks, processes, audit, led }, access);
  }
}
