import { HoldfastError } from "../../../core/text/errors.ts";
import type { NewAuditEntry } from "../../audit.ts";
import { type Operation, passPoint } from "../../points.ts";
import type { Durability } from "../../store.ts";
import { backoff } from "../connection/faults.ts";
import type { Writer } from "../connection/connections.ts";
import type { Rows } from "../connection/driver.ts";
import { DatabaseReverted } from "../connection/epoch.ts";
import { closedError, explain, isLost, mayRunAgain, RerunTransaction } from "../connection/faults.ts";
import { beginning } from "../connection/session-settings.ts";
import type { Session } from "../connection/session.ts";
import type { ChangeFeed } from "../change-feed.ts";
import { Stalled } from "./mutexes.ts";
import { type Outcome, Receipts } from "./receipts.ts";
import { Transaction, type TransactionOptions, type Tx } from "./transaction.ts";
import {
  type Call,
  callsOf,
  type CallHints,
  inputsOf,
  isClaimOrSettle,
  type Item,
  type SingleRoute,
  together,
  WriteQueue,
  wantedBy,
} from "./write-queue.ts";

export interface GroupCommitOptions extends TransactionOptions {
  /** Until this much has passed, a server that is gone is waited for; in milliseconds. */
  patience: number;
  random: () => number;
  durability: Durability;
  /** Hears of each commit. */
  changes: ChangeFeed;
  /** Nothing that was known of the database is so any more. */
  onRevert: () => void;
  /** Comes before everything else: what an earlier try has shown to be needed, and the locks of these queues. */
  first: (tx: Tx, queues: readonly string[]) => Promise<void> | null;
  /** Comes after everything else: what is written into the audit, whose head everybody wants who does. */
  last: (tx: Tx, entries: readonly NewAuditEntry[]) => Promise<void>;
  /** It waited for too long for something while it held what others need, and runs again. */
  onStall: () => void;
}

/** How often a transaction that was overtaken, or chosen to end a deadlock, runs again. */
const TRIES = 20;
/**
 * What is called before anything else is heard, and while the last transaction is on its way, becomes one transaction,
 * because a commit costs a hundred times what a row costs. A promise settles only after the commit.
 *
 * The commit is sent when every answer is there, together with the receipt. So a connection that is lost before has
 * changed nothing, and one that is lost with the commit has either left its receipt or changed nothing.
 */
export class GroupCommit {
  readonly #writer: Writer;
  readonly #options: GroupCommitOptions;
  readonly #receipts: Receipts;
  readonly #begin: readonly string[];
  readonly #waiting = new WriteQueue();
  #underWay: Item[] = [];
  #running = false;
  /** Since when the server cannot be reached; null: it can. */
  #lostSince: number | null = null;
  /** The database has gone back, and has to be learnt anew. */
  #hasReverted = false;
  #closed = false;
  #idle: (() => void)[] = [];

  constructor(writer: Writer, options: GroupCommitOptions) {
    this.#writer = writer;
    this.#options = options;
    this.#receipts = new Receipts(options.schema, options.epoch, options.durability);
    this.#begin = beginning(options.durability, writer.pooled);
  }

  /** `run` may run more than once, after everything it did was undone. */
  submit<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints: CallHints<T> = {}): Promise<T> {
    return this.#add<T>(undefined, () => this.#waiting.add(operation, run, hints), hints.owed);
  }

  /** `run` sends everything at once, and for all calls together that are made one after the other. */
  submitQuick<Input, T>(
    operation: Operation,
    input: Input,
    run: (tx: Tx, inputs: Input[]) => Promise<T[]>,
    { rows = 1, single = null, owed = false }: { rows?: number; single?: SingleRoute<Input, T> | null; owed?: boolean } = {},
  ): Promise<T> {
    return this.#add<T>(input, () => this.#waiting.addQuick(operation, run, { rows, single }), owed);
  }

  #add<T>(input: unknown, item: () => Item, owed = false): Promise<T> {
    if (this.#closed && !owed) return Promise.reject(closedError());
    return new Promise<T>((resolve, reject) => {
      item().calls.push({ input, resolve: resolve as (value: unknown) => void, reject, since: performance.now() });
      if (this.#running) return;
      this.#running = true;
      // After everybody else who has something to say now.
      process.nextTick(() => void this.#drain());
    });
  }

  /** Whether it has nothing to do but claims and ends of jobs, which have nothing to do with each other. */
  get onlyClaimsAndSettles(): boolean {
    return this.#underWay.every(isClaimOrSettle) && this.#waiting.areClaimsOrSettles;
  }

  get isIdle(): boolean {
    return !this.#running;
  }

  /** Resolves when nothing is waiting for its commit; nothing is taken any more, but what is owed. */
  close(): Promise<void> {
    this.#closed = true;
    if (!this.#running) return Promise.resolve();
    return new Promise((resolve) => this.#idle.push(resolve));
  }

  async #drain(): Promise<void> {
    while (!this.#waiting.isEmpty) {
      const items = this.#waiting.take();
      this.#underWay = items;
      await this.#run(items);
    }
    this.#underWay = [];
    this.#running = false;
    for (const resolve of this.#idle.splice(0)) resolve();
  }

  /** Every item has its answer when this resolves. */
  async #run(items: Item[]): Promise<void> {
    let apart = false;
    for (let tries = 0, losses = 0, stalls = 0; ;) {
      const outcome = await this.#transact(items, apart, tries < TRIES);
      this.#lostSince = outcome !== "done" && outcome.lost ? (this.#lostSince ?? performance.now()) : null;
      if (outcome === "done") return;
      if (outcome.lost) {
        items = this.#patient(items, outcome.error);
        if (items.length === 0) return;
        await this.#pause(losses++);
      } else if (outcome.error instanceof Stalled) {
        // Only the one that has to wait does, and it holds no lock that another one of them needed.
        if (items.length > 1) return void (await this.#runEach(items));
        this.#options.onStall();
        await this.#pause(stalls++);
      } else if (mayRunAgain(outcome.error) && ++tries < TRIES) {
        if (!(outcome.error instanceof RerunTransaction && outcome.error.soon)) await this.#pause(tries > 1 ? 1 : 0);
      } else if (!apart && callsOf(items) > 1 && !outcome.unknown) {
        apart = true;
        items = items.flatMap((item) => item.calls.map((call): Item => ({ ...item, calls: [call] })));
      } else {
        for (const { calls } of items) for (const call of calls) call.reject(explain(outcome.error, this.#writer.address));
        return;
      }
    }
  }

  async #runEach(items: Item[]): Promise<void> {
    for (const item of items) await this.#run([item]);
  }

  /** One try. Savepoints are only needed to tell a bad item from its neighbours, so the first goes without. */
  async #transact(items: Item[], apart: boolean, again: boolean): Promise<"done" | Failed> {
    let session: Session;
    try {
      session = this.#writer.current ?? (await this.#writer.session());
      // Not before: now no transaction is under way that relies on what was known.
      if (this.#hasReverted) {
        await this.#options.epoch.enter(session, this.#options.onRevert);
        this.#hasReverted = false;
      }
    } catch (error) {
      return { error, lost: isLost(error) };
    }
    const state = new Transaction(session, this.#options);
    let receipt: number | null;
    let answers: (() => void)[];
    try {
      const atOnce = !apart && items.every(({ quick }) => quick);
      const begin = this.#begin;
      // One that is alone takes them when it comes to it, along with what it reads then.
      const first = this.#options.first(state, items.length > 1 ? wantedBy(items) : []);
      // It may come to nothing with the beginning, which says why.
      first?.catch(() => {});
      const done = first === null && !apart ? await this.#alone(session, state, items) : null;
      if (done !== null) return done;
      if (!atOnce || first !== null) await state.begin(begin);
      await first;
      const run = apart ? this.#eachInSavepoint(items, state, session, again) : together(items, state);
      run.catch(() => {});
      // Where all is sent at once, the end goes with it, and so does the beginning.
      if (atOnce) void state.end(this.#receipts).catch(() => {});
      await state.begin(begin);
      answers = await run;
      if (state.entries.length > 0) await this.#options.last(state, state.entries);
      receipt = await state.end(this.#receipts);
      for (const item of items) passPoint(item.operation, "written");
    } catch (error) {
      return this.#undone(session, state, error);
    }
    const commit = this.#commit(session, receipt);
    const isNotified = this.#notify(session, state);
    const committed = await commit;
    if (committed !== "yes") {
      state.undo();
      return committed;
    }
    this.#committed(items, state, isNotified && !session.isLost, answers);
    return "done";
  }

  /** A transaction that is one statement; null: it has to be more. */
  async #alone(session: Session, state: Transaction, items: readonly Item[]): Promise<"done" | Failed | null> {
    const [{ operation, single, calls }] = items as [Item];
    if (items.length > 1 || single === null || this.#writer.pooled) return null;
    const inputs = calls.map(({ input }) => input);
    const call = await single.call(state, inputs, (text, ...values) => session.rows(text, values));
    if (call === null) return null;
    passPoint(operation, "begun");
    passPoint(operation, "written");
    const sent = state.alone(this.#receipts, call);
    const isNotified = this.#notify(session, state);
    let answers: unknown[];
    try {
      const read = call.read(await sent);
      if (read === null) return null;
      answers = await read;
    } catch (error) {
      // A statement that failed by itself has changed nothing.
      if (!state.isCommitted && !session.isLost && !isLost(error)) {
        state.undo();
        return { error: this.#causeOf(state, error), lost: false };
      }
      if (isLost(error)) session.lose(error);
      const found = await this.#resolve(state.batch, error, (rows, outcome) => single.recall(rows, outcome, inputs));
      if ("error" in found) {
        state.undo();
        return found;
      }
      answers = found.answers;
      // It has left its receipt, so it has.
      state.wrote();
    }
    const resolves = calls.map(
      ({ resolve }, i) =>
        () =>
          resolve(answers[i]),
    );
    this.#committed(items, state, isNotified && state.isCommitted, resolves);
    return "done";
  }

  /** Sends a notification right behind the commit, and does not wait for it. False: none was sent. */
  #notify(session: Session, { hasWritten, committed }: Transaction): boolean {
    const { notifier } = this.#options.changes;
    const statement = hasWritten ? notifier.behind(committed) : null;
    if (statement === null) return false;
    const [text, ...values] = statement;
    session.rows(text, values).then(
      (rows) => notifier.answered({ rows }),
      (error: unknown) => notifier.answered({ error }),
    );
    return true;
  }

  async #undone(session: Session, state: Transaction, error: unknown): Promise<Failed> {
    const cause = this.#causeOf(state, error);
    state.stop(cause);
    const failed = await this.#rolledBack(session, cause);
    state.undo();
    return failed;
  }

  #causeOf(state: Transaction, error: unknown): unknown {
    const cause = state.cause(error);
    this.#hasReverted ||= cause instanceof DatabaseReverted;
    return cause;
  }

  #committed(items: readonly Item[], state: Transaction, isNotified: boolean, answers: readonly (() => void)[]): void {
    for (const item of items) passPoint(item.operation, "committed");
    state.keep();
    this.#underWay = [];
    // The subscribers first: callers continue with what has changed.
    if (state.hasWritten) this.#options.changes.committed(state.committed, isNotified);
    const answerAll = (): void => answers.forEach((answer) => answer());
    // And the server before all of them, where there is more for it: what they go on with would keep it waiting.
    if (this.#waiting.isEmpty) answerAll();
    else process.nextTick(answerAll);
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

  async #commit(session: Session, receipt: number | null): Promise<"yes" | Failed> {
    try {
      const command = await session.command("commit");
      if (command === "COMMIT") return "yes";
      return { error: new Error(`The server answered the commit with ${command}.`), lost: false };
    } catch (error) {
      if (!session.isLost && !isLost(error)) return { error, lost: false };
      session.lose(error);
      // It may have happened: the database knows. Where nothing was written, nothing can be lost.
      const resolved = receipt === null ? null : await this.#resolve(receipt, error);
      return resolved !== null && "error" in resolved ? resolved : "yes";
    }
  }

  /** What became of a transaction whose commit had no answer, and what that would have been. Asked until the server can tell. */
  async #resolve(
    receipt: number,
    lost: unknown,
    recall: (rows: Rows, outcome: Outcome) => Promise<unknown[]> = () => Promise.resolve([]),
  ): Promise<{ answers: unknown[] } | Failed> {
    const since = performance.now();
    for (let losses = 0; performance.now() - since < PATIENCE_FOR_COMMITS; losses++) {
      await this.#pause(losses);
      try {
        const session = await this.#writer.session();
        const outcome = await this.#receipts.ask(session, receipt);
        if (outcome?.committed === false) return { error: lost, lost: true };
        if (outcome !== null) return { answers: await recall((text, ...values) => session.rows(text, values), outcome) };
      } catch (error) {
        // Those that have come meanwhile need not wait for it as long as these do.
        this.#waiting.keep((items) => this.#patient(items, error));
      }
    }
    return { error: unknown(lost), lost: false, unknown: true };
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
  /** It may have been committed: what is made again would be made twice. */
  unknown?: boolean;
}

function unknown(error: unknown): HoldfastError {
  return new HoldfastError(
    "COMMIT_UNKNOWN",
    "The connection was lost during the commit, and the server cannot tell whether it took effect.",
    "Call jobs.get before you try again; with an `id`, enqueueing again is safe.",
    { cause: error },
  );
}
