import { HoldfastError } from "../../../core/text/errors.ts";
import type { NewAuditEntry } from "../../audit.ts";
import { type Operation, passPoint } from "../../points.ts";
import type { Durability } from "../../store.ts";
import {
  reconnectDelay,
  closedError,
  codeOf,
  explain,
  isLost,
  LOCK_TIMEOUT,
  mayRunAgain,
  RerunTransaction,
} from "../connection/faults.ts";
import type { Session, Writer } from "../connection/session.ts";
import type { Rows } from "../connection/driver.ts";
import { DatabaseReverted } from "../connection/server-state.ts";
import { beginning } from "../connection/session-settings.ts";
import type { ChangeFeed } from "../change-feed.ts";
import { Stalled } from "./mutexes.ts";
import { type Outcome, Receipts, Transaction, type TransactionOptions, type Tx } from "./transaction.ts";
import {
  type CallHints,
  callsOf,
  halvesOf,
  singlesOf,
  namedRows,
  isClaimOrSettle,
  type Item,
  type SingleRoute,
  together,
  WriteQueue,
} from "./write-queue.ts";

export interface GroupCommitOptions extends TransactionOptions {
  patience: number;
  random: () => number;
  durability: Durability;
  changes: ChangeFeed;
  onRevert: () => void;
  /** Takes the locks that an earlier try needed, and the locks of these names, before anything else. */
  first: (tx: Tx, names: readonly string[]) => Promise<void> | null;
  /** Writes audit entries after everything else, because all writers of the audit lock its head. */
  last: (tx: Tx, entries: readonly NewAuditEntry[]) => Promise<void>;
  onStall: () => void;
}

const MAX_TRIES = 20;

// Calls made in one tick, or during a transaction, share the next one: a commit costs as much as a hundred rows. The commit is
// sent after every answer: a connection lost before it changed nothing; one lost with it left all, and the receipt, or nothing.
export class GroupCommit {
  readonly #writer: Writer;
  readonly #options: GroupCommitOptions;
  readonly #receipts: Receipts;
  readonly #begin: readonly string[];
  readonly #waiting = new WriteQueue();
  #underWay: Item[] = [];
  #running = false;
  #lostSince: number | null = null;
  #hasReverted = false;
  #closed = false;
  #idle: (() => void)[] = [];

  constructor(writer: Writer, options: GroupCommitOptions) {
    this.#writer = writer;
    this.#options = options;
    this.#receipts = new Receipts(options.schema, options.epoch, options.durability);
    this.#begin = beginning(options.durability, writer.pooled);
  }

  /** Submits a call. `run` may run more than once, each time after everything it did was undone. */
  submit<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints: CallHints<T> = {}): Promise<T> {
    return this.#add<T>(undefined, () => this.#waiting.add(operation, run, hints), hints.owed);
  }

  /** Submits a call that joins the one before it, if that is of the same operation and has not begun. */
  submitJoined<Input, T>(
    operation: Operation,
    input: Input,
    run: (tx: Tx, inputs: Input[]) => Promise<T[]>,
    { rows = 1, single, quick = true }: { rows?: number; single: SingleRoute<Input, T> | null; quick?: boolean },
  ): Promise<T> {
    return this.#add<T>(input, () => this.#waiting.join(operation, run, { rows, single, quick }));
  }

  #add<T>(input: unknown, item: () => Item, owed = false): Promise<T> {
    if (this.#closed && !owed) return Promise.reject(closedError());
    return new Promise<T>((resolve, reject) => {
      item().calls.push({ input, resolve: resolve as (value: unknown) => void, reject, since: performance.now() });
      if (this.#running) return;
      this.#running = true;
      process.nextTick(() => void this.#drain());
    });
  }

  /** Says whether its claims and settles, which never touch the same jobs, are single steps. Null: there are other calls. */
  get claimsAndSettles(): "quick" | "long" | null {
    const items = [...this.#underWay, ...this.#waiting.items];
    if (!items.every(isClaimOrSettle)) return null;
    return items.every(({ quick }) => quick) ? "quick" : "long";
  }

  get isIdle(): boolean {
    return !this.#running;
  }

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

  async #run(items: Item[]): Promise<void> {
    for (let tries = 0, losses = 0, stalls = 0; ;) {
      const outcome = await this.#transact(items);
      this.#lostSince = outcome !== "done" && outcome.lost ? (this.#lostSince ?? performance.now()) : null;
      if (outcome === "done") return;
      if (outcome.lost) {
        items = this.#patient(items, outcome.error);
        if (items.length === 0) return;
        await this.#pause(losses++);
      } else if (outcome.error instanceof Stalled) {
        // Only the item that has to wait does so, and it holds no lock that another item needs.
        if (items.length > 1) return this.#runEach(items.map((item) => [item]));
        this.#options.onStall();
        await this.#pause(stalls++);
      } else if (mayRunAgain(outcome.error) && ++tries < MAX_TRIES) {
        if (!(outcome.error instanceof RerunTransaction && outcome.error.soon)) await this.#pause(tries > 1 ? 1 : 0);
      } else if (callsOf(items) > 1 && !outcome.unknown) {
        // Only the call that fails is rejected: halving finds it. A call that waits for a lock would make each half wait for it.
        return this.#runEach(codeOf(outcome.error) === LOCK_TIMEOUT ? singlesOf(items) : halvesOf(items));
      } else {
        for (const { calls } of items) for (const call of calls) call.reject(explain(outcome.error, this.#writer.address));
        return;
      }
    }
  }

  async #runEach(parts: readonly Item[][]): Promise<void> {
    for (const part of parts) await this.#run(part);
  }

  async #transact(items: Item[]): Promise<"done" | Failed> {
    let session: Session;
    try {
      session = this.#writer.current ?? (await this.#writer.session());
      // No transaction that relies on the old state is under way now.
      if (this.#hasReverted) {
        await this.#options.epoch.enter(session, this.#options.onRevert);
        this.#hasReverted = false;
      }
    } catch (error) {
      return { error, lost: isLost(error) };
    }
    const state = new Transaction(session, this.#options);
    let receipt: number | null;
    let answer: () => void;
    try {
      const atOnce = items.every(({ quick }) => quick);
      const first = this.#options.first(state, namedRows(items));
      first?.catch(() => {});
      const done = first === null ? await this.#runSingle(session, state, items) : null;
      if (done !== null) return done;
      if (!atOnce || first !== null) await state.begin(this.#begin);
      await first;
      const run = together(items, state);
      run.catch(() => {});
      // If all is sent at once, the end goes with it, and so does the begin.
      if (atOnce) void state.end(this.#receipts).catch(() => {});
      await state.begin(this.#begin);
      answer = await run;
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
    this.#committed(items, state, isNotified && !session.isLost, answer);
    return "done";
  }

  async #runSingle(session: Session, state: Transaction, items: readonly Item[]): Promise<"done" | Failed | null> {
    const [{ operation, single, calls }] = items as [Item];
    if (items.length > 1 || single === null || this.#writer.pooled) return null;
    const inputs = calls.map(({ input }) => input);
    const call = await single.call(state, inputs, (text, ...values) => session.rows(text, values));
    if (call === null) return null;
    passPoint(operation, "begun");
    passPoint(operation, "written");
    const sent = state.sendSingle(this.#receipts, call);
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
      state.wrote();
    }
    const answer = (): void => calls.forEach(({ resolve }, i) => resolve(answers[i]));
    this.#committed(items, state, isNotified && state.isCommitted, answer);
    return "done";
  }

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
    let isRolledBack = false;
    if (!session.isLost && !isLost(cause)) {
      isRolledBack = await session.command("rollback").then(
        () => true,
        () => false,
      );
    }
    if (!isRolledBack) session.lose(cause);
    state.undo();
    return { error: cause, lost: isLost(cause) };
  }

  #causeOf(state: Transaction, error: unknown): unknown {
    const cause = state.cause(error);
    this.#hasReverted ||= cause instanceof DatabaseReverted;
    return cause;
  }

  #committed(items: readonly Item[], state: Transaction, isNotified: boolean, answer: () => void): void {
    for (const item of items) passPoint(item.operation, "committed");
    state.keep();
    this.#underWay = [];
    if (state.hasWritten) this.#options.changes.committed(state.committed, isNotified);
    // The next transaction is sent before the callers continue, so that the server does not wait for them.
    if (this.#waiting.isEmpty) answer();
    else process.nextTick(answer);
  }

  async #commit(session: Session, receipt: number | null): Promise<"yes" | Failed> {
    try {
      const command = await session.command("commit");
      if (command === "COMMIT") return "yes";
      return { error: new Error(`The server answered the commit with ${command}.`), lost: false };
    } catch (error) {
      if (!session.isLost && !isLost(error)) return { error, lost: false };
      session.lose(error);
      // The commit may have taken effect: the receipt tells. If nothing was written, nothing can be lost.
      const resolved = receipt === null ? null : await this.#resolve(receipt, error);
      return resolved !== null && "error" in resolved ? resolved : "yes";
    }
  }

  /** Asks until the server can tell whether a commit without an answer took effect, and what its answer would have been. */
  async #resolve(
    receipt: number,
    lost: unknown,
    recall: (rows: Rows, outcome: Outcome) => Promise<unknown[]> = () => Promise.resolve([]),
  ): Promise<{ answers: unknown[] } | Failed> {
    const since = performance.now();
    for (let losses = 0; performance.now() - since < COMMIT_PATIENCE_MS; losses++) {
      await this.#pause(losses);
      try {
        const session = await this.#writer.session();
        const outcome = await this.#receipts.ask(session, receipt);
        if (outcome?.committed === false) return { error: lost, lost: true };
        if (outcome !== null) return { answers: await recall((text, ...values) => session.rows(text, values), outcome) };
      } catch (error) {
        this.#waiting.keep((items) => this.#patient(items, error));
      }
    }
    return { error: unknown(lost), lost: false, unknown: true };
  }

  /** Rejects calls that have waited long enough for the server; time before the loss does not count. */
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

  #pause(losses: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, reconnectDelay(losses, this.#options.random)));
  }
}

/** A caller whose commit is in doubt waits longer than others, because it is owed an answer. */
const COMMIT_PATIENCE_MS = 60_000;

interface Failed {
  error: unknown;
  lost: boolean;
  /** True if it may have been committed, so that running it again could do it twice. */
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
