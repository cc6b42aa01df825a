import type { CommitRows, CommitTx } from "../../../core/jobs/job.ts";
import { HoldfastError } from "../../../core/text/errors.ts";
import type { LeaseState } from "../../../core/jobs/lease.ts";
import { describeValue } from "../../../core/text/options.ts";
import { CommitRowsFailed } from "../../jobs.ts";
import { runAsync } from "../../sql/script.ts";
import type { NewJob, Settlement } from "../../store.ts";
import { codeOf, ConnectionLost } from "../connection/faults.ts";
import { OURS_LOCALLY, USERS_LOCALLY } from "../connection/session-settings.ts";
import type { Writer } from "../connection/session.ts";
import { JobParts } from "../store-parts.ts";
import { longShare } from "../settle/settle-effects.ts";
import { Settle } from "../settle/settle.ts";
import { GroupCommit, type GroupCommitOptions } from "./group-commit.ts";
import type { Transaction } from "./transaction.ts";

const MAX_CONNECTIONS = 4;
const IDLE_MS = 10_000;
/** The server ends a transaction of a stopped process this long after the callbacks' time is over. */
const GRACE_MS = 5_000;
/** PostgreSQL's code for a statement in a transaction that an earlier error has aborted. */
const ABORTED = "25P02";

interface Parts {
  s: string;
  makeWriter: () => Writer;
  group: GroupCommitOptions;
  /** What the store's first connection knows, as a fresh copy for each attempt, because their transactions overlap. */
  jobParts: JobParts;
  random: () => number;
  declare: (jobs: readonly NewJob[]) => Promise<void>;
  settle: (settlements: readonly Settlement[]) => Promise<LeaseState[]>;
  limit: number;
}

interface CommitConnection {
  writer: Writer;
  group: GroupCommit;
  jobParts: JobParts;
}

export class RowCommits {
  readonly #parts: Parts;
  readonly #connections: CommitConnection[] = [];
  #free: CommitConnection[] = [];
  readonly #waiting: ((connection: CommitConnection) => void)[] = [];
  readonly #underWay = new Set<Promise<LeaseState[]>>();
  #closing: NodeJS.Timeout | null = null;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  async run(settlement: Settlement): Promise<LeaseState[]> {
    const settled = this.#run(settlement);
    this.#underWay.add(settled);
    try {
      return await settled;
    } finally {
      this.#underWay.delete(settled);
    }
  }

  async close(): Promise<void> {
    await Promise.allSettled(this.#underWay);
    if (this.#closing !== null) clearTimeout(this.#closing);
    await Promise.all(this.#connections.map(({ group, writer }) => group.close().then(() => writer.close())));
  }

  async #run(settlement: Settlement): Promise<LeaseState[]> {
    const { s, jobParts, random, declare, settle } = this.#parts;
    if (settlement.followUps !== undefined) await declare(settlement.followUps);
    const connection = await this.#take();
    try {
      connection.jobParts = new JobParts(s, {
        canDeclare: false,
        random,
        knows: jobParts.catalog,
        artifacts: jobParts.batches.artifacts,
      });
      const until = performance.now() + this.#parts.limit;
      const run = (tx: unknown) => this.#settle(tx as Transaction, connection.jobParts, settlement, until);
      const fate = await connection.group.submit("settle", run, { owed: true });
      jobParts.limits.unclaimed([settlement.job]);
      return [fate];
    } catch (error) {
      if (!(error instanceof RolledBack)) throw error;
      if (error.fate !== null) return [error.fate];
      const withoutRows: Settlement = { ...settlement, commit: undefined };
      const fates = await settle([withoutRows]);
      settlement.decided = withoutRows.decided;
      return fates;
    } finally {
      this.#give(connection);
    }
  }

  async #settle(tx: Transaction, jobParts: JobParts, settlement: Settlement, until: number): Promise<LeaseState> {
    const { s, random } = this.#parts;
    const settle = new Settle(s, { ...jobParts, random });
    const [before] = await runAsync(settle.states.of(tx, [settlement]));
    if (before !== "held") return before as LeaseState;
    await callAll(tx, settlement.commit ?? [], Math.ceil(until - performance.now()));
    const [fate] = await settle.run(tx, [settlement]);
    // The lease was lost while the callbacks ran, so their rows must not be committed.
    if (fate !== "held") throw new RolledBack(fate as LeaseState);
    // A success whose follow-up jobs are rejected is recorded as a failure, and a failure commits no rows.
    const [row] = await tx.rows<[string]>(`select state from ${s}.jobs where key = $1`, settlement.job);
    if (row?.[0] !== "succeeded") throw new RolledBack(null);
    return fate;
  }

  #take(): Promise<CommitConnection> {
    const free = this.#free.pop();
    if (free !== undefined) return Promise.resolve(free);
    if (this.#connections.length === MAX_CONNECTIONS) return new Promise((resolve) => this.#waiting.push(resolve));
    const { makeWriter, group, jobParts, random } = this.#parts;
    const writer = makeWriter();
    const connection: CommitConnection = { writer, jobParts, group: undefined as unknown as GroupCommit };
    connection.group = new GroupCommit(writer, {
      ...group,
      tallyShare: () => longShare(random),
      first: (tx, queues) => connection.jobParts.first(tx, queues),
      onStale: () => connection.jobParts.forget(),
      onStall: () => connection.jobParts.limits.locks.stalled(),
      onRevert: () => {
        group.onRevert();
        connection.jobParts.forgetAll();
      },
    });
    this.#connections.push(connection);
    return Promise.resolve(connection);
  }

  #give(connection: CommitConnection): void {
    const next = this.#waiting.shift();
    if (next !== undefined) return next(connection);
    this.#free.push(connection);
    this.#closing ??= setTimeout(() => this.#closeIdle(), IDLE_MS).unref();
    this.#closing.refresh();
  }

  #closeIdle(): void {
    for (const { writer } of this.#free) void writer.close().catch(() => {});
  }
}

/** Thrown to roll back callbacks that succeeded. `fate` is the state of the lease, or null to settle without the callbacks. */
class RolledBack extends Error {
  readonly fate: LeaseState | null;
  constructor(fate: LeaseState | null) {
    super("The rows of `commit` callbacks are rolled back.");
    this.fate = fate;
  }
}

async function callAll(tx: Transaction, callbacks: readonly CommitRows[], limit: number): Promise<void> {
  if (limit <= 0) throw new CommitRowsFailed(tooLong());
  const [before] = await tx.rows<[string]>("select pg_current_xact_id()::text");
  await tx.command(
    `${USERS_LOCALLY}; set local statement_timeout = ${limit};
     set local idle_in_transaction_session_timeout = ${limit + GRACE_MS}`,
  );
  const user = new UserStatements(tx);
  try {
    await within(limit, async () => {
      for (const run of callbacks) await run(user.tx);
    });
    user.isOver = true;
    await tx.command(OURS_LOCALLY);
  } catch (error) {
    // The server rolls the transaction back, and the group runs it again over another connection.
    if (tx.isLost) throw new ConnectionLost(error);
    throw new CommitRowsFailed(codeOf(error) === ABORTED ? ((await user.firstFailure()) ?? error) : error);
  } finally {
    user.isOver = true;
  }
  const [after] = await tx.rows<[string | null]>("select pg_current_xact_id_if_assigned()::text");
  if (after?.[0] !== before?.[0]) throw new CommitRowsFailed(ended());
}

class UserStatements {
  readonly tx: CommitTx;
  isOver = false;
  #failure: unknown;
  #last: Promise<unknown> = Promise.resolve();

  constructor(transaction: Transaction) {
    this.tx = {
      get db(): never {
        throw new HoldfastError(
          "TX_INVALID",
          "`tx.db` exists on SQLite only, and this database is on PostgreSQL.",
          "Use `await tx.query(text, values)`.",
        );
      },
      query: (text, values) => {
        if (this.isOver) return Promise.reject(over());
        if (typeof text !== "string" || (values !== undefined && !Array.isArray(values)))
          return Promise.reject(noStatement(typeof text === "string" ? values : text));
        const answer = transaction.query(text, values?.map(sentValue)).then((rows) => ({ rows }));
        // This holds even if the callback does not await it: the error aborts the transaction, and with it the attempt.
        this.#last = answer.catch((error: unknown) => (this.#failure ??= error));
        return answer;
      },
    };
  }

  async firstFailure(): Promise<unknown> {
    await this.#last;
    return this.#failure;
  }
}

/** Returns a value as text: the server infers its type from the statement, and the driver knows no types of lists. */
function sentValue(value: unknown): unknown {
  if (value === undefined || value === null || value instanceof Uint8Array) return value;
  if (Array.isArray(value)) return `{${value.map(listElement).join(",")}}`;
  if (value instanceof Date && !Number.isNaN(value.getTime())) return value.toISOString();
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function listElement(value: unknown): string {
  if (Array.isArray(value)) return sentValue(value) as string;
  const sent = value instanceof Uint8Array ? `\\x${Buffer.from(value).toString("hex")}` : sentValue(value);
  return sent === null || sent === undefined ? "NULL" : `"${String(sent).replaceAll(/["\\]/g, "\\$&")}"`;
}

/** Limits the callbacks in real time, whatever clock is injected, because they hold the server's locks. */
async function within(millis: number, run: () => Promise<void>): Promise<void> {
  const late = Promise.withResolvers<never>();
  const timer = setTimeout(() => late.reject(tooLong()), millis);
  try {
    await Promise.race([run(), late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

function noStatement(given: unknown): HoldfastError {
  return new HoldfastError(
    "TX_INVALID",
    `\`tx.query\` takes a statement and an array of values, got ${describeValue(given)}.`,
    'Write e.g. tx.query("insert into orders (id) values ($1)", [id]).',
  );
}

function tooLong(): HoldfastError {
  return new HoldfastError(
    "TX_TIMEOUT",
    "The callbacks of `commit` took too long, so the transaction was rolled back.",
    "Do the slow part in the handler, before `commit`; only write rows in the callback.",
  );
}

function over(): HoldfastError {
  return new HoldfastError(
    "TX_OVER",
    "The transaction of this `tx` has ended.",
    "Await every `tx.query` inside the callback of `commit`; do not keep `tx`.",
  );
}

function ended(): HoldfastError {
  return new HoldfastError(
    "TX_ENDED",
    "The callback of `commit` ended its transaction, so the success was not recorded.",
    "Leave `commit` and `rollback` to Holdfast: return to commit, throw to undo. Savepoints are allowed.",
  );
}
