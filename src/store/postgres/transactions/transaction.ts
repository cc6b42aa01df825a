import type { Clock } from "../../../core/text/duration.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import type { NewAuditEntry } from "../../audit.ts";
import type { Operation } from "../../points.ts";
import type { Tx as AnyTx } from "../../sql/script.ts";
import type { Rows, Value } from "../connection/driver.ts";
import { type Epoch, DatabaseReverted } from "../connection/epoch.ts";
import { codeOf, isLost, RerunTransaction } from "../connection/faults.ts";
import { REFUSED } from "../connection/session-settings.ts";
import type { Session } from "../connection/session.ts";
import { ScriptTx, type Statements } from "../scripts.ts";
import { type CallHints, PipelinedBegin } from "./write-queue.ts";
import { Stalled } from "./mutexes.ts";
import type { Receipts, SingleStatement } from "./receipts.ts";

export interface Tx extends AnyTx {
  /** The injected clock's time; null: the database's clock counts. */
  readonly at: number | null;
  readonly tallyShare: number;
  now(): Promise<number>;
  readonly rows: Rows;
  /**
   * Relies on lanes or settings having this count of changes; otherwise the transaction runs again. `next`: the count after a
   * change that this transaction has made.
   */
  assume(what: Counted, count: number, next?: number): void;
  /** It holds rows, which come after the locks of queues: it waits for no queue lock any more. */
  isLate: boolean;
  queues: readonly string[];
  onUndo(forget: () => void): void;
  onCommit(keep: () => void): void;
  /** Adds an audit entry when everything else is done: the head of the audit is locked last. */
  atLast(entry: NewAuditEntry): void;
}

export type Counted = "lanes" | "settings";

export interface SingleCall<T> {
  statement: SingleStatement;
  values: Value[];
  read: (rows: readonly (readonly unknown[])[]) => T | Promise<T> | null;
}

export interface TransactionOptions {
  clock: Clock;
  injected: boolean;
  schema: string;
  statements: Statements;
  epoch: Epoch;
  tallyShare: () => number;
  onStale: () => void;
}

/** A statement that locks rows. Mutexes come before any row, so they do not count. */
const LOCKS_ROWS = /^(?!.*\.mutexes\b).*\b(insert into|update|delete from)\b/s;

export class Transaction extends ScriptTx implements Tx {
  readonly at: number | null;
  readonly tallyShare: number;
  readonly committed = { ready: new Set<string>(), ended: [] as { job: JobKey; fence: Fence }[] };
  readonly entries: NewAuditEntry[] = [];
  hasWritten = false;
  isCommitted = false;
  isLate = false;
  queues: readonly string[] = [];
  readonly #session: Session;
  readonly #options: TransactionOptions;
  #pipelined: PipelinedBegin | null = new PipelinedBegin();
  #begun: Promise<void> = Promise.resolve();
  readonly #undo: (() => void)[] = [];
  readonly #keep: (() => void)[] = [];
  #now: Promise<number> | null = null;
  #failed: { error: unknown } | null = null;
  #stopped: { cause: unknown } | null = null;
  #sent = 0;
  batch = 0;
  #end: { receipt: Promise<number | null>; sent: number } | null = null;
  #undone = false;
  readonly #epoch: number;
  readonly #assumed: Partial<Record<Counted, number>> = {};

  constructor(session: Session, options: TransactionOptions) {
    super(options.statements);
    this.#session = session;
    this.#options = options;
    this.#epoch = options.epoch.known;
    this.tallyShare = options.tallyShare();
    this.at = options.injected ? options.clock.now() : null;
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
    this.isLate ||= LOCKS_ROWS.test(text);
    const rows = this.#pipelined === null ? this.#send<Row>(text, values) : this.#pipelined.add<Row>(text, values);
    // After the first error every other statement fails, too.
    rows.catch((error: unknown) => (this.#failed ??= { error }));
    return rows;
  };

  query(text: string, values: unknown[] = []): Promise<unknown[]> {
    return this.#session.query(text, values);
  }

  command(text: string): Promise<string> {
    return this.#session.command(text);
  }

  get isLost(): boolean {
    return this.#session.isLost;
  }

  begin(begin: readonly string[]): Promise<void> {
    const pipelined = this.#pipelined;
    this.#pipelined = null;
    if (pipelined !== null) this.#begun = pipelined.send(this.#session, begin);
    return this.#begun;
  }

  async sendSingle(receipts: Receipts, { statement, values }: SingleCall<unknown>): Promise<unknown[][]> {
    const batch = (this.batch = receipts.next());
    const { lanes = null, settings = null } = this.#assumed;
    const text = receipts.sealed(statement);
    const rows = await this.#session.rows<unknown[]>(text, [...values, batch, this.#epoch, lanes, settings]);
    this.isCommitted = true;
    return rows;
  }

  async #send<Row extends readonly unknown[]>(text: string, values: Value[]): Promise<Row[]> {
    await this.#begun;
    return this.#session.rows<Row>(text, values);
  }

  /**
   * Leaves the receipt, and checks the assumptions. Null if nothing was written. Sent ahead of the answers, it counts if
   * nothing was sent after it.
   */
  end(receipts: Receipts): Promise<number | null> {
    if (this.#end?.sent !== this.#sent) {
      const receipt = this.#leave(receipts);
      this.#end = { receipt, sent: this.#sent };
    }
    return this.#end.receipt;
  }

  async #leave(receipts: Receipts): Promise<number | null> {
    const batch = (this.batch = receipts.next());
    const { lanes = null, settings = null } = this.#assumed;
    const [row] = await this.rows<[boolean]>(...receipts.end(batch, { epoch: this.#epoch, lanes, settings }));
    return (row as [boolean])[0] ? batch : null;
  }

  /** From here on the transaction is rolled back: a later statement would run outside of it, and stay. */
  stop(cause: unknown): void {
    this.#stopped ??= { cause };
  }

  assume(what: Counted, count: number, next = count): void {
    if ((this.#assumed[what] ?? count) !== count) throw this.#stale();
    if (this.#assumed[what] !== next) this.#end = null;
    this.#assumed[what] = next;
  }

  #stale(): RerunTransaction {
    this.#options.onStale();
    return new RerunTransaction("What was known of queues has changed.");
  }

  cause(error: unknown): unknown {
    // Caches were cleared under it, and any error may come from that.
    if (this.#options.epoch.known !== this.#epoch && !isLost(error)) return new DatabaseReverted();
    if (error instanceof RerunTransaction) return error;
    const cause = this.#failed?.error ?? error;
    switch (codeOf(cause)) {
      case REFUSED.reverted:
        return new DatabaseReverted();
      case REFUSED.stale:
        return this.#stale();
      case REFUSED.moved:
        return new RerunTransaction("A job was changed while it was claimed.", { soon: true });
      case REFUSED.partial:
        return new RerunTransaction("More follows from a job's end than one statement can write.", { soon: true });
      case "55P03":
        return this.queues.length > 0 ? new Stalled() : cause;
      default:
        return cause;
    }
  }

  onUndo(forget: () => void): void {
    if (this.#undone) forget();
    else this.#undo.push(forget);
  }

  onCommit(keep: () => void): void {
    this.#keep.push(keep);
  }

  atLast(entry: NewAuditEntry): void {
    this.entries.push(entry);
  }

  wrote(): void {
    this.hasWritten = true;
  }

  ready(queue: string): void {
    this.committed.ready.add(queue);
  }

  ended(job: JobKey, fence: Fence): void {
    this.committed.ended.push({ job, fence });
  }

  undo(): void {
    this.#undone = true;
    for (const forget of this.#undo.splice(0)) forget();
  }

  keep(): void {
    for (const keep of this.#keep) keep();
  }
}

/** How a part of the store reads and writes: each write is one atomic unit, which may share its commit with others. */
export interface Access {
  at(): number | null;
  readonly read: Rows;
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints?: Pick<CallHints<T>, "wants" | "row">): Promise<T>;
  /** Reads in its turn among the writes, also where writes are rejected. */
  readInTurn<T>(operation: Operation, run: (tx: Tx) => Promise<T>): Promise<T>;
}
