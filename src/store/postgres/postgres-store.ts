import type { Clock } from "../../core/clock.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Event } from "../../core/event.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { Job, JobState } from "../../core/job.ts";
import type { HeldLease, LeaseRef } from "../../core/lease.ts";
import type { Operation } from "../points.ts";
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
import { cut, Group, type Tx } from "./group.ts";
import { Guests } from "./guests.ts";
import { Intake } from "./intake.ts";
import { Claim } from "./claim.ts";
import { Look } from "./look.ts";
import { News } from "./news.ts";
import { type OpenedPostgres, openPostgres } from "./open.ts";
import { Queues } from "./queues.ts";
import type { Reader } from "./reader.ts";
import { Settle } from "./settle.ts";
import type { Writer } from "./writer.ts";

export interface PostgresStoreOptions {
  /** The schema that holds Holdfast's tables; "holdfast" unless said otherwise. */
  schema?: string;
  durability?: Durability;
  /** False: it must be there already. */
  create?: boolean;
  clock: Clock;
  /** Whether the given clock's time is written, or the database's. */
  injected: boolean;
  random: () => number;
}

/** How long a server that is gone is waited for before its caller is told, in milliseconds. */
const PATIENCE = 10_000;

/** The Store on a PostgreSQL server. Each area of SQL has a file of its own. */
export class PostgresStore implements Store {
  readonly databaseId: string;
  readonly durability: Durability;
  readonly #writer: Writer;
  readonly #reader: Reader;
  readonly #group: Group;
  readonly #intake: Intake;
  readonly #claim: Claim;
  readonly #settle: Settle;
  readonly #look: Look;
  readonly #guests: Guests;
  readonly #queues: Queues;
  readonly #news: News;
  #closed: Promise<void> | null = null;

  static async open(url: string, options: PostgresStoreOptions): Promise<PostgresStore> {
    return new PostgresStore(await openPostgres(url, { ...options, patience: PATIENCE }), options);
  }

  private constructor(opened: OpenedPostgres, options: PostgresStoreOptions) {
    const { s, writer, reader } = opened;
    this.databaseId = opened.databaseId;
    this.durability = opened.durability;
    this.#writer = writer;
    this.#reader = reader;
    this.#news = new News();
    this.#intake = new Intake(s, { speaks: true, random: options.random });
    const { catalog, settings, limits, endings, enqueue, tally, jobEvents: events } = this.#intake;
    this.#claim = new Claim(s, { catalog, settings, events, random: options.random });
    this.#settle = new Settle(s, { catalog, settings, limits, events, endings, enqueue, tally, random: options.random });
    this.#look = new Look(s, { catalog });
    this.#queues = new Queues({ settings, events: this.#intake.events });
    this.#guests = new Guests({
      s,
      address: writer.address,
      databaseId: this.databaseId,
      durability: this.durability,
      catalog,
      random: options.random,
      at: () => (options.injected ? options.clock.now() : null),
      wake: () => null,
    });
    this.#group = new Group(writer, {
      clock: options.clock,
      injected: options.injected,
      patience: PATIENCE,
      random: options.random,
      schema: s,
      onCommit: ({ ready, ended }) => this.#news.tell({ own: true, ready, ended }),
      onStale: () => this.#intake.forget(),
    });
  }

  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]> {
    const { enqueue } = this.#intake;
    const enqueued = options?.whole
      ? this.#write("enqueue", (tx) => enqueue.whole(tx, jobs))
      : enqueue.isPlain(jobs)
        ? this.#group.submitQuick("enqueue", jobs, (tx, batches) => enqueue.batches(tx, batches))
        : this.#write("enqueue", (tx) => enqueue.run(tx, jobs));
    this.#news.announce();
    return enqueued;
  }

  async enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    const { settings, catalog } = this.#intake;
    // What their definitions say counts by itself, whatever becomes of that transaction; and rows that everybody shares are
    // not locked for as long as it stays open.
    if (!jobs.every((job) => settings.isSilent(job)) || !catalog.isKnown(jobs)) {
      await this.#write("declare", async (own) => {
        await settings.limitsOf(own, jobs);
        await catalog.know(own, jobs);
      });
    }
    return this.#guests.enqueue(tx, jobs);
  }

  /** Somebody else's synchronous work cannot wait for a server. */
  transact<T>(): Promise<T> {
    return Promise.reject(
      new HoldfastError(
        "TX_UNSUPPORTED",
        "`transaction` runs synchronous work inside a SQLite database; PostgreSQL answers over a connection.",
        "Begin a transaction with your own driver, and enqueue with `{ tx }` inside it.",
      ),
    );
  }

  claim(request: ClaimRequest): Promise<Claimed[]> {
    if (!this.#claim.isQuick(request)) return this.#write("claim", (tx) => this.#claim.run(tx, request));
    return this.#group.submitQuick("claim", request, (tx, requests) =>
      Promise.all(requests.map((one) => this.#claim.run(tx, one))),
    );
  }

  renew(_leases: readonly (LeaseRef & { lease: number })[]): Promise<Fate[]> {
    return notYet();
  }

  settle(settlements: readonly Settlement[]): Promise<Fate[]> {
    if (!this.#settle.isQuick(settlements)) return this.#write("settle", (tx) => this.#settle.run(tx, settlements));
    return this.#group.submitQuick("settle", settlements, async (tx, batches) => {
      return cut(await this.#settle.run(tx, batches.flat()), batches);
    });
  }

  saveCheckpoint(_lease: LeaseRef, _value: string | null): Promise<Fate> {
    return notYet();
  }

  loadCheckpoint(_job: JobKey): Promise<string | null> {
    return notYet();
  }

  saveProgress(_reports: readonly ProgressReport[]): Promise<Fate[]> {
    return notYet();
  }

  inspect(leases: readonly LeaseRef[]): Promise<Fate[]> {
    return this.#settle.fates(this.#reader.rows, leases);
  }

  outlook(_from: readonly ClaimSource[]): Promise<Outlook> {
    return notYet();
  }

  get(id: string): Promise<Job | null> {
    return this.#look.get(this.#reader.rows, id);
  }

  list(_filter: ListFilter): Promise<{ items: Job[]; next?: string }> {
    return notYet();
  }

  counts(_filter: { queue?: string; name?: string }): Promise<Record<JobState, number>> {
    return notYet();
  }

  queues(): Promise<QueueOverview[]> {
    return notYet();
  }

  lanes(): Promise<LaneOverview[]> {
    return notYet();
  }

  cancel(_id: string): Promise<boolean> {
    return notYet();
  }

  retry(_id: string): Promise<boolean | "key-taken"> {
    return notYet();
  }

  prune(_filter: Parameters<Store["prune"]>[0]): Promise<number> {
    return notYet();
  }

  declare(declarations: readonly Declaration[]): Promise<void> {
    return this.#write("declare", async (tx) => {
      for (const declaration of declarations) await this.#intake.settings.declare(tx, declaration);
    });
  }

  pause(queue: string): Promise<boolean> {
    return this.#write("pause", (tx) => this.#queues.pause(tx, queue, true));
  }

  resume(queue: string): Promise<boolean> {
    return this.#write("pause", (tx) => this.#queues.pause(tx, queue, false));
  }

  expire(_limit: number, _leastAge = 0): Promise<{ removed: number; more: boolean }> {
    return notYet();
  }

  stale(_query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<HeldLease[]> {
    return notYet();
  }

  reclaim(_judgements: readonly Judgement[], _cause: string): Promise<Reclaimed> {
    return notYet();
  }

  recovery(): Promise<RecoveryTotals> {
    return notYet();
  }

  acquireLock(_name: string, _holder: string, _token: string, _ttl: number): Promise<boolean> {
    return notYet();
  }

  extendLock(_name: string, _token: string, _ttl: number): Promise<boolean> {
    return notYet();
  }

  releaseLock(_name: string, _token: string): Promise<boolean> {
    return notYet();
  }

  getLock(_name: string): Promise<LockView | null> {
    return notYet();
  }

  breakLock(_name: string): Promise<boolean> {
    return notYet();
  }

  locks(): Promise<LockView[]> {
    return notYet();
  }

  cleanLocks(): Promise<number> {
    return notYet();
  }

  saveSchedule(_draft: ScheduleDraft): Promise<StoredSchedule> {
    return notYet();
  }

  schedules(): Promise<StoredSchedule[]> {
    return notYet();
  }

  getSchedule(_key: string): Promise<StoredSchedule | null> {
    return notYet();
  }

  dueSchedules(): Promise<DueSchedules> {
    return notYet();
  }

  tick(_tick: Tick): Promise<boolean> {
    return notYet();
  }

  triggerSchedule(_key: string): Promise<Enqueued | null> {
    return notYet();
  }

  removeSchedule(_key: string): Promise<boolean> {
    return notYet();
  }

  pauseSchedule(_key: string): Promise<boolean> {
    return notYet();
  }

  resumeSchedule(_schedule: { key: string; revision: number }, _nextAt: number): Promise<boolean> {
    return notYet();
  }

  events(_query: EventQuery): Promise<Event[]> {
    return notYet();
  }

  newestEvent(): Promise<number> {
    return notYet();
  }

  openSink(_name: string, _kind: string): Promise<number> {
    return notYet();
  }

  holdSink(_name: string, _by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null> {
    return notYet();
  }

  advanceSink(_name: string, _token: Fence, _seq: number, _ttl: number): Promise<boolean> {
    return notYet();
  }

  sinkFailed(_name: string, _token: Fence, _error: string, _ttl: number): Promise<boolean> {
    return notYet();
  }

  releaseSink(_name: string, _token: Fence): Promise<boolean> {
    return notYet();
  }

  dropSink(_name: string): Promise<boolean> {
    return notYet();
  }

  sinks(): Promise<SinkView[]> {
    return notYet();
  }

  trimEvents(_what: { olderThan: number; limit: number }): Promise<number> {
    return notYet();
  }

  register(_process: NewProcess): Promise<ProcessId> {
    return notYet();
  }

  actAs(_id: ProcessId): void {}

  probe(): Promise<{ process: ProcessView; life: Life }[]> {
    return notYet();
  }

  processes(): Promise<ProcessView[]> {
    return notYet();
  }

  running(): Promise<Map<ProcessId | null, number>> {
    return notYet();
  }

  announce(_id: ProcessId, _works: readonly Works[]): Promise<void> {
    return notYet();
  }

  askToStop(_ids: readonly ProcessId[], _drain: number): Promise<ProcessId[]> {
    return notYet();
  }

  unregister(_id: ProcessId): Promise<boolean> {
    return notYet();
  }

  onChange(call: (change: Change) => void, options: { ownOnly?: boolean } = {}): () => void {
    return this.#news.onChange(call, options.ownOnly ?? false);
  }

  onIncoming(call: () => void): () => void {
    return this.#news.onIncoming(call);
  }

  /** The server cares for its storage by itself. */
  async maintain(): Promise<void> {}

  caredFor(): void {}

  needsCare(): boolean {
    return false;
  }

  close(): Promise<void> {
    this.#closed ??= this.#group.close().then(async () => {
      this.#news.close();
      await Promise.all([this.#writer.close(), this.#reader.close()]);
    });
    return this.#closed;
  }

  #write<T>(operation: Operation, run: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#group.submit(operation, run);
  }
}

/** To be gone before this is finished. */
function notYet(): Promise<never> {
  return Promise.reject(new Error("not yet"));
}
