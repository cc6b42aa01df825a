import { statSync } from "node:fs";
import type { Clock } from "../../core/clock.ts";
import type { HoldfastError } from "../../core/errors.ts";
import type { Event } from "../../core/event.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { Job, JobState } from "../../core/job.ts";
import type { LeaseRef, StaleLease } from "../../core/lease.ts";
import { isLong, type WalView } from "../../core/wal.ts";
import type {
  Change,
  Claimed,
  ClaimRequest,
  ClaimSource,
  Declaration,
  DueSchedules,
  Durability,
  Enqueued,
  EventQuery,
  Fate,
  Judgement,
  LaneOverview,
  Life,
  ListFilter,
  LockView,
  NewJob,
  NewProcess,
  Outlook,
  ProcessView,
  ProgressReport,
  PruneFilter,
  QueueOverview,
  Reclaimed,
  RecoveryTotals,
  ScheduleDraft,
  Settlement,
  SinkHold,
  SinkView,
  Store,
  StoredSchedule,
  Tick,
  Works,
} from "../store.ts";
import type { Operation } from "../points.ts";
import { Alive, aliveFolder } from "../alive.ts";
import { Acts } from "./acts.ts";
import { Audit } from "./audit.ts";
import { AuditLog } from "./audit-log.ts";
import { untilRestored } from "./backup/enter.ts";
import type { Access } from "./builds/access.ts";
import { Backups } from "./backup/backups.ts";
import { runTask } from "./backup/tasks.ts";
import { Builds } from "./builds/builds.ts";
import { Cancel } from "./cancel.ts";
import { Drain } from "./changes/drain.ts";
import { CommitMarks } from "./changes/journal.ts";
import { Checkpoint } from "./checkpoint.ts";
import { knownIn } from "./epoch.ts";
import { Claim } from "./claim.ts";
import { ClaimedLanes } from "./claimed-lanes.ts";
import { Damage } from "./damage/damage.ts";
import { arrive, openDamaged } from "./damage/open.ts";
import { DamagedJobs } from "./damaged-jobs.ts";
import type { Connection, DriverName } from "./driver.ts";
import { explain } from "./faults.ts";
import { SqliteVitals } from "./vitals.ts";
import { GroupCommit, type Tx } from "./group-commit.ts";
import { Guests, handleOf } from "./guest.ts";
import { Healing } from "./healing.ts";
import { Intake } from "./intake.ts";
import { Leases } from "./leases.ts";
import { Locks } from "./locks.ts";
import { Look } from "./look.ts";
import { News } from "./news.ts";
import { Notes } from "./notes.ts";
import { type OpenedSqlite, openSqlite } from "./open.ts";
import { Operate } from "./operate.ts";
import { OwnTransaction } from "./own-transaction.ts";
import { Processes } from "./processes.ts";
import { Queues } from "./queues.ts";
import { Recoveries } from "./recoveries.ts";
import { Schedules } from "./schedules.ts";
import { Settle } from "./settle.ts";
import { Sinks } from "./sinks.ts";
import { Witness } from "./witness/witness.ts";
import { Work } from "./work/work.ts";

/** A write-ahead log this long wants somebody to look after it, even in a process that only enqueues. */
const NEEDS_CARE = 32 * 1024 * 1024;

export interface SqliteStoreOptions {
  driver: DriverName;
  durability?: Durability;
  create?: boolean;
  clock: Clock;
  random: () => number;
  /** Who acts through it, for the audit; left out: that is not said. */
  actor?: string;
  /** Whether a backup is made before the schema is changed. */
  backsUp?: boolean;
  /** Whether there is to be a journal of changes; left out: as it is. */
  journal?: boolean;
  /** Of a process that has it open: it lives for as long as that does, and has looked at it. */
  ownThread?: boolean;
  /** Of this process, and of this run of the host, for those who come after it. */
  identity?: string;
  boot?: string;
  /** Whoever opens it only looks, and writes nothing. */
  looks?: boolean;
  /** A thread of its own may wait inside SQLite; the main thread must not for long. */
  busyTimeout: number;
}

/** The Store on one SQLite file: asynchronous outside, synchronous inside. Each area of SQL has a file of its own. */
export class SqliteStore implements Store {
  readonly databaseId: string;
  readonly durability: Durability;
  readonly clock: Clock;
  readonly builds: Builds;
  readonly work: Work;
  readonly damage: Damage;
  readonly vitals: SqliteVitals;
  readonly backups: Backups;
  readonly audit: AuditLog;
  readonly recoveries: Recoveries;
  readonly #path: string;
  readonly #driver: DriverName;
  readonly #db: Connection;
  readonly #group: GroupCommit;
  readonly #intake: Intake;
  readonly #own: OwnTransaction;
  readonly #guests: Guests;
  readonly #claim: Claim;
  readonly #settle: Settle;
  readonly #leases: Leases;
  readonly #notes: Notes;
  readonly #look: Look;
  readonly #operate: Operate;
  readonly #healing: Healing;
  readonly #locks: Locks;
  readonly #processes: Processes;
  readonly #news: News;
  readonly #schedules: Schedules;
  readonly #queues: Queues;
  readonly #sinks: Sinks;
  readonly #checkpoint: Checkpoint | null;
  readonly #journaled: boolean;
  /** Run by the thread that has nothing else to do; and by others when they leave. */
  readonly #drain: Drain | null;
  #sealed: (() => HoldfastError) | null = null;
  readonly #alive: Alive | null;
  readonly #boot: string;
  readonly #heads: Audit;
  #witness: Witness | null = null;
  #closed: Promise<void> | null = null;

  static async open(path: string, options: SqliteStoreOptions): Promise<SqliteStore> {
    const now = () => options.clock.now();
    const { driver, ownThread = false } = options;
    const alive = path === ":memory:" ? null : new Alive(aliveFolder(path), driver, options.identity);
    const shows = ownThread ? {} : { alive };
    // What was found wrong is that of the database that is there then.
    if (path !== ":memory:" && !ownThread) await untilRestored(path, driver);
    // Before anybody here touches it.
    const bytes = walSize(path);
    const damage = new Damage(path, { driver, now });
    const open = () => openDamaged(damage, path, (damaged) => openSqlite(path, { ...options, ...shows, now, damaged }));
    const leave = () => alive?.leave();
    const opened = await arrive(damage, path, options, open, leave).catch((error: unknown) => {
      leave();
      throw error;
    });
    const log = { bytes, frames: bytes === 0 ? 0 : framesIn(opened.db) };
    return new SqliteStore(path, { ...opened, alive, log }, damage, options);
  }

  private constructor(
    path: string,
    opened: OpenedSqlite & { alive: Alive | null; log: { bytes: number; frames: number } },
    damage: Damage,
    options: SqliteStoreOptions,
  ) {
    const { db } = opened;
    this.#path = path;
    this.#driver = options.driver;
    this.#db = db;
    this.databaseId = opened.databaseId;
    this.durability = opened.durability;
    this.clock = options.clock;
    this.#journaled = opened.journaled;
    const marks = opened.journaled ? new CommitMarks(db) : null;
    const drains = opened.journaled && !options.looks && damage.damaged === null;
    this.#drain = drains ? drainOf(db, path, this.databaseId, options) : null;
    this.backups = new Backups(db, { path, driver: options.driver, clock: options.clock, journaled: opened.journaled });
    this.damage = damage;
    damage.watch(db, opened.databaseId);
    this.#boot = options.boot ?? "";
    this.#alive = opened.alive;
    this.#news = new News(db, path);
    this.#checkpoint = path === ":memory:" || damage.damaged !== null ? null : new Checkpoint(db, path);
    this.#intake = new Intake(db, { speaks: true });
    const { catalog, settings, limits, endings, waits, expiring, jobEvents, events, tally, enqueue } = this.#intake;
    this.#own = new OwnTransaction(db, this.#intake, path);
    this.#guests = new Guests({
      path,
      driver: options.driver,
      durability: this.durability,
      now: () => this.clock.now(),
    });
    const audit = new Audit(db, options.actor ?? null);
    this.#heads = audit;
    const acts = new Acts({ audit, events });
    this.#queues = new Queues({ settings, acts });
    this.#locks = new Locks(db, acts);
    this.#notes = new Notes(db);
    this.#processes = new Processes(db, acts, opened.alive, opened.token);
    this.#sinks = new Sinks(db, { acts, databaseId: this.databaseId });
    this.#schedules = new Schedules(db, { enqueue, acts });
    const shared = {
      catalog,
      settings,
      limits,
      endings,
      items: this.#intake.work.items,
      table: this.#intake.work.table,
      events: jobEvents,
      locks: this.#locks,
      lanes: new ClaimedLanes(db),
      random: options.random,
    };
    this.#claim = new Claim(db, { ...shared, damaged: new DamagedJobs(db, shared) });
    this.#settle = new Settle(db, { ...shared, enqueue, notes: this.#notes, flows: this.#intake.work.flows });
    this.#leases = new Leases(db, this.#settle);
    this.#look = new Look(db, { catalog, settings, tally });
    const cancel = new Cancel(db, { ...shared, waits });
    this.#operate = new Operate(db, { ...shared, audit, acts, look: this.#look, tally, expiring, cancel });
    this.#healing = new Healing(db, { settle: this.#settle, endings, events, audit });
    const access: Access = {
      now: () => this.clock.now(),
      read: (run) => this.#read(run),
      write: (operation, run) => this.#write(operation, run),
    };
    this.vitals = new SqliteVitals(db, { path, driver: options.driver, durability: this.durability }, access);
    this.audit = new AuditLog({ audit, acts }, access);
    this.builds = new Builds(db, { ...this.#intake, audit }, access);
    this.work = new Work(db, { intake: this.#intake, settle: this.#settle, cancel, notes: this.#notes }, access);
    this.recoveries = new Recoveries(
      db,
      {
        settle: this.#settle,
        endings,
        events,
        healing: this.#healing,
        locks: this.#locks,
        processes: this.#processes,
        audit,
        led: this.builds.led,
        log: {
          atOpening: () => {
            const met = damage.opening;
            return met === null ? opened.log : { bytes: met.walBytes, frames: met.walFrames };
          },
          size: () => walSize(path),
          shorten: () => runTask("checkpoint", { driver: options.driver, path }),
        },
      },
      access,
    );
    this.#group = new GroupCommit(db, {
      path,
      now: () => this.clock.now(),
      monotonic: () => performance.now(),
      patience: 5_000,
      onWritten: (now) => marks?.add(now),
      onCommit: ({ ready, ended, damaged, commit, key }) => {
        settings.committed();
        this.#witness?.saw(commit, key);
        const entry = audit.takeWritten();
        if (entry !== null) this.#witness?.sawAudit(entry);
        for (const what of damaged) damage.found({ severity: "row", what });
        this.#news.tell({ own: true, ready, ended });
      },
      onFault: (error) => damage.met(error),
      onUndo: () => {
        audit.takeWritten();
        this.#intake.forget();
        shared.lanes.forgetAll();
      },
    });
  }

  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]> {
    const enqueued = this.#write("enqueue", (tx) =>
      options?.whole ? this.#intake.whole(tx, jobs) : this.#intake.enqueue.run(tx, jobs),
    );
    this.#news.announce();
    return enqueued;
  }

  enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Enqueued[] {
    this.#refuse();
    const handle = handleOf(tx);
    if (handle === this.#db.handle) return this.#own.enqueue(jobs);
    const enqueued = this.#guests.enqueue(handle, jobs);
    // What their definitions say counts by itself, whatever becomes of that transaction.
    const unsaid = new Set(jobs.map(({ declares }) => declares).filter((one) => one !== undefined));
    for (const one of unsaid) if (this.#intake.settings.isSaid(one)) unsaid.delete(one);
    if (unsaid.size > 0) this.declare([...unsaid]).catch(() => {});
    return enqueued;
  }

  transact<T>(work: (handle: object) => T): Promise<T> {
    return this.#refusal() ?? this.#group.submitAlone("transaction", (tx) => this.#own.run(tx, work));
  }

  claim(request: ClaimRequest): Promise<Claimed[]> {
    return this.#write("claim", (tx) => this.#claim.run(tx, request));
  }

  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<Fate[]> {
    return this.#write("renew", (tx) => this.#leases.renew(tx, leases));
  }

  settle(settlements: readonly Settlement[]): Promise<Fate[]> {
    return this.#write("settle", (tx) => this.#settle.run(tx, settlements));
  }

  saveCheckpoint(lease: LeaseRef, value: string | null): Promise<Fate> {
    return this.#write("checkpoint", (tx) => (this.#notes.saveCheckpoint(tx, lease, value) ? "held" : this.#settle.fate(lease)));
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#read(() => this.#notes.checkpoint(job));
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<Fate[]> {
    return this.#write("progress", (tx) =>
      reports.map((report) => (this.#notes.saveProgress(tx, report) ? "held" : this.#settle.fate(report))),
    );
  }

  inspect(leases: readonly LeaseRef[]): Promise<Fate[]> {
    return this.#read(() => this.#leases.inspect(leases));
  }

  outlook(from: readonly ClaimSource[]): Promise<Outlook> {
    return this.#read(() => this.#claim.outlook(from, this.clock.now()));
  }

  get(id: string): Promise<Job | null> {
    return this.#read(() => this.#look.get(id));
  }

  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }> {
    return this.#read(() => this.#look.list(filter));
  }

  counts(filter: { queue?: string; name?: string }): Promise<Record<JobState, number>> {
    return this.#read(() => this.#look.counts(filter));
  }

  queues(): Promise<QueueOverview[]> {
    return this.#read(() => this.#look.queues(this.clock.now()));
  }

  cancel(id: string): Promise<boolean> {
    return this.#write("cancel", (tx) => this.#operate.cancel(tx, id));
  }

  retry(id: string): Promise<boolean | "key-taken"> {
    return this.#write("retry", (tx) => this.#operate.retry(tx, id));
  }

  lanes(): Promise<LaneOverview[]> {
    return this.#read(() => this.#look.lanes());
  }

  declare(declarations: readonly Declaration[]): Promise<void> {
    return this.#write("declare", (tx) => {
      this.#intake.settings.at(tx.settings);
      for (const declaration of declarations) this.#intake.settings.declare(tx, declaration);
    });
  }

  pause(queue: string): Promise<boolean> {
    return this.#write("pause", (tx) => this.#queues.pause(tx, queue, true));
  }

  resume(queue: string): Promise<boolean> {
    return this.#write("pause", (tx) => this.#queues.pause(tx, queue, false));
  }

  async expire(limit: number, leastAge = 0): Promise<{ removed: number; more: boolean }> {
    const { settings, expiring } = this.#intake;
    const due = await this.#read(() => settings.now().forgetting && expiring.isDue(this.clock.now(), leastAge));
    if (!due) return { removed: 0, more: false };
    return this.#write("expire", (tx) => this.#operate.expire(tx, limit, leastAge));
  }

  prune(filter: PruneFilter): Promise<number> {
    return this.#write("prune", (tx) => this.#operate.prune(tx, filter));
  }

  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]> {
    return this.#read(() => this.#healing.stale(query, this.clock.now()));
  }

  reclaim(judgements: readonly Judgement[], cause: string, by?: string): Promise<Reclaimed> {
    return this.#write("reclaim", (tx) => this.#healing.reclaim(tx, judgements, cause, by));
  }

  recovery(): Promise<RecoveryTotals> {
    return this.#read(() => this.#healing.recovery());
  }

  acquireLock(name: string, holder: string, token: string, ttl: number): Promise<boolean> {
    return this.#write("lock", (tx) => this.#locks.acquire(tx, { name, holder, token, ttl, process: this.#locker }));
  }

  extendLock(name: string, token: string, ttl: number): Promise<boolean> {
    return this.#write("lock", (tx) => this.#locks.extend(tx, { name, token, ttl, process: this.#locker }));
  }

  releaseLock(name: string, token: string): Promise<boolean> {
    return this.#write("lock", (tx) => this.#locks.release(tx, name, token));
  }

  async getLock(name: string): Promise<LockView | null> {
    return this.#read(() => this.#locks.all(name, this.clock.now())[0] ?? null);
  }

  breakLock(name: string, { stale = false } = {}): Promise<boolean> {
    return this.#write("lock", (tx) => this.#locks.break(tx, name, stale));
  }

  locks(): Promise<LockView[]> {
    return this.#read(() => this.#locks.all(null, this.clock.now()));
  }

  async cleanLocks(): Promise<number> {
    if (await this.#read(() => this.#locks.isClean(this.clock.now()))) return 0;
    return this.#write("reclaim", (tx) => {
      const locks = this.#locks.clean(tx);
      if (locks > 0) this.#healing.record(tx, "locks expired", { entries: 0, quarantined: 0, failed: 0, locks });
      return locks;
    });
  }

  saveSchedule(draft: ScheduleDraft): Promise<StoredSchedule> {
    return this.#write("schedule", (tx) => this.#schedules.save(tx, draft));
  }

  schedules(): Promise<StoredSchedule[]> {
    return this.#read(() => this.#schedules.all(null));
  }

  getSchedule(key: string): Promise<StoredSchedule | null> {
    return this.#read(() => this.#schedules.all(key)[0] ?? null);
  }

  dueSchedules(): Promise<DueSchedules> {
    return this.#read(() => this.#schedules.due(this.clock.now()));
  }

  tick(tick: Tick): Promise<boolean> {
    return this.#write("tick", (tx) => this.#schedules.tick(tx, tick));
  }

  triggerSchedule(key: string): Promise<Enqueued | null> {
    return this.#write("schedule", (tx) => this.#schedules.trigger(tx, key));
  }

  removeSchedule(key: string): Promise<boolean> {
    return this.#write("schedule", (tx) => this.#schedules.remove(tx, key));
  }

  pauseSchedule(key: string): Promise<boolean> {
    return this.#write("schedule", (tx) => this.#schedules.pause(tx, key));
  }

  resumeSchedule(schedule: { key: string; revision: number }, nextAt: number): Promise<boolean> {
    return this.#write("schedule", (tx) => this.#schedules.resume(tx, schedule, nextAt));
  }

  events(query: EventQuery): Promise<Event[]> {
    return this.#read(() => this.#sinks.events(query));
  }

  newestEvent(): Promise<number> {
    return this.#read(() => this.#sinks.newest());
  }

  openSink(name: string, kind: string): Promise<number> {
    return this.#write("sink", (tx) => this.#sinks.open(tx, name, kind));
  }

  /** Whoever stands by asks again and again: a refusal takes no write lock. */
  async holdSink(name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null> {
    const refused = await this.#read(() => this.#sinks.refuses(name, by.token, by.ttl, this.clock.now()));
    return refused === "no" ? this.#write("hold", (tx) => this.#sinks.hold(tx, name, by)) : refused;
  }

  advanceSink(name: string, token: Fence, seq: number, ttl: number): Promise<boolean> {
    return this.#write("advance", (tx) => this.#sinks.advance(tx, name, token, seq, ttl));
  }

  sinkFailed(name: string, token: Fence, error: string, ttl: number): Promise<boolean> {
    return this.#write("sink", (tx) => this.#sinks.fail(tx, name, token, error, ttl));
  }

  releaseSink(name: string, token: Fence): Promise<boolean> {
    return this.#write("sink", (tx) => this.#sinks.release(tx, name, token));
  }

  dropSink(name: string): Promise<boolean> {
    return this.#write("sink", (tx) => this.#sinks.drop(tx, name));
  }

  sinks(): Promise<SinkView[]> {
    return this.#read(() => this.#sinks.all());
  }

  async trimEvents({ olderThan, limit }: { olderThan: number; limit: number }): Promise<number> {
    if (!(await this.#read(() => this.#sinks.hasOld(olderThan, this.clock.now())))) return 0;
    return this.#write("trim", (tx) => this.#sinks.trim(tx, olderThan, limit));
  }

  /** The process's first commit: after it, nothing that it reads can be lost by somebody else's unfinished fsync. */
  async register(process: NewProcess): Promise<ProcessId> {
    const alive = await this.#read(() => this.#processes.prove());
    await this.#read(() => this.#beWitness(alive));
    const id = await this.#write("register", (tx) => this.#processes.add(tx, { ...process, alive, driver: this.#driver }));
    this.#processes.entered(id, process.boot);
    return id;
  }

  /** From its first commit on. */
  #beWitness(token: string): void {
    if (this.#alive === null) return;
    this.#witness?.close();
    const { databaseId, durability } = this;
    const here = { databaseId, durability, boot: this.#boot, audit: this.#heads.head(), ...knownIn(this.#db) };
    this.#witness = Witness.open(this.#path, { token, alive: this.#alive, here });
  }

  actAs(id: ProcessId): void {
    this.#processes.actAs(id);
  }

  probe(boot?: string): Promise<{ process: ProcessView; life: Life }[]> {
    return this.#read(() => this.#processes.probe(boot));
  }

  processes(): Promise<ProcessView[]> {
    return this.#read(() => this.#processes.all());
  }

  running(): Promise<Map<ProcessId | null, number>> {
    return this.#read(() => this.#processes.running());
  }

  announce(id: ProcessId, works: readonly Works[]): Promise<void> {
    return this.#write("announce", (tx) => this.#processes.announce(tx, id, works));
  }

  askToStop(ids: readonly ProcessId[], drain: number): Promise<ProcessId[]> {
    return this.#write("stop", (tx) => this.#processes.askToStop(tx, ids, drain));
  }

  async unregister(id: ProcessId): Promise<boolean> {
    const forget = this.#processes.forgetting(id);
    const removed = await this.#write("unregister", (tx) => this.#processes.remove(tx, id));
    if (removed) forget();
    return removed;
  }

  onChange(call: (change: Change) => void, options: { ownOnly?: boolean } = {}): () => void {
    return this.#news.onChange(call, options.ownOnly ?? false);
  }

  onIncoming(call: () => void): () => void {
    return this.#news.onIncoming(call);
  }

  async maintain(): Promise<WalView | null> {
    if (this.damage.damaged !== null || this.#checkpoint === null) return null;
    const bytes = await this.#read(() => (this.#checkpoint as Checkpoint).run());
    await this.#read(() => this.#drain?.run());
    return isLong({ bytes }) ? await this.vitals.wal() : null;
  }

  caredFor(yes: boolean): void {
    if (this.#closed === null) this.#checkpoint?.leaveTo(yes ? "thread" : "commits");
  }

  needsCare(): boolean {
    return this.#journaled || (this.#checkpoint?.size() ?? 0) > NEEDS_CARE;
  }

  seal(refusal: (() => HoldfastError) | null): void {
    this.#sealed = refusal;
  }

  close(): Promise<void> {
    this.#closed ??= this.#group.drained().then(() => {
      this.#news.close();
      this.#witness?.close();
      this.#processes.close();
      this.#drain?.close();
      this.#db.close();
    });
    return this.#closed;
  }

  #write<T>(operation: Operation, run: (tx: Tx) => T): Promise<T> {
    return this.#refusal() ?? this.#group.submit(operation, run);
  }

  async #read<T>(run: () => T): Promise<T> {
    try {
      return run();
    } catch (error) {
      this.damage.met(error);
      throw explain(error, this.#path);
    }
  }

  /** Before anything is written: it is damaged, or waits for somebody's word. */
  #refuse(): void {
    this.damage.refuse();
    if (this.#sealed !== null) throw this.#sealed();
  }

  /** The same, as a promise; null: go on. */
  #refusal(): Promise<never> | null {
    return this.damage.refusal() ?? (this.#sealed === null ? null : Promise.reject(this.#sealed()));
  }

  /** Whose locks they are that this handle takes; somebody who is not entered has none that could be found dead. */
  get #locker(): ProcessId | null {
    return this.#processes.self || null;
  }
}

/** In bytes. Looking it up opens nothing. */
function walSize(path: string): number {
  return path === ":memory:" ? 0 : (statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0);
}

/** How many frames of the write-ahead log count. */
function framesIn(db: Connection): number {
  const [, frames] = db.prepare("pragma wal_checkpoint(noop)").row() as [number, number, number];
  return Math.max(0, frames);
}

function drainOf(db: Connection, path: string, databaseId: string, { driver, clock }: SqliteStoreOptions): Drain {
  const { epoch } = knownIn(db);
  return new Drain(db, { path, driver, databaseId, epoch, now: () => clock.now() });
}
