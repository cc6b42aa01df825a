import type { Fence, JobKey } from "../../core/text/ids.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { AuditHead } from "../audit.ts";
import { type Operation, passPoint } from "../points.ts";
import type { Statements } from "./scripts.ts";
import type { Connection } from "./driver.ts";
import { COMMITS } from "./maintenance/epoch.ts";
import type { Tx as ScriptTx } from "../sql/script.ts";
import { lockPatience } from "./lock-patience.ts";
import { explain, faultOf, isBusy, isOfContent } from "./faults.ts";

/** A call waits at most this many times its patience, even while other processes commit. */
const MAX_PATIENCE_FACTOR = 12;

export interface Tx extends ScriptTx {
  readonly now: number;
  /** This commit's number: the fence of the jobs that are claimed in it. */
  readonly commit: Fence;
  /** Number of lanes. If it is larger than the number of known lanes, another process has made some. */
  readonly lanes: number;
  readonly settings: number;
  nextKey(): JobKey;
  damaged(what: string): void;
}

export interface Committed {
  ready: Set<string>;
  ended: { job: JobKey; fence: Fence }[];
  damaged: string[];
  audit: AuditHead | null;
  /** Number of the last commit that is certainly in the database now. */
  commit: number;
  /** The highest job key that is certainly in the database now. */
  key: number;
}

/** Reads the counters. Keys continue from the highest that exists, or ever existed if the highest were pruned. */
export const COUNTED = `
  select ${COMMITS}, max(jobs, coalesce((select max(key) from holdfast_jobs), 0)), lanes, writer, settings
  from holdfast_counter where id = 1`;

export type CountedRow = [commits: number, jobs: number, lanes: number, writer: number, settings: number];

const ENQUEUE = "enqueue";

interface Mark {
  now: number;
  commit: number;
  key: number;
}

interface Item {
  operation: Operation;
  alone: boolean;
  run: (tx: Tx) => unknown;
  refused: (error: unknown) => unknown;
  resolve: (value: unknown) => void;
  reject: (reason: unknown) => void;
  since: number;
}

export interface GroupCommitOptions {
  path: string;
  statements: Statements;
  now: () => number;
  monotonic: () => number;
  /** How long a write waits for the transaction of another process, in milliseconds; longer while others commit. */
  patience: number;
  onCommit: (committed: Committed) => void;
  /** Returns why other processes do not see this file any more. Called before each transaction, and before it is answered. */
  replaced: (when: "before" | "after") => HoldfastError | null;
  /** Called before the commit of a transaction that has written. */
  onWritten: ((now: number) => void) | null;
  /** Called with the error of a statement or commit, but not of a user's statement. */
  onFault: (error: unknown) => void;
  /** Called if a user's callback has committed by itself, with the queues of its jobs. */
  onReady: (queues: ReadonlySet<string>) => void;
  onUndo: () => void;
}

// Runs the calls of one turn in one transaction: a commit costs as much as 100 rows. A promise settles only after the commit.
export class GroupCommit {
  /** Identifies this handle, so that another handle's commit is not taken for the one of this handle that threw. */
  readonly #writer = Math.floor(Math.random() * 2 ** 40);
  readonly #db: Connection;
  readonly #options: GroupCommitOptions;
  readonly #sql;
  #queue: Item[] = [];
  #scheduled = false;
  #retries = 0;
  #idle: (() => void)[] = [];
  #opening: (() => boolean) | null = null;
  #waiting: (() => boolean) | null = null;

  constructor(db: Connection, options: GroupCommitOptions) {
    this.#db = db;
    this.#options = options;
    this.#sql = {
      begin: db.prepare("begin immediate"),
      commit: db.prepare("commit"),
      rollback: db.prepare("rollback"),
      counted: db.prepare(COUNTED),
      count: db.prepare("update holdfast_counter set commits = ?, writer = ? where id = 1"),
      madeAt: db.prepare("select created_at from holdfast_jobs where key = ?"),
    };
  }

  /** Queues a call. `run` may run again after a rollback. `alone`: a user's code runs at most once, in its own transaction. */
  submit<T>(operation: Operation, run: (tx: Tx) => T, { alone = false, refused = asItIs }: Partial<Item> = {}): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const since = this.#options.monotonic();
      this.#queue.push({ operation, alone, run, refused, resolve: resolve as (value: unknown) => void, reject, since });
      if (this.#scheduled) return;
      this.#scheduled = true;
      setImmediate(() => this.#flush());
    });
  }

  drained(): Promise<void> {
    if (this.#queue.length === 0) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  #flush(): void {
    this.#scheduled = false;
    const items = this.#queue;
    this.#queue = [];
    const batches = items.some(({ alone }) => alone) ? separate(items) : [items];
    for (const [i, batch] of batches.entries()) {
      const left = batch.length === 0 ? [] : this.#run(batch);
      if (left.length === 0) continue;
      this.#wait([left, ...batches.slice(i + 1)].flat());
      break;
    }
    if (this.#queue.length === 0) for (const resolve of this.#idle.splice(0)) resolve();
  }

  #run(items: Item[]): Item[] {
    const results: unknown[] = [];
    let called = false;
    const committed = this.#transact(items, (tx) => {
      called = true;
      for (const item of items) results.push(item.run(tx));
    });
    const [{ alone }] = items as [Item];
    if (alone && this.#db.isOpen) this.#db.exec("pragma foreign_keys = off");
    if (!hasFailed(committed)) {
      for (let i = 0; i < items.length; i++) (items[i] as Item).resolve(results[i]);
      if (committed !== null) this.#options.onCommit(committed);
      return [];
    }
    // Once a user's callback has run, even a busy error is the callback's own: it may be about another database.
    if (committed.busy && !(alone && called)) return items;
    if (items.length > 1 && !committed.atCommit) return this.#oneByOne(items);
    for (const item of items) item.reject(this.#errorFor(item, committed, called));
    return [];
  }

  /** Runs calls one by one, because one of them is bad, or one transaction cannot hold them all. */
  #oneByOne(items: Item[]): Item[] {
    for (let i = 0; i < items.length; i++) if (this.#run([items[i] as Item]).length > 0) return items.slice(i);
    return [];
  }

  /** Returns the error for a caller: its own unchanged for a user's callback that has run, or whose rows made the commit fail. */
  #errorFor({ alone, refused }: Item, { error, atCommit }: Failed, called: boolean): unknown {
    const isOwn = alone && called && (!atCommit || isOfContent(error));
    if (!isOwn) return explain(error, this.#options.path);
    return atCommit ? refused(error) : error;
  }

  /** Runs a transaction. Null: it wrote nothing, so there is nothing to commit or to announce. */
  #transact(items: Item[], body: (tx: Tx) => void): Committed | Failed | null {
    let mark: Mark | undefined;
    const committed: Committed = { ready: new Set(), ended: [], damaged: [], audit: null, commit: 0, key: 0 };
    const replaced = this.#options.replaced("before");
    if (replaced !== null) return { error: replaced, busy: false, atCommit: true };
    const isUsers = items.some(({ alone }) => alone);
    try {
      // The user's tables may rely on foreign keys; Holdfast's have none. SQLite cannot switch them inside a transaction.
      if (isUsers) this.#db.exec("pragma foreign_keys = on");
      this.#sql.begin.run();
    } catch (error) {
      this.#options.onFault(error);
      return { error, busy: isBusy(error), atCommit: false };
    }
    this.#retries = 0;
    this.#waiting = null;
    try {
      const [commits, jobs, lanes, , settings] = this.#sql.counted.row() as CountedRow;
      const commit = commits + 1;
      mark = { now: this.#options.now(), commit, key: jobs + 1 };
      // A commit that only adds jobs has its number in their fence: writing the counter costs one more page, a fifth of it.
      const counts = items.some(({ operation }) => operation !== ENQUEUE);
      if (counts) this.#sql.count.run(commit, this.#writer);
      let nextKey = jobs;
      let wrote = false;
      for (const item of items) passPoint(item.operation, "begun");
      body({
        ...this.#options.statements,
        now: mark.now,
        commit: commit as Fence,
        lanes,
        settings,
        nextKey: () => ++nextKey as JobKey,
        wrote: () => (wrote = true),
        ready: (queue) => committed.ready.add(queue),
        ended: (job, fence) => committed.ended.push({ job, fence }),
        damaged: (what) => committed.damaged.push(what),
        audited: (head) => (committed.audit = head),
      });
      // Keys that a user's callback has rolled back are in no row.
      committed.key = isUsers ? jobs : nextKey;
      committed.commit = counts || committed.key > jobs ? commit : commits;
      for (const item of items) passPoint(item.operation, "written");
      if (!wrote) {
        this.#sql.rollback.run();
        return this.#unseen();
      }
      this.#options.onWritten?.(mark.now);
    } catch (error) {
      if (!isUsers) this.#options.onFault(error);
      this.#undo();
      if (isUsers && mark !== undefined && this.#happened(mark, items) !== "no") this.#options.onReady(committed.ready);
      return { error, busy: isBusy(error), atCommit: false };
    }
    try {
      this.#sql.commit.run();
    } catch (error) {
      this.#options.onFault(error);
      this.#undo();
      const happened = this.#happened(mark, items);
      if (happened === "no") return { error, busy: isBusy(error), atCommit: true };
      if (happened === "unknown") return { error: unknown(error), busy: false, atCommit: true };
    }
    for (const item of items) passPoint(item.operation, "committed");
    return this.#unseen() ?? committed;
  }

  /** Rejects what was committed into, or read from, a file that other processes do not see any more. */
  #unseen(): Failed | null {
    const replaced = this.#options.replaced("after");
    return replaced === null ? null : { error: replaced, busy: false, atCommit: true };
  }

  #undo(): void {
    if (this.#db.inTransaction) this.#sql.rollback.run();
    this.#options.onUndo();
  }

  /** Whether a commit that threw has happened. The counters tell, unless other processes have written since. */
  #happened(mark: Mark, items: Item[]): "yes" | "no" | "unknown" {
    try {
      const [commits, jobs, , writer] = this.#sql.counted.row() as CountedRow;
      if (items.every(({ operation }) => operation === ENQUEUE)) {
        if (jobs < mark.key) return "no";
        return this.#sql.madeAt.row(mark.key)?.[0] === mark.now ? "yes" : "unknown";
      }
      if (commits < mark.commit) return "no";
      return commits === mark.commit && writer === this.#writer ? "yes" : "unknown";
    } catch {
      return "unknown";
    }
  }

  /** Whether a call may wait as long as opening does: the first write of a process belongs to opening. */
  #isOpening({ operation }: Item): boolean {
    if (operation !== "register") return false;
    this.#opening ??= lockPatience(this.#db);
    return !this.#opening();
  }

  // Wait on a timer, because the other writer may be a handle of this very thread. Jitter makes up for SQLite's unfair waiting.
  #wait(items: Item[]): void {
    const patient: Item[] = [];
    const { patience, monotonic, path } = this.#options;
    const since = Math.min(...items.map((item) => item.since));
    const mostMs = MAX_PATIENCE_FACTOR * patience;
    this.#waiting ??= lockPatience(this.#db, { stuckMs: patience, mostMs, now: monotonic, since });
    const isStuck = this.#waiting();
    for (const item of items) {
      const waited = monotonic() - item.since;
      if (waited < patience || !isStuck || this.#isOpening(item)) patient.push(item);
      else item.reject(explain(busy(), path));
    }
    if (patient.length === 0) this.#waiting = null;
    this.#queue = [...patient, ...this.#queue];
    if (this.#scheduled) return;
    this.#scheduled = true;
    const pause = Math.min(25, 1 + this.#retries++) * (0.5 + Math.random());
    setTimeout(() => this.#flush(), pause);
  }
}

function asItIs(error: unknown): unknown {
  return error;
}

function separate(items: Item[]): Item[][] {
  const batches: Item[][] = [[]];
  for (const item of items) {
    const last = batches.at(-1) as Item[];
    if (item.alone) batches.push([item], []);
    else last.push(item);
  }
  return batches;
}

interface Failed {
  error: unknown;
  busy: boolean;
  atCommit: boolean;
}

function hasFailed(committed: Committed | Failed | null): committed is Failed {
  return committed !== null && "atCommit" in committed;
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
