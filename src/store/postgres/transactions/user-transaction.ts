import { HoldfastError } from "../../../core/text/errors.ts";
import type { Durability, Enqueued, NewJob } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import type { Rows, Value } from "../connection/driver.ts";
import { DatabaseReverted, type Epoch } from "../connection/server-state.ts";
import { codeOf, explain, mayRunAgain, RerunTransaction } from "../connection/faults.ts";
import { borrowed, RELIED_READ } from "../connection/session-settings.ts";
import { longShare } from "../settle/settle-effects.ts";
import { ScriptTx, Statements } from "../scripts.ts";
import { JobParts } from "../store-parts.ts";
import type { Counted, Tx } from "./transaction.ts";

export interface Host {
  s: string;
  address: string;
  databaseId: string;
  durability: Durability;
  catalog: Catalog;
  random: () => number;
  at: () => number | null;
  epoch: Epoch;
  enterAnew: () => Promise<void>;
  /** A statement that notifies other processes of jobs in these queues when the user commits. */
  wake: (queues: ReadonlySet<string>) => [text: string, ...values: Value[]] | null;
}

const MAX_TRIES = 5;

/** Enqueues jobs in users' own transactions. An answer holds only if the user commits. */
export class UserTransactions {
  readonly #host: Host;

  constructor(host: Host) {
    this.#host = host;
  }

  async enqueue(given: unknown, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    const access = accessOf(given);
    try {
      const settings = await this.#check(access.query);
      for (let tries = 1; ; tries++) {
        try {
          return await this.#try(access, settings, jobs);
        } catch (error) {
          if (!mayRunAgain(error) || tries === MAX_TRIES) throw error;
          if (error instanceof DatabaseReverted) await this.#host.enterAnew();
        }
      }
    } catch (error) {
      if (codeOf(error) === ABORTED) throw aborted(error);
      // The user's code runs the transaction again, and looks for this code.
      throw CONFLICTS.has(codeOf(error)) ? error : explain(error, this.#host.address);
    }
  }

  /** Enqueues in a savepoint: if it throws, it has left nothing behind, and the user's transaction can continue. */
  async #try({ query, inSavepoint }: Access, settings: Settings, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    await query("savepoint holdfast_enqueue", []);
    try {
      const answers = await inSavepoint((inner) => this.#write(inner, settings, jobs));
      await query("release savepoint holdfast_enqueue", []);
      return answers;
    } catch (error) {
      await query("rollback to savepoint holdfast_enqueue", []).catch(() => {});
      throw error;
    }
  }

  async #write(query: Query, { take, giveBack }: Settings, jobs: readonly NewJob[]): Promise<Enqueued[]> {
    if (take !== null) await query(take, []);
    const { s, random, catalog, wake } = this.#host;
    const tx = new UserTx(query, this.#host);
    const jobParts = new JobParts(s, { canDeclare: false, random, knows: catalog });
    const answers = await jobParts.enqueue.whole(tx, jobs);
    const woken = wake(tx.woken);
    if (tx.woken.size > 0 && woken !== null) await tx.rows(...woken);
    await tx.end();
    if (giveBack !== null) await query(giveBack, []);
    return answers;
  }

  /** Rejects transactions that could not keep what this store promises. */
  async #check(query: Query): Promise<Settings> {
    const { s, databaseId, durability, address } = this.#host;
    const [first] = await readRows<{ xid: string }>(query, "select pg_current_xact_id()::text as xid");
    const [second] = await readRows(
      query,
      `select pg_current_xact_id_if_assigned()::text as xid, current_setting('synchronous_commit') as sync,
         current_setting('transaction_read_only') as read_only, ${RELIED_READ},
         (to_regclass('${s.replaceAll("'", "''")}.database') is not null)::text as known`,
    );
    const found = second as { xid: string | null; sync: string; read_only: string; known: string };
    const { xid, sync, known } = found;
    if (xid === null || xid !== first?.xid) throw notOpen();
    if (found.read_only === "on") throw readOnly();
    const databases =
      known === "true" ? await readRows<{ id: string }>(query, `select database_id as id from ${s}.database where id = 1`) : [];
    if (databases[0]?.id !== databaseId) throw otherDatabase(address);
    if (durability === "power" && sync === "off") await query("set local synchronous_commit = on", []);
    return borrowed(found);
  }
}

const CONFLICTS = new Set(["40001", "40P01"]);

const ABORTED = "25P02";

type Settings = ReturnType<typeof borrowed>;

type Query = (text: string, values: readonly Value[]) => Promise<readonly unknown[]>;

interface Access {
  query: Query;
  inSavepoint: <T>(run: (query: Query) => Promise<T>) => Promise<T>;
}

/** Reads rows as one JSON text, because drivers differ in how they return rows and whole numbers. */
async function readRows<Row extends object>(query: Query, select: string, values: readonly Value[] = []): Promise<Row[]> {
  const [row] = await query(
    `with answer as (${select}) select coalesce(json_agg(answer), '[]')::text as rows from answer`,
    values,
  );
  const text: unknown = isObject(row) ? Object.values(row)[0] : undefined;
  if (typeof text !== "string") throw noRows();
  return JSON.parse(text) as Row[];
}

class UserTx extends ScriptTx implements Tx {
  readonly at: number | null;
  readonly tallyShare: number;
  readonly woken = new Set<string>();
  isLate = false;
  queues: readonly string[] = [];
  readonly #query: Query;
  readonly #host: Host;
  readonly #known: number;
  readonly #assumed: Partial<Record<Counted, number>> = {};
  #now: Promise<number> | null = null;

  constructor(query: Query, host: Host) {
    super(new Statements(host.s));
    this.#query = query;
    this.#host = host;
    this.#known = host.epoch.known;
    this.at = host.at();
    this.tallyShare = longShare(host.random);
  }

  readonly rows: Rows = async <Row extends readonly unknown[]>(text: string, ...values: Value[]): Promise<Row[]> => {
    if (!/^\s*select\b|\breturning\b/.test(text)) {
      await this.#query(text, values);
      return [];
    }
    const answered = await readRows(this.#query, text, values);
    const rows = answered.map((one) => Object.values(one) as unknown as Row);
    return Object.assign(rows, { columns: Object.keys(answered[0] ?? {}).map((name) => ({ name })) });
  };

  now(): Promise<number> {
    this.#now ??= this.rows<[number]>(`select ${this.#host.s}.clock($1) as now`, this.at).then(([row]) => (row as [number])[0]);
    return this.#now;
  }

  async end(): Promise<void> {
    const [row] = await this.rows<[number, number, boolean]>(
      `select lanes, settings, ${this.#host.epoch.isGone("$1::bigint")} as gone from ${this.#host.s}.counter where id = 1`,
      this.#known,
    );
    const [lanes, settings, isGone] = row as [number, number, boolean];
    if (isGone) throw new DatabaseReverted();
    if ((this.#assumed.lanes ?? lanes) !== lanes || (this.#assumed.settings ?? settings) !== settings)
      throw new RerunTransaction();
  }

  assume(what: Counted, count: number, next = count): void {
    this.#assumed[what] = next;
  }

  ready(queue: string): void {
    this.woken.add(queue);
  }

  // The user commits or rolls back, so nothing learnt here is cached.
  onUndo(): void {}
  onCommit(): void {}
  wrote(): void {}
  /** Rejects audit entries: the head of the audit would stay locked as long as the user's transaction is open. */
  atLast(): void {
    throw new Error("nothing that is written into the audit is done in a user's transaction");
  }

  ended(): void {}
}

function accessOf(given: unknown): Access {
  if (isObject(given) && typeof given["unsafe"] === "function") return accessOfPostgres(given as unknown as PostgresSql);
  if (isObject(given) && typeof given["query"] === "function") {
    const ask = given["query"] as (text: string, values: unknown[]) => unknown;
    const query: Query = async (text, values) => rowsOf(await ask.call(given, text, [...values]));
    return { query, inSavepoint: (run) => run(query) };
  }
  throw new HoldfastError(
    "TX_INVALID",
    `\`tx\` is not a transaction on PostgreSQL: ${given === null ? "null" : typeof given}.`,
    "Give a client of `pg`, the `sql` of a transaction of `postgres`, or anything with query(text, values).",
  );
}

function rowsOf(answer: unknown): readonly unknown[] {
  const rows = isObject(answer) && !Array.isArray(answer) ? answer["rows"] : answer;
  if (Array.isArray(rows)) return rows;
  throw noRows();
}

function noRows(): HoldfastError {
  return new HoldfastError(
    "TX_INVALID",
    "`tx.query` returned no rows.",
    "Return { rows } or an array of rows from query(text, values); pass the values on to the statement.",
  );
}

interface PostgresSql {
  unsafe: (text: string, values: unknown[]) => PromiseLike<readonly unknown[]>;
  savepoint?: <T>(run: (sql: PostgresSql) => Promise<T>) => Promise<T>;
}

/** Uses savepoints of the driver `postgres`, which rolls back a transaction if a statement fails outside of them. */
function accessOfPostgres(sql: PostgresSql): Access {
  const query: Query = async (text, values) => sql.unsafe(text, [...values]);
  const inSavepoint: Access["inSavepoint"] = (run) =>
    sql.savepoint === undefined ? run(query) : sql.savepoint((inner) => run(accessOfPostgres(inner).query));
  return { query, inSavepoint };
}

function isObject(given: unknown): given is Record<string, unknown> {
  return (typeof given === "object" && given !== null) || typeof given === "function";
}

function notOpen(): HoldfastError {
  return new HoldfastError(
    "TX_NOT_OPEN",
    "No transaction is open on `tx`, or each statement uses another connection.",
    "Begin one first, and give the client or the `sql` of that transaction, not the pool.",
  );
}

function aborted(cause: unknown): HoldfastError {
  return new HoldfastError(
    "TX_ABORTED",
    "A statement of the transaction of `tx` failed before, so the server rejects every further one.",
    "Roll back, and look for the first error. Put statements that may fail into a savepoint.",
    { cause },
  );
}

function readOnly(): HoldfastError {
  return new HoldfastError(
    "TX_READ_ONLY",
    "The transaction of `tx` is read-only, so it cannot enqueue a job.",
    "Begin it without `read only`; check that `default_transaction_read_only` is off for its user.",
  );
}

function otherDatabase(address: string): HoldfastError {
  return new HoldfastError(
    "TX_OTHER_DATABASE",
    `\`tx\` is open on another database than this handle, which is on ${address}.`,
    "Begin the transaction on the database that Holdfast was opened with.",
  );
}
