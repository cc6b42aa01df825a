import { randomBytes } from "node:crypto";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { JobKey } from "../../core/text/ids.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Operation } from "../points.ts";
import {
  type Change,
  type ChangeOptions,
  type Claimed,
  type ClaimOutlook,
  type ClaimRequest,
  type ClaimSource,
  type Durability,
  type Enqueued,
  type Expired,
  type LeaseState,
  newHooks,
  type NewJob,
  type ProgressReport,
  type Pruned,
  type PruneFilter,
  type Settlement,
  type Store,
} from "../store.ts";
import { type OpenedPostgres, openPostgres, type OpenPostgresOptions } from "./connection/open.ts";
import { storeParts, type StoreParts } from "./store-parts.ts";
import type { AuditLog } from "../sql/audit.ts";
import { runAsync } from "../sql/script.ts";
import type { Access, Tx } from "./transactions/transaction.ts";
import { Damage, Maintenance } from "./maintenance.ts";
import type { Builds } from "../sql/builds/builds.ts";
import type { Locks } from "../sql/locks.ts";
import { secondShare } from "./settle/settle-effects.ts";
import type { CallHints } from "./transactions/write-queue.ts";
import { GroupCommit, type GroupCommitOptions } from "./transactions/group-commit.ts";
import { TwoConnections } from "./transactions/two-connections.ts";
import { UserTransactions } from "./transactions/user-transaction.ts";
import type { Queries } from "../sql/queries.ts";
import { ChangeFeed } from "./change-feed.ts";
import type { EventLog } from "../sql/events.ts";
import type { Processes } from "./processes.ts";
import type { Queues, Schedules } from "../sql/queues.ts";
import type { Recoveries } from "../sql/recoveries.ts";
import { COMMIT_LIMIT_MS, onlyOne } from "../jobs.ts";
import { RowCommits } from "./transactions/commit-rows.ts";
import { ServerTime } from "./connection/server-state.ts";
import type { Work } from "../sql/work/work.ts";

export interface PostgresStoreOptions extends Omit<OpenPostgresOptions, "patience"> {
  patience?: number;
  commitLimit?: number;
}

const PATIENCE_MS = 10_000;

export class PostgresStore implements Store {
  readonly databaseId: string;
  readonly durability: Durability;
  readonly clock: Clock;
  readonly hooks = newHooks();
  readonly queries: Queries;
  readonly queues: Queues;
  readonly builds: Builds;
  readonly work: Work;
  readonly damage: Damage;
  readonly maintenance: Maintenance;
  readonly audit: AuditLog;
  readonly recoveries: Recoveries;
  readonly processes: Processes;
  readonly locks: Locks;
  readonly schedules: Schedules;
  readonly events: EventLog;
  readonly #opened: OpenedPostgres;
  readonly #parts: StoreParts;
  readonly #group: GroupCommit;
  readonly #at: () => number | null;
  readonly #userTransactions: UserTransactions;
  readonly #changes: ChangeFeed;
  readonly #time: ServerTime;
  readonly #connections: TwoConnections;
  readonly #rowCommits: RowCommits;
  #tallyShare = 0;
  #closed: Promise<void> | null = null;

  static async open(url: string, options: PostgresStoreOptions): Promise<PostgresStore> {
    const store = new PostgresStore(await openPostgres(url, { patience: PATIENCE_MS, ...options }), options);
    try {
      const { rows } = store.#opened.reader;
      const share = store.#parts.jobParts.tally.chooseShare(rows, options.random);
      [store.#tallyShare] = await Promise.all([share, store.#time.ask(rows)]);
    } catch (error) {
      await store.close();
      throw error;
    }
    return store;
  }

  private constructor(opened: OpenedPostgres, options: PostgresStoreOptions) {
    const { s, writer, reader } = opened;
    this.databaseId = opened.databaseId;
    this.durability = opened.durability;
    this.#opened = opened;
    const { clock, random } = options;
    this.#changes = new ChangeFeed({
      schema: options.schema ?? "holdfast",
      handle: randomBytes(4).toString("hex").slice(1),
      send: (text, ...values) => reader.attempt(text, ...values),
      connect: opened.listen,
      after: (millis, call) => clock.after(millis, call),
      random,
    });
    const time = (this.#time = new ServerTime(s, () => clock.monotonic()));
    this.clock = options.injected ? clock : { ...clock, now: () => time.now() };
    this.#at = () => (options.injected ? options.clock.now() : null);
    const access: Access = {
      at: this.#at,
      read: reader.rows,
      write: (...how) => this.#write(...how),
      readInTurn: (operation, run) => this.#group.submit(operation, run),
    };
    const parts = (this.#parts = storeParts(opened, { random, actor: options.actor ?? null, time, access, hooks: this.hooks }));
    writer.onSession((session) => parts.processes.connected(session));
    this.audit = parts.auditLog;
    this.queries = parts.queries;
    this.queues = parts.queues;
    this.builds = parts.builds;
    this.work = parts.work;
    this.recoveries = parts.recoveries;
    this.processes = parts.processes;
    this.locks = parts.locks;
    this.schedules = parts.schedules;
    this.events = parts.events;
    const name = options.schema ?? "holdfast";
    this.maintenance = new Maintenance(s, { access, time, address: writer.address, name });
    this.damage = new Damage(reader.rows, s);
    const { audit, jobParts } = parts;
    const { catalog, limits } = jobParts;
    this.#userTransactions = new UserTransactions({
      s,
      address: writer.address,
      databaseId: this.databaseId,
      durability: this.durability,
      catalog,
      random: options.random,
      at: this.#at,
      epoch: opened.epoch,
      enterAnew: () => this.#write("declare", async () => {}),
      wake: (queues) => this.#changes.notifier.within(queues),
    });
    const how: GroupCommitOptions = {
      clock: options.clock,
      injected: options.injected,
      patience: options.patience ?? PATIENCE_MS,
      random: options.random,
      schema: s,
      statements: parts.statements,
      durability: this.durability,
      changes: this.#changes,
      epoch: opened.epoch,
      tallyShare: () => this.#tallyShare,
      onStale: () => jobParts.forget(),
      onRevert: () => jobParts.forgetAll(),
      first: jobParts.first,
      last: (tx, entries) => runAsync(audit.write(tx, entries)),
      onStall: () => limits.locks.stalled(),
    };
    this.#group = new GroupCommit(writer, how);
    const connections = (this.#connections = new TwoConnections(
      {
        claim: parts.claim,
        settle: parts.settle,
        first: this.#group,
        writer: opened.second,
        write: (...how) => this.#write(...how),
      },
      { ...how, tallyShare: () => secondShare(this.#tallyShare), first: () => null },
    ));
    this.#rowCommits = new RowCommits({
      s,
      makeWriter: opened.makeWriter,
      group: how,
      jobParts,
      random,
      declare: (jobs) => this.#declare(jobs),
      settle: (settlements) => connections.settle(settlements),
      limit: options.commitLimit ?? COMMIT_LIMIT_MS,
    });
  }

  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]> {
    if (this.hooks.refuseWrites !== null) return Promise.reject(this.hooks.refuseWrites());
    const { enqueue } = this.#parts.jobParts;
    // None of these can be refused, so `whole` need not be checked.
    const enqueued = enqueue.isPlain(jobs)
      ? this.#group.submitJoined("enqueue", jobs, (tx, batches) => enqueue.batches(tx, batches), {
          rows: jobs.length,
          single: enqueue.route,
        })
      : this.#write("enqueue", (tx) => (options?.whole ? enqueue.whole(tx, jobs) : enqueue.run(tx, jobs)));
    this.#changes.incoming();
    return enqueued;
  }

  async enqueueWithin(tx: unknown, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    if (this.hooks.refuseWrites !== null) throw this.hooks.refuseWrites();
    await this.#declare(jobs);
    return this.#userTransactions.enqueue(tx, jobs);
  }

  /** Declares in a transaction of its own: one that stays open for long must not lock rows that all processes share. */
  async #declare(jobs: readonly NewJob[]): Promise<void> {
    const { settings, catalog } = this.#parts.jobParts;
    if (jobs.every((job) => settings.isSilent(job)) && catalog.isKnown(jobs)) return;
    await this.#write("declare", async (own) => {
      await settings.limitsOf(own, jobs);
      await catalog.know(own, jobs);
    });
  }

  transact<T>(): Promise<T> {
    return Promise.reject(
      new HoldfastError(
        "TX_UNSUPPORTED",
        "hf.transaction runs on SQLite only, and this database is on PostgreSQL.",
        "Begin a transaction with your own driver, and call hf.enqueue with `{ tx }` inside it.",
      ),
    );
  }

  claim(request: ClaimRequest): Promise<Claimed[]> {
    if (this.hooks.refuseWrites !== null) return Promise.reject(this.hooks.refuseWrites());
    if (request.holder !== null && this.#opened.connectionLimit.refusal("worker") !== null) return this.#claimIfAllowed(request);
    return this.#connections.claim(request);
  }

  /** Rejects claims if no connection is left for the keeper: it could not renew leases, and they would expire. */
  async #claimIfAllowed(request: ClaimRequest): Promise<Claimed[]> {
    await this.#opened.connectionLimit.look(this.#opened.reader.rows);
    const few = this.#opened.connectionLimit.refusal("worker");
    if (few !== null) throw few;
    return this.claim(request);
  }

  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<LeaseState[]> {
    return this.#parts.leases.renew((run) => this.#write("renew", run), leases);
  }

  async settle(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    if (this.hooks.refuseWrites !== null) throw this.hooks.refuseWrites();
    if (settlements.some(({ commit }) => commit !== undefined)) return this.#rowCommits.run(onlyOne(settlements));
    return this.#connections.settle(settlements);
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#parts.notes.loadCheckpoint(job);
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]> {
    return this.#parts.notes.saveProgress(reports);
  }

  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]> {
    return this.#parts.leases.inspect(leases);
  }

  outlook(from: readonly ClaimSource[]): Promise<ClaimOutlook> {
    return this.#parts.outlooks.of(this.#at(), from);
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

  onChange(call: (change: Change) => void, options: ChangeOptions = {}): () => void {
    return this.#changes.onChange(call, options);
  }

  close(): Promise<void> {
    this.#closed ??= this.#rowCommits.close().then(async () => {
      await Promise.all([this.#group.close(), this.#connections.close()]);
      this.processes.close();
      await Promise.all([this.#changes.close().then(() => this.#opened.reader.close()), this.#opened.writer.close()]);
    });
    return this.#closed;
  }

  #write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints: CallHints<T> = {}): Promise<T> {
    return this.hooks.refuseWrites === null
      ? this.#group.submit(operation, run, hints)
      : Promise.reject(this.hooks.refuseWrites());
  }
}
