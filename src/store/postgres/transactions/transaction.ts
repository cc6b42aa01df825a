import type { Clock } from "../../../core/text/duration.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import type { NewAuditEntry } from "../../audit.ts";
import type { Operation } from "../../points.ts";
import type { Tx as AnyTx } from "../../sql/script.ts";
import type { Rows, Value } from "../connection/driver.ts";
import { DatabaseReverted, type Epoch } from "../connection/server-state.ts";
import { codeOf, isLost, LOCK_TIMEOUT, RerunTransaction } from "../connection/faults.ts";
import { REFUSED } from "../connection/session-settings.ts";
import type { Session } from "../connection/session.ts";
import { ScriptTx, type Statements } from "../scripts.ts";
import { type CallHints, PipelinedBegin } from "./write-queue.ts";
import { Stalled } from "./mutexes.ts";
import { randomUUID } from "node:crypto";
import type { Durability } from "../../store.ts";

export interface Tx extends AnyTx {
  /** Time of the injected clock; null if the database's clock counts. */
  readonly at: number | null;
  readonly tallyShare: number;
  now(): Promise<number>;
  readonly rows: Rows;
  /** Makes the transaction run again unless lanes or settings have this count of changes. `next`: the count after its change. */
  assume(what: Counted, count: number, next?: number): void;
  /** True if it holds rows, which come after the locks of queues. Then it waits for no queue lock any more. */
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

/** Matches a statement that locks rows. Mutexes come before any row, so they do not count. */
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

  /** Leaves the receipt and checks the assumptions; null if nothing was written. One sent ahead counts if it stays last. */
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

  /** Rejects further statements of a transaction that is rolled back: they would run outside of it, and stay. */
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
    // Caches were cleared during the transaction, and any error may come from that.
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
      case LOCK_TIMEOUT:
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
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints?: Pick<CallHints<T>, "row">): Promise<T>;
  /** Reads in its turn among the writes, even if writes are rejected. */
  readInTurn<T>(operation: Operation, run: (tx: Tx) => Promise<T>): Promise<T>;
}

const RECEIPTS_KEPT = "1 day";
/** How long one question about a lost commit waits for a transaction that has not ended, in milliseconds. */
const ASK_WAIT_MS = 1_000;

interface Assumptions {
  epoch: number;
  lanes: number | null;
  settings: number | null;
}

/** A statement that is a transaction by itself, with the receipt as a part of it. */
export interface SingleStatement {
  parts: string;
  values: number;
  /** Selects the columns of `Made`, one row, by which a lost answer is found again. */
  made: string;
  wrote: string;
  /** The settings count that is compared; by default that of the statement's snapshot. */
  settings?: string;
  /** Selects the answer. One of its rows, or all of them, contain the verdict, which rejects the statement. */
  answer: (verdict: string) => string;
}

export interface Made {
  made: number | null;
  madeAt: number | null;
  keys: string | null;
}

export interface Outcome extends Made {
  committed: boolean;
}

// One row for each handle tells whether a commit without an answer took effect. Asking closes its number, or the server might
// commit the lost transaction later. The xid would not do, because after a crash the server may give it to another transaction.
export class Receipts {
  readonly #handle = randomUUID();
  readonly #sql: Record<"end" | "endFirst" | "close", string>;
  readonly #sealed = new Map<SingleStatement, string>();
  readonly #seal: (statement: SingleStatement) => string;
  #batch = 0;
  #isFirst = true;

  constructor(s: string, epoch: { isGone: (known: string) => string }, durability: Durability) {
    const written = "pg_current_xact_id_if_assigned() is not null";
    const receipt = (batch: string, made: string) => `
      receipt as (
        insert into ${s}.receipts as old (handle, batch, made, made_at, keys)
        select '${this.#handle}', ${batch}::bigint, ${made}
        on conflict (handle) do update
        set batch = excluded.batch, made = excluded.made, made_at = excluded.made_at, keys = excluded.keys, at = excluded.at
        where old.closed < excluded.batch
        returning 1)`;
    // `synchronous_commit` was set once for the connection, which an undeclared pooler may have given to another client.
    const unsynced =
      durability === "power" ? `when current_setting('synchronous_commit') <> 'on' then ${s}.refuse('${REFUSED.unsynced}')` : "";
    const refusal = (wrote: string, counted: string, [known, lanes, settings]: readonly string[]) => `case ${unsynced}
        when ${epoch.isGone(`${known}::bigint`)} then ${s}.refuse('${REFUSED.reverted}')
        when lanes <> ${lanes}::integer or ${counted} <> ${settings}::bigint then ${s}.refuse('${REFUSED.stale}')
        when ${wrote} and not exists (select 1 from receipt) then ${s}.refuse('${REFUSED.closed}') end`;
    const nothing = `null, null, null where ${written}`;
    const sweep = `
      swept as (
        delete from ${s}.receipts where ${written} and handle in (
          select handle from ${s}.receipts where at < now() - interval '${RECEIPTS_KEPT}' limit 100 for update skip locked))`;
    const end = (...parts: string[]) => `
      with ${parts.join()}
      select ${written}, ${refusal(written, "settings", ["$2", "$3", "$4"])}
      from ${s}.counter where id = 1`;
    this.#seal = ({ parts, values, made, wrote, settings = "settings", answer }) => {
      const [batch, ...known] = [1, 2, 3, 4].map((n) => `$${values + n}`) as [string, ...string[]];
      const verdict = refusal(wrote, settings, known);
      return `
        with ${parts}, ${receipt(batch, `${made} where ${wrote}`)}
        ${answer(`(select ${verdict} from ${s}.counter where id = 1)`)}`;
    };
    this.#sql = {
      end: end(receipt("$1", nothing)),
      endFirst: end(receipt("$1", nothing), sweep),
      close: `
        insert into ${s}.receipts as old (handle, closed) values ('${this.#handle}', $1::bigint)
        on conflict (handle) do update set closed = greatest(old.closed, excluded.closed) returning batch, made, made_at, keys`,
    };
  }

  next(): number {
    return ++this.#batch;
  }

  /** Returns the last statement: it leaves the receipt, fails if epoch, lanes or settings differ, and answers if it wrote. */
  end(batch: number, { epoch, lanes, settings }: Assumptions): [text: string, ...values: Value[]] {
    const text = this.#isFirst ? this.#sql.endFirst : this.#sql.end;
    this.#isFirst = false;
    return [text, batch, epoch, lanes, settings];
  }

  sealed(statement: SingleStatement): string {
    let text = this.#sealed.get(statement);
    if (text === undefined) this.#sealed.set(statement, (text = this.#seal(statement)));
    return text;
  }

  async ask(session: Session, batch: number): Promise<Outcome | null> {
    await session.command(`begin isolation level read committed; set local lock_timeout = ${ASK_WAIT_MS}`);
    try {
      const [row] = await session.rows<[number, number | null, number | null, string | null]>(this.#sql.close, [batch]);
      await session.command("commit");
      const [last, made, madeAt, keys] = row as [number, number | null, number | null, string | null];
      return { committed: last === batch, made, madeAt, keys };
    } catch (error) {
      if (!session.isLost) await session.command("rollback");
      if (codeOf(error) === LOCK_TIMEOUT) return null;
      throw error;
    }
  }
}
