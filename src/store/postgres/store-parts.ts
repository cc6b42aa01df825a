import { Attempts } from "../sql/attempts.ts";
import { Audit, type AuditGuards, AuditLog } from "../sql/audit.ts";
import { OrchestratorBeats } from "../sql/builds/build-rows.ts";
import { Builds } from "../sql/builds/builds.ts";
import { Dependents } from "../sql/dependents.ts";
import { EventLog } from "../sql/events.ts";
import { Locks } from "../sql/locks.ts";
import { Cancel, Operate } from "../sql/operate.ts";
import { Retention } from "../sql/retention.ts";
import { Notes } from "../sql/notes.ts";
import { Queues, Schedules } from "../sql/queues.ts";
import { type FileFacts, Recoveries } from "../sql/recoveries.ts";
import { RecoveryLog } from "../sql/reports.ts";
import { Work } from "../sql/work/work.ts";
import { ArtifactCheck } from "../sql/work/work-batch.ts";
import { WorkBatches } from "../sql/work/work-batches.ts";
import { OrderedLock, QueueLocks } from "./transactions/mutexes.ts";
import { Catalog, Settings } from "./catalog.ts";
import { ClaimLocks, Outlooks } from "./claims/claim-statements.ts";
import { Claim } from "./claims/claim.ts";
import { Leases } from "./claims/leases.ts";
import type { OpenedPostgres } from "./connection/open.ts";
import type { ServerTime } from "./connection/server-state.ts";
import { dialectOf, scriptAccess, Statements } from "./scripts.ts";
import { Enqueue } from "./enqueue.ts";
import { Limits } from "./limits.ts";
import { queryDialect } from "./queries.ts";
import { Queries } from "../sql/queries.ts";
import { EventNumbering, Events, JobEvents } from "./events.ts";
import {
  cancelDatabase,
  dependentsDatabase,
  operateDatabase,
  retentionDatabase,
  workDatabase,
  workHooks,
} from "./script-hooks.ts";
import { Processes } from "./processes.ts";
import { GUARDS } from "./schema.ts";
import { SettleEffects, Tally } from "./settle/settle-effects.ts";
import { Settle } from "./settle/settle.ts";
import type { Access, Tx } from "./transactions/transaction.ts";
import type { StoreHooks } from "../store.ts";
import { IS_THREAD_CODE } from "../thread-code.ts";

const NO_FILE: FileFacts = {
  logAtOpening: () => ({ bytes: 0, frames: 0 }),
  logSize: () => 0,
  commitsMissing: () => null,
  reported: () => {},
};

export function storeParts(
  opened: OpenedPostgres,
  {
    random,
    actor,
    time,
    access,
    hooks: storeHooks,
  }: { random: () => number; actor: string | null; time: ServerTime; access: Access; hooks: StoreHooks },
) {
  const { s, reader, databaseId } = opened;
  const jobParts = new JobParts(s, { canDeclare: true, random, artifacts: new ArtifactCheck(storeHooks) });
  const { catalog, settings, enqueue, batches, outbox, attempts } = jobParts;
  const dialect = dialectOf(s);
  const statements = new Statements(s);
  const scripts = scriptAccess(statements, access, jobParts);
  const audit = new Audit(dialect, { actor, events: outbox });
  const recoveryLog = new RecoveryLog(dialect, outbox);
  const processes = new Processes(s, { ...opened, audit, time }, access);
  const { cancel, retention } = jobParts;
  const settle = new Settle(s, { ...jobParts, random });
  const leases = new Leases(s, scripts);
  const builds = IS_THREAD_CODE
    ? (new OrchestratorBeats(dialect, scripts) as Builds)
    : new Builds(dialect, { settings, events: outbox, enqueue, audit, recoveryLog }, scripts);
  const mainThreadParts = () => {
    const notes = new Notes(dialect, { items: batches.items, attempts }, scripts);
    const locks = new Locks(dialect, { audit, processes, recoveryLog }, scripts);
    const numbers = new EventNumbering(s, reader, access);
    const hooks = workHooks(s, { jobParts, notes, reader, access });
    const recovered = { settle, leases, events: outbox, recoveryLog, locks, processes, audit, builds, file: NO_FILE };
    return {
      notes,
      locks,
      claim: new Claim(s, { ...jobParts, locks: new ClaimLocks(s), random, read: reader.rows }),
      operate: new Operate(dialect, { cancel, retention, audit, batches, database: operateDatabase(s, jobParts) }, scripts),
      outlooks: new Outlooks(s, { rows: reader.rows, catalog, random }),
      schedules: new Schedules(dialect, { enqueue, audit }, scripts),
      queries: new Queries(dialect, queryDialect(s), { lanes: catalog.over(access.read), attempts }, scripts),
      queues: new Queues(dialect, { settings, audit }, scripts),
      events: new EventLog(dialect, { numbers, databaseId, audit }, scripts),
      auditLog: new AuditLog({ audit, guards: auditGuards(s), keptHeads: () => [] }, scripts),
      work: new Work(dialect, { batches, hooks }, scripts),
      recoveries: new Recoveries(dialect, recovered, scripts),
    };
  };
  return {
    statements,
    jobParts,
    settle,
    leases,
    processes,
    audit,
    builds,
    // The keeper thread needs none of these, and its published code leaves out their classes.
    ...(IS_THREAD_CODE ? ({} as ReturnType<typeof mainThreadParts>) : mainThreadParts()),
  };
}

export type StoreParts = ReturnType<typeof storeParts>;

/** Finds triggers that are missing or disabled. A trigger can be disabled without being dropped. */
function auditGuards(s: string): AuditGuards {
  return {
    sql: `
      select name from unnest(cast(:guards as text[])) with ordinality as guard (name, place)
      where not exists (
        select 1 from pg_trigger
        where tgrelid in (cast('${s}.audit' as regclass), cast('${s}.audit_head' as regclass))
          and tgname = name and tgenabled in ('O', 'A') and not tgisinternal)
      order by place`,
    params: { guards: GUARDS },
  };
}

export class JobParts {
  readonly catalog: Catalog;
  readonly settings: Settings;
  readonly tally: Tally;
  readonly outbox: Events;
  readonly dependents: Dependents;
  readonly events: JobEvents;
  readonly limits: Limits;
  readonly retention: Retention;
  readonly effects: SettleEffects;
  readonly enqueue: Enqueue;
  readonly cancel: Cancel;
  readonly buildsLock: OrderedLock;
  readonly batches: WorkBatches;
  readonly attempts: Attempts;
  readonly #counter: OrderedLock;

  constructor(s: string, options: { canDeclare: boolean; random: () => number; knows?: Catalog; artifacts?: ArtifactCheck }) {
    const counter = (this.#counter = new OrderedLock(s, "counter"));
    const catalog = (this.catalog = options.knows?.copy(s, counter) ?? new Catalog(s, counter));
    const locks = new QueueLocks(s);
    this.buildsLock = new OrderedLock(s, "builds");
    const settings = (this.settings = new Settings(s, { ...options, locks, counter }));
    const tally = (this.tally = new Tally(s));
    const outbox = (this.outbox = new Events(s));
    const events = (this.events = new JobEvents(s, { catalog, settings, outbox }));
    const limits = (this.limits = new Limits(s, { catalog, settings, locks }));
    const retention = (this.retention = new Retention(dialectOf(s), retentionDatabase(s, { catalog, settings })));
    const database = workDatabase(s, { catalog, limits });
    const batches = (this.batches = new WorkBatches(dialectOf(s), { ...options, settings, database }));
    this.attempts = new Attempts(dialectOf(s));
    const waiting = dependentsDatabase({ catalog, limits, events });
    const dependents = (this.dependents = new Dependents(dialectOf(s), { batches, database: waiting }));
    const effects = (this.effects = new SettleEffects({ tally, retention, dependents }));
    const parts = { catalog, settings, limits, dependents, effects, events, batches };
    this.cancel = new Cancel(dialectOf(s), { attempts: this.attempts, database: cancelDatabase(s, parts) });
    this.enqueue = new Enqueue(s, { ...parts, defersLimits: !options.canDeclare });
  }

  readonly first = (tx: Tx, queues: readonly string[]): Promise<void> | null => {
    const locked = this.limits.locks.takeWanted(tx, queues);
    const builds = this.buildsLock.takeWanted(tx);
    const counter = this.#counter.takeWanted(tx);
    if (builds !== null) tx.isLate = true;
    return locked === null && builds === null && counter === null ? null : Promise.all([locked, builds, counter]).then(() => {});
  };

  /** Forgets outdated lanes and settings, after the transaction that relied on them was undone. */
  forget(): void {
    this.#counter.conflicted();
    this.catalog.forgetCount();
    this.settings.forget();
  }

  /** Forgets everything, because the database has reverted to an earlier state. */
  forgetAll(): void {
    this.catalog.forget();
    this.settings.forget();
    this.limits.forget();
  }
}
