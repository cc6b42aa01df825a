import type { Clock } from "../../core/clock.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Fence, JobKey } from "../../core/ids.ts";
import { type Operation, passPoint } from "../points.ts";
import type { Durability } from "../store.ts";
import { backoff } from "./backoff.ts";
import type { Rows, Value } from "./driver.ts";
import { type Epoch, Returned } from "./epoch.ts";
import { closedError, explain, isLost, mayRunAgain, Overtaken } from "./faults.ts";
import { type Receipt, Receipts } from "./receipts.ts";
import type { Session } from "./session.ts";
import type { Writer } from "./writer.ts";

/** One transaction, as the operations inside it see it. */
export interface Tx {
  /** The injected clock's time; null where the database's own clock counts. Statements take it as it is. */
  readonly at: number | null;
  /** One instant for the whole transaction, for those who decide by it before they write. */
  now(): Promise<number>;
  readonly rows: Rows;
  /** Relies on lanes, or settings, being as they were when this count of their changes was read. If not, all is done again. */
  assume(what: Counted, count: number): void;
  /** Holds the row of those counts, which comes after the lock of any queue: none is waited for any more. */
  isLate: boolean;
  /** The queues whose lock it holds. */
  queues: readonly string[];
  /** Has itself moved that count. */
  moved(what: Counted, from: number, to: number): void;
  /** What was learnt in this transaction counts only if it is committed. */
  onUndo(forget: () => void): void;
  onCommit(keep: () => void): void;
  /** Said by whoever changes a row: a transaction in which nobody did is no news. */
  wrote(): void;
  /** A job of this queue may be claimable now. */
  ready(queue: string): void;
  /** This lease was ended by somebody else than its holder. */
  ended(job: JobKey, fence: Fence): void;
}

/** What is cached of the database, and counted there when it changes. */
export type Counted = "lanes" | "settings";

/** What the world is told after a commit. */
export interface Committed {
  ready: Set<string>;
  ended: { job: JobKey; fence: Fence }[];
}

interface Item {
  operation: Operation;
  /** All its statements are sent at once: nobody needs to wait for it before the next begins. */
  quick: boolean;
  /** Whether more calls may join it: one statement for all of them. */
  open: boolean;
  calls: Call[];
  /** An answer for each call. */
  run: (tx: Tx, inputs: unknown[]) => Promise<unknown[]>;
}

interface Call {
  input: unknown;
  resolve: (value: unknown) => void;
  reject: (reason: unknown) => void;
  since: number;
}

export interface GroupOptions {
  clock: Clock;
  /** Whether statements take the given clock's time, or the database's. */
  injected: boolean;
  /** Until this much has passed, a server that is gone is waited for; in milliseconds. */
  patience: number;
  random: () => number;
  schema: string;
  durability: Durability;
  epoch: Epoch;
  onCommit: (committed: Committed) => void;
  /** What was assumed is not so any more. */
  onStale: () => void;
  /** Nothing that was known of the database is so any more. */
  onReturn: () => void;
  /** Comes before everything else, when an earlier try has shown that it must. */
  first: (tx: Tx) => Promise<void> | null;
}

/** How often a transaction that was overtaken, or chosen to end a deadlock, runs again. */
const TRIES = 20;
/** How many calls one statement answers at most. */
const MOST_JOINED = 1_000;

/**
 * Between two statements, in milliseconds; then the server undoes it all. A process that is stopped, or whose handler
 * blocks the event loop, holds locks that everybody else may wait for. It does it again when it goes on.
 */
const LONGEST_SILENCE = 5_000;

/**
 * What arrives in one turn of the event loop, and while the last transaction is on its way, becomes one transaction,
 * because a commit costs a hundred times what a row costs. A promise settles only after the commit.
 *
 * The commit is sent when every answer is there, together with the receipt. So a connection that is lost before has
 * changed nothing, and one that is lost with the commit has either left its receipt or changed nothing.
 */
export class Group {
  readonly #writer: Writer;
  readonly #options: GroupOptions;
  readonly #receipts: Receipts;
  /** Whatever the server's or the user's defaults are; and a pooler may give each transaction another connection. */
  readonly #begin: string;
  #queue: Item[] = [];
  #running = false;
  /** Since when the server cannot be reached; null: it can. */
  #lostSince: number | null = null;
  /** The database has gone back, and has to be learnt anew. */
  #hasReturned = false;
  #closed = false;
  #idle: (() => void)[] = [];

  constructor(writer: Writer, options: GroupOptions) {
    this.#writer = writer;
    this.#options = options;
    this.#receipts = new Receipts(options.schema);
    const synchronous = options.durability === "power" ? "on" : "off";
    this.#begin = `begin isolation level read committed;
      set local synchronous_commit = ${synchronous}; set local idle_in_transaction_session_timeout = ${LONGEST_SILENCE}`;
  }

  /** `run` may run more than once, after everything it did was undone. */
  submit<T>(operation: Operation, run: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#add<T>(undefined, () => {
      const item: Item = { operation, quick: false, open: false, calls: [], run: async (tx) => [await run(tx)] };
      this.#queue.push(item);
      return item;
    });
  }

  /** `run` sends everything at once, and for all calls together that are made one after the other. */
  submitQuick<Input, T>(operation: Operation, input: Input, run: (tx: Tx, inputs: Input[]) => Promise<T[]>): Promise<T> {
    return this.#add<T>(input, () => {
      const last = this.#queue.at(-1);
      if (last !== undefined && last.open && last.operation === operation && last.calls.length < MOST_JOINED) return last;
      const item: Item = { operation, quick: true, open: true, calls: [], run: run as Item["run"] };
      this.#queue.push(item);
      return item;
    });
  }

  #add<T>(input: unknown, item: () => Item): Promise<T> {
    if (this.#closed) return Promise.reject(closedError());
    return new Promise<T>((resolve, reject) => {
      item().calls.push({ input, resolve: resolve as (value: unknown) => void, reject, since: performance.now() });
      if (this.#running) return;
      this.#running = true;
      setImmediate(() => void this.#drain());
    });
  }

  /** Resolves when nothing is waiting for its commit; nothing is taken any more. */
  close(): Promise<void> {
    this.#closed = true;
    if (!this.#running) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      const items = this.#queue;
      this.#queue = [];
      await this.#run(items);
    }
    this.#running = false;
    for (const resolve of this.#idle.splice(0)) resolve();
  }

  /** Every item has its answer when this resolves. */
  async #run(items: Item[]): Promise<void> {
    let apart = false;
    for (let tries = 0, losses = 0; ;) {
      const outcome = await this.#transact(items, apart, tries < TRIES);
      this.#lostSince = outcome !== "done" && outcome.lost ? (this.#lostSince ?? performance.now()) : null;
      if (outcome === "done") return;
      if (outcome.lost) {
        items = this.#patient(items, outcome.error);
        if (items.length === 0) return;
        await this.#pause(losses++);
      } else if (mayRunAgain(outcome.error) && ++tries < TRIES) {
        if (!(outcome.error instanceof Overtaken && outcome.error.soon)) await this.#pause(tries > 1 ? 1 : 0);
      } else if (!apart && callsOf(items) > 1) {
        apart = true;
        items = items.flatMap((item) => item.calls.map((call): Item => ({ ...item, calls: [call] })));
      } else {
        for (const { calls } of items) for (const call of calls) call.reject(explain(outcome.error, this.#writer.address));
        return;
      }
    }
  }

  /** One try. Savepoints are only needed to tell a bad item from its neighbours, so the first goes without. */
  async #transact(items: Item[], apart: boolean, again: boolean): Promise<"done" | Failed> {
    let session: Session;
    try {
      session = await this.#writer.session();
      // Not before: nobody is in the middle of anything now that he knew.
      if (this.#hasReturned) {
        await this.#options.epoch.enter(session, this.#options.onReturn);
        this.#hasReturned = false;
      }
    } catch (error) {
      return { error, lost: isLost(error) };
    }
    const state = new Transaction(session, this.#options);
    let receipt: Receipt | null;
    let answers: (() => void)[];
    try {
      // Nothing is sent behind it before it has succeeded: where it fails, all the rest would be done by itself, and stay.
      await session.command(this.#begin);
      const first = this.#options.first(state);
      if (first !== null) await first;
      const run = apart ? this.#eachInSavepoint(items, state, session, again) : together(items, state);
      run.catch(() => {});
      // Where all was sent at once, the end goes with it.
      if (!apart && items.every(({ quick }) => quick)) void state.end(this.#receipts).catch(() => {});
      answers = await run;
      receipt = await state.end(this.#receipts);
      for (const item of items) passPoint(item.operation, "written");
    } catch (error) {
      const cause = state.cause(error);
      this.#hasReturned ||= cause instanceof Returned;
      state.stop(cause);
      const failed = await this.#rolledBack(session, cause);
      state.undo();
      return failed;
    }
    const committed = await this.#commit(session, receipt);
    if (committed !== "yes") {
      state.undo();
      return committed;
    }
    for (const item of items) passPoint(item.operation, "committed");
    state.keep();
    // The listeners first: whoever is answered goes on with what has changed.
    if (state.hasWritten) this.#options.onCommit(state.news);
    for (const answer of answers) answer();
    return "done";
  }

  async #eachInSavepoint(items: Item[], state: Transaction, session: Session, again: boolean): Promise<(() => void)[]> {
    const answers: (() => void)[] = [];
    for (const item of items) {
      const call = item.calls[0] as Call;
      passPoint(item.operation, "begun");
      await session.command("savepoint item");
      const part = state.part();
      try {
        const [value] = await item.run(part, inputsOf(item));
        await session.command("release item");
        part.join(state);
        answers.push(() => call.resolve(value));
      } catch (error) {
        const cause = part.cause(error);
        part.stop(cause);
        part.undo();
        // One that is overtaken for ever must not take the others with it.
        if (session.isLost || isLost(cause) || (again && mayRunAgain(cause))) throw cause;
        await session.command("rollback to item");
        answers.push(() => call.reject(explain(cause, this.#writer.address)));
      }
    }
    return answers;
  }

  async #rolledBack(session: Session, error: unknown): Promise<Failed> {
    if (!session.isLost && !isLost(error)) {
      try {
        await session.command("rollback");
        return { error, lost: false };
      } catch {
        // It is lost now; the server undoes what it was about.
      }
    }
    session.lose(error);
    return { error, lost: isLost(error) };
  }

  async #commit(session: Session, receipt: Receipt | null): Promise<"yes" | Failed> {
    try {
      const command = await session.command("commit");
      if (command === "COMMIT") return "yes";
      return { error: new Error(`The server answered the commit with ${command}.`), lost: false };
    } catch (error) {
      if (!session.isLost && !isLost(error)) return { error, lost: false };
      session.lose(error);
      // It may have happened: the database knows. Where nothing was written, nothing can be lost.
      return receipt === null ? "yes" : this.#resolve(receipt, error);
    }
  }

  /** What became of a transaction whose commit had no answer. Asked until somebody can tell. */
  async #resolve(receipt: Receipt, lost: unknown): Promise<"yes" | Failed> {
    const since = performance.now();
    for (let losses = 0; performance.now() - since < PATIENCE_FOR_COMMITS; losses++) {
      await this.#pause(losses);
      try {
        const session = await this.#writer.session();
        const committed = await this.#receipts.has(session, receipt);
        if (committed !== null) return committed ? "yes" : { error: lost, lost: true };
      } catch (error) {
        // Those that have come meanwhile need not wait for it as long as these do.
        this.#queue = this.#patient(this.#queue, error);
      }
    }
    return { error: unknown(lost), lost: false };
  }

  /** Those that have waited long enough for the server are told why; it is not its fault if this process was stopped before. */
  #patient(items: Item[], error: unknown): Item[] {
    const now = performance.now();
    for (const item of items) {
      item.calls = item.calls.filter(({ since, reject }) => {
        if (now - Math.max(since, this.#lostSince ?? since) < this.#options.patience) return true;
        reject(explain(error, this.#writer.address));
        return false;
      });
    }
    return items.filter(({ calls }) => calls.length > 0);
  }

  /** Real time, whatever clock is injected: it is the server that is waited for. */
  #pause(losses: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, backoff(losses, this.#options.random)));
  }
}

/** However long it takes a server to come back: the caller is owed an answer. */
const PATIENCE_FOR_COMMITS = 60_000;

interface Failed {
  error: unknown;
  /** The connection is gone, and with it everything that was not committed. */
  lost: boolean;
}

async function together(items: Item[], state: Transaction): Promise<(() => void)[]> {
  const values: Promise<unknown[]>[] = [];
  for (const item of items) {
    passPoint(item.operation, "begun");
    const value = item.run(state, inputsOf(item));
    values.push(value);
    if (item.quick) value.catch(() => {});
    else if (!(await succeeds(value))) break;
  }
  // If one fails, the others come to their end, too, before anything is undone.
  await Promise.allSettled(values);
  const results = await Promise.all(values);
  return items.flatMap(({ calls }, i) => calls.map((call, n) => () => call.resolve(results[i]?.[n])));
}

function succeeds(value: Promise<unknown>): Promise<boolean> {
  return value.then(
    () => true,
    () => false,
  );
}

function inputsOf({ calls }: Item): unknown[] {
  return calls.map(({ input }) => input);
}

function callsOf(items: readonly Item[]): number {
  return items.reduce((sum, { calls }) => sum + calls.length, 0);
}

/** What is known of a transaction while it runs. */
class Transaction implements Tx {
  readonly at: number | null;
  readonly news: Committed = { ready: new Set(), ended: [] };
  hasWritten = false;
  isLate = false;
  queues: readonly string[] = [];
  readonly #session: Session;
  readonly #options: GroupOptions;
  readonly #undo: (() => void)[] = [];
  readonly #keep: (() => void)[] = [];
  #now: Promise<number> | null = null;
  #failed: { error: unknown } | null = null;
  #stopped: { cause: unknown } | null = null;
  #sent = 0;
  #end: { receipt: Promise<Receipt | null>; sent: number } | null = null;
  #undone = false;
  readonly #epoch: number;
  readonly #assumed: Partial<Record<Counted, number>> = {};

  constructor(session: Session, options: GroupOptions, at: number | null = options.injected ? options.clock.now() : null) {
    this.#session = session;
    this.#options = options;
    this.#epoch = options.epoch.known;
    this.at = at;
  }

  now(): Promise<number> {
    this.#now ??=
      this.at === null
        ? this.rows<[number]>(`select ${this.#options.schema}.clock(null)`).then(([row]) => (row as [number])[0])
        : Promise.resolve(this.at);
    return this.#now;
  }

  readonly rows: Rows = <Row extends readonly unknown[]>(text: string, ...values: Value[]): Promise<Row[]> => {
    if (this.#stopped !== null) return Promise.reject(this.#stopped.cause);
    this.#sent++;
    const rows = this.#session.rows<Row>(text, values);
    // After the first error every other statement fails, too, for no reason of its own.
    rows.catch((error: unknown) => (this.#failed ??= { error }));
    return rows;
  };

  /**
   * Leaves the receipt, and sees whether what was assumed is still so: at the end, hence also when it was used. Null when
   * nothing was written. Sent ahead of the answers, it counts if nothing else was sent after it.
   */
  end(receipts: Receipts): Promise<Receipt | null> {
    if (this.#end?.sent !== this.#sent) {
      const receipt = this.#leave(receipts);
      this.#end = { receipt, sent: this.#sent };
    }
    return this.#end.receipt;
  }

  async #leave(receipts: Receipts): Promise<Receipt | null> {
    const batch = receipts.next();
    const { schema, epoch } = this.#options;
    const [row] = await this.rows<[string | null, number, number, number, boolean]>(
      `${receipts.leave()}
       select pg_current_xact_id_if_assigned()::text, lanes, settings, ${epoch.columns} from ${schema}.counter where id = 1`,
      batch,
    );
    const [xid, lanes, settings, ...found] = row as [string | null, number, number, number, boolean];
    epoch.check(this.#epoch, ...found);
    this.#check("lanes", lanes);
    this.#check("settings", settings);
    return xid === null ? null : { xid, batch };
  }

  /** It is about to be rolled back. What an item sent from here on would be done by itself, and stay. */
  stop(cause: unknown): void {
    this.#stopped ??= { cause };
  }

  assume(what: Counted, count: number): void {
    this.#check(what, count);
    this.#assumed[what] = count;
  }

  moved(what: Counted, from: number, to: number): void {
    this.#check(what, from);
    this.#assumed[what] = to;
  }

  #check(what: Counted, count: number): void {
    if ((this.#assumed[what] ?? count) === count) return;
    this.#options.onStale();
    throw new Overtaken(`The ${what} have changed.`);
  }

  cause(error: unknown): unknown {
    // What was known has been forgotten under it, and whatever went wrong may come of that.
    if (this.#options.epoch.known !== this.#epoch && !isLost(error)) return new Returned();
    return error instanceof Overtaken ? error : (this.#failed?.error ?? error);
  }

  onUndo(forget: () => void): void {
    if (this.#undone) forget();
    else this.#undo.push(forget);
  }

  onCommit(keep: () => void): void {
    this.#keep.push(keep);
  }

  wrote(): void {
    this.hasWritten = true;
  }

  ready(queue: string): void {
    this.news.ready.add(queue);
  }

  ended(job: JobKey, fence: Fence): void {
    this.news.ended.push({ job, fence });
  }

  undo(): void {
    this.#undone = true;
    for (const forget of this.#undo.splice(0)) forget();
  }

  keep(): void {
    for (const keep of this.#keep) keep();
  }

  /** One item's part: what it has to tell is held back until it is known to be done. */
  part(): Transaction {
    const part = new Transaction(this.#session, this.#options, this.at);
    part.isLate = this.isLate;
    part.queues = this.queues;
    return part;
  }

  join(whole: Transaction): void {
    if (this.hasWritten) whole.hasWritten = true;
    whole.isLate = this.isLate;
    whole.queues = this.queues;
    for (const queue of this.news.ready) whole.news.ready.add(queue);
    whole.news.ended.push(...this.news.ended);
    whole.#undo.push(...this.#undo);
    whole.#keep.push(...this.#keep);
    Object.assign(whole.#assumed, this.#assumed);
  }
}

function unknown(error: unknown): HoldfastError {
  return new HoldfastError(
    "COMMIT_UNKNOWN",
    "The connection was lost during the commit, and the server cannot tell whether it took effect.",
    "Look the job up before you try again; enqueue with an `id` to make trying again safe.",
    { cause: error },
  );
}

/** The answers to calls that were made as one: each has as many as it asked for. */
export function cut<T>(answers: T[], batches: readonly (readonly unknown[])[]): T[][] {
  if (batches.length === 1) return [answers];
  let from = 0;
  return batches.map(({ length }) => answers.slice(from, (from += length)));
}
