import { join } from "node:path";
import type { Clock } from "../../core/text/duration.ts";
import type { HoldfastError } from "../../core/text/errors.ts";
import type { JobKey } from "../../core/text/ids.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import {
  type Change,
  type ChangeOptions,
  type Claimed,
  type ClaimRequest,
  type ClaimSource,
  type Durability,
  type Enqueued,
  type Expired,
  type LeaseState,
  type NewJob,
  type ClaimOutlook,
  type ProgressReport,
  type Pruned,
  type PruneFilter,
  type Settlement,
  type Store,
  type StoreHooks,
  newHooks,
} from "../store.ts";
import type { Operation } from "../points.ts";
import { IS_THREAD_CODE } from "../thread-code.ts";
import { Alive, aliveFolder } from "../alive.ts";
import { Queries } from "../sql/queries.ts";
import { Processes } from "./processes.ts";
import { Leases, Settle } from "./jobs/settle.ts";
import { operateDatabase, workHooks } from "./script-hooks.ts";
import { eventNumbers } from "./jobs/events.ts";
import { EnqueueParts } from "./jobs/enqueue.ts";
import { Claim, ClaimedLanes, ClaimLocks } from "./jobs/claim.ts";
import { Work } from "../sql/work/work.ts";
import { ArtifactCheck } from "../sql/work/work-batch.ts";
import { RecoveryLog } from "../sql/reports.ts";
import { type FileFacts, Recoveries } from "../sql/recoveries.ts";
import { Queues, Schedules } from "../sql/queues.ts";
import { Notes } from "../sql/notes.ts";
import { Cancel, Operate } from "../sql/operate.ts";
import { Locks } from "../sql/locks.ts";
import { EventLog } from "../sql/events.ts";
import { OrchestratorBeats } from "../sql/builds/build-rows.ts";
import { Builds } from "../sql/builds/builds.ts";
import { Audit, AuditLog } from "../sql/audit.ts";
import { Attempts } from "../sql/attempts.ts";
import type { AuditHead } from "../audit.ts";
import { runSync } from "../sql/script.ts";
import { AUDIT_GUARDS, DIALECT, QUERY_DIALECT, readsAt, scriptAccess, statementsOn, type StoreAccess } from "./scripts.ts";
import { untilRestored } from "./maintenance/backup/replace.ts";
import { commitMarker, Drain } from "./maintenance/changes/journal.ts";
import { Maintenance } from "./maintenance/maintenance.ts";
import { onlyOne } from "../jobs.ts";
import { handleOf, OwnTransaction, settleWithRows, UserTransactions } from "./user-transaction.ts";
import {
  closeWithoutCheckpoint,
  DatabaseFiles,
  RESERVED_BYTE,
  SHARED_BYTE,
  SHM_BYTE,
  watchLocks,
} from "./maintenance/open-files.ts";
import { epochIn, knownIn } from "./maintenance/epoch.ts";
import { UNKNOWN_ACTOR } from "../../core/recovery/audit.ts";
import { Damage } from "./maintenance/damage/damage.ts";
import { arrive, openDamaged } from "./maintenance/damage/arrival.ts";
import type { DriverName } from "./driver.ts";
import { explain, modeLike } from "./faults.ts";
import { GroupCommit, type Tx } from "./group-commit.ts";
import { ChangeFeed } from "./change-feed.ts";
import { type OpenedSqlite, openSqlite, type OpenSqliteOptions } from "./open.ts";
import { framesIn, walSize } from "./maintenance/wal.ts";
import { Witness } from "./maintenance/witness.ts";

const WRITE_WAIT_MS = 5_000;
/** Shortest pause between checks whether the files were replaced. A commit at "power" is always checked before the answer. */
const FILE_CHECK_INTERVAL_MS = 1;

export interface SqliteStoreOptions extends Omit<OpenSqliteOptions, "now" | "damaged" | "alive"> {
  clock: Clock;
  random: () => number;
  /** True in a thread of a process that has opened and checked the database. */
  ownThread?: boolean;
  /** Identifies this process; `boot` identifies this boot of the host. */
  identity?: string;
  boot?: string;
  onlyReads?: boolean;
  writeWaitMs?: number;
}

interface Opened extends OpenedSqlite {
  driver: DriverName;
  boot: string;
  alive: Alive | null;
  files: DatabaseFiles | null;
}

export class SqliteStore implements Store {
  readonly databaseId: string;
  readonly durability: Durability;
  readonly clock: Clock;
  readonly hooks = newHooks();
  readonly queries: StoreParts["queries"];
  readonly queues: StoreParts["queues"];
  readonly builds: StoreParts["builds"];
  readonly work: StoreParts["work"];
  readonly damage: Damage;
  readonly maintenance: Maintenance;
  readonly audit: StoreParts["auditLog"];
  readonly recoveries: StoreParts["recoveries"];
  readonly processes: StoreParts["processes"];
  readonly locks: StoreParts["locks"];
  readonly schedules: StoreParts["schedules"];
  readonly events: StoreParts["events"];
  readonly #path: string;
  readonly #opened: Opened;
  readonly #parts: StoreParts;
  readonly #group: GroupCommit;
  readonly #changes: ChangeFeed;
  #witness: Witness | null = null;
  #closed: Promise<void> | null = null;

  static async open(path: string, options: SqliteStoreOptions): Promise<SqliteStore> {
    const now = () => options.clock.now();
    const { driver, ownThread = false } = options;
    const alive = path === ":memory:" ? null : new Alive(aliveFolder(path), driver, options.identity, () => modeLike(path));
    const shows = ownThread ? {} : { alive };
    if (path !== ":memory:" && !ownThread) await untilRestored(path, driver);
    // Read the size before SQLite touches the log.
    const bytes = walSize(path);
    const damage = new Damage(path, { driver, now, actor: options.actor ?? UNKNOWN_ACTOR });
    const open = () => openDamaged(damage, path, (damaged) => openSqlite(path, { ...options, ...shows, now, damaged }));
    const leave = () => alive?.leave();
    const opened = await arrive(damage, path, options, open, leave).catch((error: unknown) => {
      leave();
      throw error;
    });
    damage.logAtOpening ??= { bytes, frames: bytes === 0 ? 0 : framesIn(opened.db) };
    try {
      const files = path === ":memory:" || damage.damaged !== null ? null : new DatabaseFiles(path);
      return new SqliteStore(path, { ...opened, driver, boot: options.boot ?? "", alive, files }, damage, options);
    } catch (error) {
      closeWithoutCheckpoint(opened.db, path, driver);
      leave();
      throw error;
    }
  }

  private constructor(path: string, opened: Opened, damage: Damage, options: SqliteStoreOptions) {
    const { db, databaseId, durability, journaled } = opened;
    const { driver, clock } = options;
    this.#path = path;
    this.#opened = opened;
    this.databaseId = databaseId;
    this.durability = durability;
    this.clock = clock;
    this.damage = damage;
    damage.watch({
      db,
      databaseId,
      files: opened.files,
      vanishedLocks: opened.token === null ? () => [] : watchLocksOf(path, opened.token),
      record: (act) => this.audit.recordOnce(act),
      onDamaged: (error) => {
        if (damage.isReplaced) process.once("exit", this.#closeReplaced);
        this.hooks.onDamaged(error);
      },
    });
    this.#changes = new ChangeFeed(db, path, () => this.#witness?.token ?? null);
    const access: StoreAccess = {
      now: () => this.clock.now(),
      read: this.#read,
      write: (operation, run) => this.#write(operation, run),
    };
    const drains = journaled && !options.onlyReads && damage.damaged === null;
    const drain = drains ? new Drain(db, { path, driver, databaseId, epoch: epochIn(db), now: access.now }) : null;
    this.maintenance = new Maintenance(db, { path, driver, durability, clock, journaled, damage, drain }, access);
    const beWitness = (token: string) => this.#beWitness(token);
    const parts = (this.#parts = storeParts(opened, { ...options, path, damage, beWitness, access, hooks: this.hooks }));
    ({ auditLog: this.audit, queries: this.queries, queues: this.queues, builds: this.builds, work: this.work } = parts);
    ({ recoveries: this.recoveries, processes: this.processes, locks: this.locks } = parts);
    ({ schedules: this.schedules, events: this.events } = parts);
    const { enqueueParts, lanes } = parts;
    this.#group = new GroupCommit(db, {
      path,
      statements: parts.statements,
      now: access.now,
      monotonic: () => performance.now(),
      patience: options.writeWaitMs ?? WRITE_WAIT_MS,
      replaced: (when) => damage.replaced(when === "after" && this.durability === "power" ? 0 : FILE_CHECK_INTERVAL_MS),
      onWritten: journaled ? commitMarker(db) : null,
      onCommit: ({ ready, ended, damaged, audit, commit, key }) => {
        enqueueParts.settings.declarations.committed();
        this.#witness?.record(commit, key);
        if (audit !== null) this.#witness?.recordAudit(audit);
        for (const what of damaged) damage.found({ severity: "row", what });
        this.#changes.committed(ready, ended);
      },
      onFault: (error) => damage.met(error),
      onReady: (queues) => this.#changes.committed(queues, []),
      onUndo: () => {
        enqueueParts.forget();
        lanes.forgetAll();
      },
    });
  }

  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]> {
    const enqueued = this.#write("enqueue", (tx) =>
      options?.whole ? this.#parts.enqueueParts.whole(tx, jobs) : this.#parts.enqueueParts.enqueue.run(tx, jobs),
    );
    this.#changes.incoming();
    return enqueued;
  }

  enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Enqueued[] {
    const refusal = this.#refusal();
    if (refusal !== null) throw refusal;
    const handle = handleOf(tx);
    if (handle === this.#opened.db.handle) return this.#parts.own.enqueue(jobs);
    const enqueued = this.#parts.userTransactions.enqueue(handle, jobs);
    // Declare the definitions' settings whatever becomes of that transaction.
    const { declarations } = this.#parts.enqueueParts.settings;
    const declared = new Set(jobs.flatMap(({ declares }) => declares ?? []));
    const undeclared = [...declared].filter((one) => !declarations.isDeclared(one));
    if (undeclared.length > 0) this.queues.declare(undeclared).catch(() => {});
    return enqueued;
  }

  transact<T>(work: (handle: object) => T): Promise<T> {
    const refusal = this.#refusal();
    if (refusal !== null) return Promise.reject(refusal);
    return this.#group.submit("transaction", (tx) => this.#parts.own.run(tx, "hf.transaction", work), { alone: true });
  }

  claim(request: ClaimRequest): Promise<Claimed[]> {
    const refusal = this.damage.refusal("claim");
    if (refusal !== null) return Promise.reject(refusal);
    return this.#write("claim", (tx) => this.#parts.claim.run(tx, request));
  }

  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<LeaseState[]> {
    return this.#write("renew", (tx) => this.#parts.leases.renew(tx, leases));
  }

  settle(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    if (settlements.some(({ commit }) => commit !== undefined)) return this.#settleWithRows(settlements);
    return this.#write("settle", (tx) => this.#parts.settle.run(tx, settlements));
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#parts.notes.loadCheckpoint(job);
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]> {
    return this.#parts.notes.saveProgress(reports);
  }

  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]> {
    return this.#read(() => this.#parts.leases.inspect(leases));
  }

  outlook(from: readonly ClaimSource[]): Promise<ClaimOutlook> {
    return this.#read(() => this.#parts.claim.outlook(from, this.clock.now()));
  }

  cancel(id: string): Promise<boolean> {
    return this.#parts.operate.cancel(id);
  }

  retry(id: string): Promise<boolean | "key-taken"> {
    return this.#parts.operate.retry(id);
  }

  prune(filter: PruneFilter | Expired): Promise<Pruned> {
    return this.#parts.operate.prune(filter);
  }

  #beWitness(token: string): void {
    const { alive, databaseId, durability, boot, db } = this.#opened;
    if (alive === null) return;
    this.#witness?.close();
    const { audit, statements } = this.#parts;
    const reads = readsAt(statements, this.clock.now());
    const here = { databaseId, durability, boot, audit: runSync(audit.head(reads)), ...knownIn(db) };
    const has = (entry: AuditHead) => runSync(audit.has(reads, entry));
    this.#witness = new Witness(this.#path, { token, alive, here, has });
  }

  onChange(call: (change: Change) => void, options: ChangeOptions = {}): () => void {
    return this.#changes.onChange(call, options);
  }

  close(): Promise<void> {
    this.#closed ??= Promise.all([this.#group.drained(), this.damage.confirmed()]).then(() => {
      this.#changes.close();
      const isReplaced = this.damage.replaced(0) !== null;
      if (isReplaced) this.#witness?.abandon();
      else this.#witness?.close();
      this.processes.close();
      this.maintenance.close();
      // Stop watching the files first, because SQLite itself may remove the log now.
      this.#opened.files?.close();
      if (isReplaced) this.#closeReplaced();
      else this.#opened.db.close();
    });
    return this.#closed;
  }

  #settleWithRows(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle, own } = this.#parts;
    const parts = { group: this.#group, settle, own, path: this.#path, onFault: (error: unknown) => this.damage.met(error) };
    const refusal = this.#refusal();
    return refusal === null ? settleWithRows(onlyOne(settlements), parts) : Promise.reject(refusal);
  }

  /** Closes a replaced database. Also called when a process exits without closing, because Node closes connections then. */
  readonly #closeReplaced = (): void => {
    process.off("exit", this.#closeReplaced);
    closeWithoutCheckpoint(this.#opened.db, this.#path, this.#opened.driver);
  };

  #write<T>(operation: Operation, run: (tx: Tx) => T): Promise<T> {
    const refusal = this.#refusal();
    return refusal === null ? this.#group.submit(operation, run) : Promise.reject(refusal);
  }

  readonly #read = async <T>(run: () => T): Promise<T> => {
    try {
      return run();
    } catch (error) {
      this.damage.met(error);
      throw explain(error, this.#path);
    }
  };

  /** Returns why writes are rejected: the database is damaged, or waits for an operator. Null: it accepts writes. */
  #refusal(): HoldfastError | null {
    return this.damage.refusal("write") ?? this.hooks.refuseWrites?.() ?? null;
  }
}

/** Watches the locks by which other processes judge whether the database and its log are open, and this process is alive. */
function watchLocksOf(path: string, token: string): () => string[] {
  return watchLocks([
    { path, byte: SHARED_BYTE },
    { path: `${path}-shm`, byte: SHM_BYTE },
    { path: join(aliveFolder(path), `${token}.lock`), byte: RESERVED_BYTE },
  ]);
}

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

type StoreParts = ReturnType<typeof storeParts>;

function storeParts(opened: OpenedSqlite & { alive: Alive | null }, parts: Parts) {
  const { db, databaseId, durability, alive, token } = opened;
  const { path, driver, random, damage, access, beWitness } = parts;
  const enqueueParts = new EnqueueParts(db, { canDeclare: true, artifacts: new ArtifactCheck(parts.hooks) });
  const { settings, events, enqueue, batches, catalog } = enqueueParts;
  const statements = statementsOn(db);
  const scripts = scriptAccess(statements, access);
  const audit = new Audit(DIALECT, { actor: parts.actor ?? null, events });
  const recoveryLog = new RecoveryLog(DIALECT, events);
  const attempts = new Attempts(DIALECT);
  const onRegistered = () => damage.recordCleared();
  const processes = new Processes(db, { audit, driver, alive, token, beWitness, onRegistered }, access);
  const lanes = new ClaimedLanes(db);
  const shared = { ...enqueueParts, attempts, locks: new ClaimLocks(db), lanes, random };
  const database = operateDatabase(db, enqueueParts);
  const cancel = new Cancel(DIALECT, { attempts, database });
  const settle = new Settle(db, { ...shared, cancel });
  const leases = new Leases(db, settle);
  const builds = IS_THREAD_CODE
    ? (new OrchestratorBeats(DIALECT, scripts) as Builds)
    : new Builds(DIALECT, { settings, events, enqueue, audit, recoveryLog }, scripts);
  const mainThreadParts = () => {
    const notes = new Notes(DIALECT, { items: batches.items, attempts }, scripts);
    const locks = new Locks(DIALECT, { audit, processes, recoveryLog }, scripts);
    const hooks = workHooks(db, { enqueueParts, cancel, notes, access });
    const file: FileFacts = {
      logAtOpening: () => damage.logAtOpening ?? { bytes: 0, frames: 0 },
      logSize: () => walSize(path),
      commitsMissing: () => damage.commitsMissing(),
      reported: (ids) => damage.reported(ids),
    };
    const recovered = { settle, leases, events, recoveryLog, locks, processes, audit, builds, file };
    return {
      notes,
      locks,
      own: new OwnTransaction(db, enqueueParts, path),
      userTransactions: new UserTransactions({ path, driver, durability, now: access.now }),
      claim: new Claim(db, shared),
      operate: new Operate(DIALECT, { ...enqueueParts, cancel, audit, database }, scripts),
      schedules: new Schedules(DIALECT, { enqueue, audit }, scripts),
      queries: new Queries(DIALECT, QUERY_DIALECT, { lanes: catalog, attempts }, scripts),
      queues: new Queues(DIALECT, { settings, audit }, scripts),
      events: new EventLog(DIALECT, { numbers: eventNumbers(scripts), databaseId, audit }, scripts),
      work: new Work(DIALECT, { batches, hooks }, scripts),
      recoveries: new Recoveries(DIALECT, recovered, scripts),
    };
  };
  return {
    statements,
    enqueueParts,
    lanes,
    settle,
    leases,
    processes,
    audit,
    builds,
    auditLog: new AuditLog({ audit, guards: AUDIT_GUARDS, keptHeads: () => damage.auditHeads() }, scripts),
    // The keeper thread needs none of these, and its published code leaves out their classes.
    ...(IS_THREAD_CODE ? ({} as ReturnType<typeof mainThreadParts>) : mainThreadParts()),
  };
}
