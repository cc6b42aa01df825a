import { randomInt } from "node:crypto";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { AuditHead } from "../audit.ts";
import { type Operation, passPoint } from "../points.ts";
import type { Statements } from "./scripts.ts";
import type { Connection, Statement } from "./driver.ts";
import { COMMITS } from "./maintenance/epoch.ts";
import type { Tx as ScriptTx } from "../sql/script.ts";
import { LockPatience } from "./lock-patience.ts";
import { explain, faultOf, isBusy, isOfContent } from "./faults.ts";

/** While other processes commit, a write waits for so many times the time that it waits for one transaction. */
const MOST_TRANSACTIONS = 12;

/** One transaction, as the operations inside it see it. */
export interface Tx extends ScriptTx {
  readonly now: number;
  /** This commit's number: the fence of what is claimed in it. */
  readonly commit: Fence;
  /** The lanes that exist; more than are known here means that another process has made some. */
  readonly lanes: number;
  /** How often queues' settings and limits have changed so far. */
  readonly settings: number;
  nextKey(): JobKey;
  /** A row is not what was written there. */
  damaged(what: string): void;
}

/** What listeners get after a commit. */
export interface Committed {
  ready: Set<string>;
  ended: { job: JobKey; fence: Fence }[];
  damaged: string[];
  /** The newest audit entry that the transaction wrote. */
  audit: AuditHead | null;
  /** The number of the last commit, and the highest key of a job, that are in the database now for certain. */
  commit: number;
  key: number;
}

/** Keys go on from the highest there is, or ever was where the highest were pruned. */
export const COUNTED = `
  select ${COMMITS}, max(jobs, coalesce((select max(key) from holdfast_jobs), 0)), lanes, writer, settings
  from holdfast_counter where id = 1`;

export type CountedRow = [commits: number, jobs: number, lanes: number, writer: number, settings: number];

/** The operation that only adds jobs. */
const ENQUEUE = "enqueue";

/** What a transaction would leave behind. */
interface Mark {
  now: number;
  commit: number;
  /** The first job's. */
  key: number;
}

interface Item {
  operation: Operation;
  /** In a transaction of its own, and at most once. */
  alone: boolean;
  run: (tx: Tx) => unknown;
  /** What the caller of one that is alone gets when its COMMIT is refused for what it has written. */
  refused: (error: unknown) => unknown;
  resolve: (value: unknown) => void;
  reject: (reason: unknown) => void;
  since: number;
}

export interface GroupCommitOptions {
  path: string;
  /** What scripts run on this connection. */
  statements: Statements;
  now: () => number;
  monotonic: () => number;
  /** So long a write waits for the transaction of another process, in milliseconds; longer while others commit. */
  patience: number;
  onCommit: (committed: Committed) => void;
  /** Why other processes do not see this file any more; null: they do. Asked before each transaction, and before its callers are answered. */
  replaced: (when: "before" | "after") => HoldfastError | null;
  /** The last of a transaction, before it is committed. */
  onWritten?: (now: number) => void;
  /** A statement or a commit threw; what a user's own has met is not told. */
  onFault: (error: unknown) => void;
  /** A user's callback has committed by itself, and may have enqueued jobs in these queues. */
  onReady: (queues: ReadonlySet<string>) => void;
  /** A transaction was undone: forget what was learnt inside it. */
  onUndo: () => void;
}

/**
 * What arrives in one turn of the event loop becomes one transaction, because a commit costs a hundred times what a row
 * costs. A promise settles only after the commit, so what is acknowledged is durable.
 */
export class GroupCommit {
  /** This handle and no other: a process has several, and a commit that threw must not be taken for a neighbour's. */
  readonly #writer = randomInt(2 ** 40);
  readonly #db: Connection;
  readonly #options: GroupCommitOptions;
  readonly #begin: Statement;
  readonly #commit: Statement;
  readonly #rollback: Statement;
  readonly #count: Statement;
  readonly #counted: Statement;
  readonly #madeAt: Statement;
  #queue: Item[] = [];
  #scheduled = false;
  #retries = 0;
  #idle: (() => void)[] = [];
  #opening: LockPatience | null = null;
  /** While the file is locked. */
  #waiting: LockPatience | null = null;

  constructor(db: Connection, options: GroupCommitOptions) {
    this.#db = db;
    this.#options = options;
    this.#begin = db.prepare("begin immediate");
    this.#commit = db.prepare("commit");
    this.#rollback = db.prepare("rollback");
    this.#counted = db.prepare(COUNTED);
    this.#count = db.prepare("update holdfast_counter set commits = ?, writer = ? where id = 1");
    this.#madeAt = db.prepare("select created_at from holdfast_jobs where key = ?");
  }

  /** `run` is synchronous and may run more than once, after everything it did was undone. */
  submit<T>(operation: Operation, run: (tx: Tx) => T): Promise<T> {
    return this.#add(operation, run, false, asItIs);
  }

  /** `run` is the user's own: it has a transaction of its own, runs at most once, and what it throws is passed on as it is. */
  submitAlone<T>(operation: Operation, run: (tx: Tx) => T, refused = asItIs): Promise<T> {
    return this.#add(operation, run, true, refused);
  }

  /** Resolves when nothing is waiting for its commit. */
  drained(): Promise<void> {
    if (this.#queue.length === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  #add<T>(operation: Operation, run: (tx: Tx) => T, alone: boolean, refused: Item["refused"]): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const since = this.#options.monotonic();
      this.#queue.push({ operation, alone, run, refused, resolve: resolve as (value: unknown) => void, reject, since });
      this.#schedule();
    });
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => this.#flush());
  }

  #flush(): void {
    this.#scheduled = false;
    const items = this.#queue;
    this.#queue = [];
    const batches = items.some(({ alone }) => alone) ? apart(items) : [items];
    for (const [i, batch] of batches.entries()) {
      const left = batch.length === 0 ? [] : this.#run(batch);
      if (left.length === 0) continue;
      this.#wait([left, ...batches.slice(i + 1)].flat());
      break;
    }
    if (this.#queue.length === 0) for (const resolve of this.#idle.splice(0)) resolve();
  }

  /** Those that could not be run, because the file is busy. */
  #run(items: Item[]): Item[] {
    if ((items[0] as Item).alone) return this.#alone(items[0] as Item);
    // Savepoints are only needed to tell a bad item from its neighbours, so the first try goes without.
    for (const attempt of [this.#together, this.#withSavepoints]) {
      const done = attempt.call(this, items);
      if (done === "busy") return items;
      if (done === "done") return [];
    }
    return this.#oneByOne(items);
  }

  #alone(item: Item): Item[] {
    let called = false;
    let value: unknown;
    const run = (tx: Tx): void => {
      called = true;
      value = item.run(tx);
    };
    const committed = this.#transact([item], run, () => true);
    if (this.#db.isOpen) this.#db.exec("pragma foreign_keys = off");
    if (!(committed instanceof Failed)) {
      item.resolve(value);
      if (committed !== null) this.#options.onCommit(committed);
      return [];
    }
    // Once it was called, even a busy file is an error of its own: it may have met it in another database.
    if (committed.busy && !called) return [item];
    const { error, atCommit } = committed;
    const itsOwn = called && (!atCommit || isOfContent(error));
    const own = atCommit ? item.refused(error) : error;
    item.reject(itsOwn ? own : explain(error, this.#options.path));
    return [];
  }

  /** All items in one transaction; anything thrown undoes it. */
  #together(items: Item[]): "done" | "busy" | "undone" {
    const results: unknown[] = [];
    const committed = this.#transact(items, (tx) => {
      for (const item of items) results.push(item.run(tx));
    });
    if (committed instanceof Failed) {
      if (committed.busy) return "busy";
      if (items.length > 1 && !committed.atCommit) return "undone";
      for (const item of items) item.reject(explain(committed.error, this.#options.path));
      return "done";
    }
    for (let i = 0; i < items.length; i++) (items[i] as Item).resolve(results[i]);
    if (committed !== null) this.#options.onCommit(committed);
    return "done";
  }

  /** Each item in a savepoint: a bad one is undone alone. */
  #withSavepoints(items: Item[]): "done" | "busy" | "undone" {
    const answers: (() => void)[] = [];
    let undone = false;
    const run = (tx: Tx): void => {
      for (const item of items) {
        this.#db.exec("savepoint holdfast_item");
        const news: (() => void)[] = [];
        try {
          // What it has to tell is held back until it is known to be done.
          const value = item.run({
            ...tx,
            ready: (queue) => news.push(() => tx.ready(queue)),
            ended: (job, fence) => news.push(() => tx.ended(job, fence)),
            damaged: (what) => news.push(() => tx.damaged(what)),
            audited: (head) => news.push(() => tx.audited?.(head)),
          });
          answers.push(() => item.resolve(value));
          for (const tell of news) tell();
        } catch (error) {
          // Some errors (a full disk) end the whole transaction; statements after that would commit by themselves.
          if (!this.#db.inTransaction) throw error;
          this.#db.exec("rollback to holdfast_item");
          undone = true;
          this.#options.onUndo();
          answers.push(() => item.reject(explain(error, this.#options.path)));
        }
        this.#db.exec("release holdfast_item");
      }
    };
    const committed = this.#transact(items, run, () => undone);
    if (committed instanceof Failed) {
      if (committed.busy) return "busy";
      if (!committed.atCommit) return "undone";
      for (const item of items) item.reject(explain(committed.error, this.#options.path));
      return "done";
    }
    for (const answer of answers) answer();
    if (committed !== null) this.#options.onCommit(committed);
    return "done";
  }

  /** The last resort, when the transaction itself cannot hold all of them. */
  #oneByOne(items: Item[]): Item[] {
    for (let i = 0; i < items.length; i++) {
      if (this.#together([items[i] as Item]) === "busy") return items.slice(i);
    }
    return [];
  }

  /** Null when nothing was written: then there is nothing to commit, and nothing to announce. */
  #transact(items: Item[], body: (tx: Tx) => void, undone: () => boolean = () => false): Committed | Failed | null {
    let mark: Mark | undefined;
    const committed: Committed = { ready: new Set(), ended: [], damaged: [], audit: null, commit: 0, key: 0 };
    const replaced = this.#options.replaced("before");
    if (replaced !== null) return new Failed(replaced, false, true);
    const isUsers = items.some(({ alone }) => alone);
    try {
      // The user's tables may rely on their foreign keys; ours have none. It cannot be switched inside a transaction.
      if (isUsers) this.#db.exec("pragma foreign_keys = on");
      this.#begin.run();
    } catch (error) {
      this.#options.onFault(error);
      return new Failed(error, isBusy(error), false);
    }
    try {
      const [commits, jobs, lanes, , settings] = this.#counted.row() as CountedRow;
      const commit = commits + 1;
      mark = { now: this.#options.now(), commit, key: jobs + 1 };
      // The number of a commit that only adds jobs stands in them: the counter would be a page more, a fifth of its cost.
      const counts = items.some(({ operation }) => operation !== ENQUEUE);
      if (counts) this.#count.run(commit, this.#writer);
      let nextKey = jobs;
      let wrote = false;
      for (const item of items) passPoint(item.operation, "begun");
      body({
        ...this.#options.statements,
        now: mark.now,
        commit: mark.commit as Fence,
        lanes,
        settings,
        nextKey: () => ++nextKey as JobKey,
        wrote: () => (wrote = true),
        ready: (queue) => committed.ready.add(queue),
        ended: (job, fence) => committed.ended.push({ job, fence }),
        damaged: (what) => committed.damaged.push(what),
        audited: (head) => (committed.audit = head),
      });
      // Keys that were taken by what was undone since are in no row; the caller says whether any was undone.
      committed.key = undone() ? jobs : nextKey;
      // Nor is a number that no job was given.
      committed.commit = counts || committed.key > jobs ? commit : commits;
      for (const item of items) passPoint(item.operation, "written");
      if (!wrote) {
        this.#rollback.run();
        return this.#unseen();
      }
      this.#options.onWritten?.(mark.now);
    } catch (error) {
      if (!isUsers) this.#options.onFault(error);
      this.#undo();
      if (isUsers && mark !== undefined && this.#happened(mark, items) !== "no") this.#options.onReady(committed.ready);
      return new Failed(error, isBusy(error), false);
    }
    try {
      this.#commit.run();
    } catch (error) {
      this.#options.onFault(error);
      this.#undo();
      const happened = this.#happened(mark, items);
      if (happened === "no") return new Failed(error, isBusy(error), true);
      if (happened === "unknown") return new Failed(unknown(error), false, true);
    }
    for (const item of items) passPoint(item.operation, "committed");
    this.#retries = 0;
    this.#waiting = null;
    return this.#unseen() ?? committed;
  }

  /** A commit into a file that no other process sees is not acknowledged; nor is "duplicate" on the strength of one. */
  #unseen(): Failed | null {
    const replaced = this.#options.replaced("after");
    return replaced === null ? null : new Failed(replaced, false, true);
  }

  #undo(): void {
    if (this.#db.inTransaction) this.#rollback.run();
    this.#options.onUndo();
  }

  /** A commit that threw may have happened. The counters tell, unless others have written since. */
  #happened(mark: Mark, items: Item[]): "yes" | "no" | "unknown" {
    try {
      const [commits, jobs, , writer] = this.#counted.row() as CountedRow;
      if (items.every(({ operation }) => operation === ENQUEUE)) {
        if (jobs < mark.key) return "no";
        return this.#madeAt.row(mark.key)?.[0] === mark.now ? "yes" : "unknown";
      }
      if (commits < mark.commit) return "no";
      return commits === mark.commit && writer === this.#writer ? "yes" : "unknown";
    } catch {
      return "unknown";
    }
  }

  /** The first write of a process is a part of opening: it waits as opening does. */
  #isOpening({ operation }: Item): boolean {
    if (operation !== "register") return false;
    this.#opening ??= new LockPatience(this.#db);
    return !this.#opening.isOver();
  }

  /**
   * Another writer has the lock. Waiting inside SQLite would freeze this thread, and the writer may be a handle of this
   * very thread; so wait on a timer, with jitter because SQLite's own waiting is unfair.
   */
  #wait(items: Item[]): void {
    const patient: Item[] = [];
    const { patience, monotonic, path } = this.#options;
    const most = MOST_TRANSACTIONS * patience;
    const since = Math.min(...items.map((item) => item.since));
    this.#waiting ??= new LockPatience(this.#db, { stuckMs: patience, mostMs: most, now: monotonic, since });
    const isStuck = this.#waiting.isOver();
    for (const item of items) {
      const waited = monotonic() - item.since;
      if (waited < patience || !isStuck || this.#isOpening(item)) patient.push(item);
      else item.reject(explain(busy(), path));
    }
    this.#queue = [...patient, ...this.#queue];
    // A caller has submitted meanwhile, and the next turn takes these along.
    if (this.#scheduled) return;
    this.#scheduled = true;
    const pause = Math.min(25, 1 + this.#retries++) * (0.5 + Math.random());
    setTimeout(() => this.#flush(), pause);
  }
}

function asItIs(error: unknown): unknown {
  return error;
}

/** In their order, each that is to be alone by itself. */
function apart(items: Item[]): Item[][] {
  const batches: Item[][] = [[]];
  for (const item of items) {
    const last = batches.at(-1) as Item[];
    if (item.alone) batches.push([item], []);
    else last.push(item);
  }
  return batches;
}

class Failed {
  readonly error: unknown;
  readonly busy: boolean;
  readonly atCommit: boolean;
  constructor(error: unknown, busy: boolean, atCommit: boolean) {
    this.error = error;
    this.busy = busy;
    this.atCommit = atCommit;
  }
}

function busy(): Error {
  return Object.assign(new Error("database is locked"), { errcode: 5 });
}

function unknown(error: unknown): HoldfastError {
  return new HoldfastError(
    "COMMIT_UNKNOWN",
    `The commit failed (${faultOf(error) ?? String(error)}), and SQLite cannot tell whether it took effect.`,
    "Call jobs.get before you try again; with an `id`, enqueueing again is safe.",
    { cause: error },
  );
}
