import postgres from "postgres";
import type { NewEvent } from "../../src/core/jobs/event.ts";
import { Events } from "../../src/store/postgres/events.ts";
import type { Tx } from "../../src/store/postgres/transactions/transaction.ts";

/**
 * Writes events as a store does, but in transactions that a test begins and ends. It locks a job's row, and writes the event by
 * the function that every store uses.
 */
export class EventWriter implements AsyncDisposable {
  readonly #schema: string;
  readonly #events: Events;
  readonly #sql: postgres.Sql;
  readonly #connection: postgres.ReservedSql;

  static async at(url: string, schema: string): Promise<EventWriter> {
    const sql = postgres(url, { max: 1, onnotice: () => {} });
    return new EventWriter(schema, sql, await sql.reserve());
  }

  private constructor(schema: string, sql: postgres.Sql, connection: postgres.ReservedSql) {
    this.#schema = schema;
    this.#events = new Events(schema);
    this.#sql = sql;
    this.#connection = connection;
  }

  async begin(level = "read committed"): Promise<void> {
    await this.#rows(`begin isolation level ${level}`);
  }

  async end(how: "commit" | "rollback" = "commit"): Promise<void> {
    await this.#rows(how);
  }

  /** Writes events that belong to no job. */
  tell(...names: string[]): Promise<void> {
    return this.#add(...names.map((name) => ({ type: "test.told", transition: `test.told|${name}`, data: { name } })));
  }

  /** The next step of a job: waits for the transaction that holds its row, and writes an event with the step's number. */
  async step(job: number): Promise<void> {
    const [row] = await this.#rows<[number]>(
      `update ${this.#schema}.jobs set attempt = attempt + 1 where key = $1 returning attempt`,
      job,
    );
    const [n] = row as [number];
    await this.#add({ type: "test.step", transition: `test.step|${job}:${n}`, job: String(job), data: { n } });
  }

  /** The number of its transaction. */
  async xid(): Promise<bigint> {
    const [row] = await this.#rows<[string]>("select pg_current_xact_id()::text");
    return BigInt((row as [string])[0]);
  }

  async pid(): Promise<number> {
    const [row] = await this.#rows<[number]>("select pg_backend_pid()");
    return (row as [number])[0];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#connection.release();
    await this.#sql.end({ timeout: 0 });
  }

  #add(...events: NewEvent[]): Promise<void> {
    const tx = { at: null, rows: this.#rows, wrote() {} };
    return this.#events.add(tx as unknown as Tx, events);
  }

  readonly #rows = async <Row extends readonly unknown[]>(text: string, ...values: unknown[]): Promise<Row[]> =>
    (await this.#connection.unsafe(text, values as never[]).values()) as unknown as Row[];
}
