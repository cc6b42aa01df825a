import type { Reserved, Sql, Value } from "./driver.ts";

/** The connection is gone; whatever was under way on it and not committed is undone by the server. */
export class ConnectionLost extends Error {
  constructor(cause?: unknown) {
    super("The connection to the database was lost.", { cause });
    this.name = "ConnectionLost";
  }
}

/**
 * One connection, for as long as it lives: a transaction's statements go over it and over no other. The driver connects
 * anew by itself, and would send what is left of a transaction over a connection that knows nothing of it; so once it
 * is lost, a session takes no further statement, and answers every one that is still open.
 */
export class Session {
  readonly #sql: Reserved;
  readonly #open = new Set<(error: Error) => void>();
  #lost: ConnectionLost | null = null;

  static async open(sql: Sql): Promise<Session> {
    return new Session((await sql.reserve()) as Reserved);
  }

  private constructor(sql: Reserved) {
    this.#sql = sql;
  }

  get isLost(): boolean {
    return this.#lost !== null;
  }

  /** Said by whoever watches the connection. */
  lose(cause?: unknown): void {
    if (this.#lost !== null) return;
    this.#lost = new ConnectionLost(cause);
    for (const reject of this.#open) reject(this.#lost);
    this.#open.clear();
  }

  /** Statements are sent as they come, without waiting for the answers of those before. */
  rows<Row extends readonly unknown[]>(text: string, values: readonly Value[] = []): Promise<Row[]> {
    return this.#send(() => this.#sql.unsafe(text, values as never[], { prepare: true }).values()) as unknown as Promise<Row[]>;
  }

  /** A statement without values, whose answer is the word that PostgreSQL has for what it did. */
  async command(text: string): Promise<string> {
    const result = (await this.#send(() => this.#sql.unsafe(text))) as { command?: string };
    return result.command ?? "";
  }

  release(): void {
    if (this.#lost === null) this.#sql.release();
  }

  #send<T>(query: () => PromiseLike<T>): Promise<T> {
    const lost = this.#lost;
    if (lost !== null) return Promise.reject(lost);
    return new Promise<T>((resolve, reject) => {
      this.#open.add(reject);
      query().then(
        (value) => {
          this.#open.delete(reject);
          resolve(value);
        },
        (error: unknown) => {
          this.#open.delete(reject);
          reject(error as Error);
        },
      );
    });
  }
}
