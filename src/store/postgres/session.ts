import type { Host } from "./address.ts";
import { connect, type Connection, type Server, type Value } from "./driver.ts";
import { ConnectionLost, isLost } from "./faults.ts";

export interface SessionOptions {
  /** What it is for: stands in the server's list of connections. */
  name: string;
  onLost?: () => void;
  /** What was said on a channel to which it listens. */
  onNotice?: (text: string) => void;
}

/**
 * One connection, for as long as it lives: a transaction's statements go over it and over no other. Once it is lost, it
 * takes no further statement, and every one that is still open is answered.
 */
export class Session {
  readonly #connection: Connection;
  /** Nobody has it yet. */
  #onLost: () => void = () => {};
  readonly #open = new Set<(error: Error) => void>();
  #lost: ConnectionLost | null = null;

  /** On the first of the server's hosts that will do. */
  static async open(server: Server, options: SessionOptions): Promise<Session> {
    let failed: unknown;
    for (const host of server.address.hosts) {
      try {
        return await Session.#at(server, host, options);
      } catch (error) {
        if (!isLost(error)) throw error;
        failed = error;
      }
    }
    throw failed;
  }

  static async #at(server: Server, host: Host, options: SessionOptions): Promise<Session> {
    const { address } = server;
    const session = new Session(server, host, options);
    const overdue = () => session.lose(new Error(`no answer within ${address.within / 1_000} s`));
    const timer = address.within > 0 ? setTimeout(overdue, address.within) : undefined;
    try {
      // It takes a statement to connect.
      const [row] = await session.rows<[string]>("select current_setting('transaction_read_only')");
      if (address.writable && row?.[0] === "on") throw new ConnectionLost(readOnly());
    } catch (error) {
      session.lose(error);
      throw error;
    } finally {
      clearTimeout(timer);
    }
    if (options.onLost !== undefined) session.#onLost = options.onLost;
    return session;
  }

  private constructor(server: Server, host: Host, { name, onNotice }: SessionOptions) {
    this.#connection = connect(server, host, {
      name,
      onClose: () => this.lose(),
      ...(onNotice === undefined ? {} : { onNotice: (_channel, text) => onNotice(text) }),
    });
  }

  get isLost(): boolean {
    return this.#lost !== null;
  }

  /** It is gone, or cannot be trusted any more. */
  lose(cause?: unknown): void {
    if (this.#lost !== null) return;
    this.#lost = cause instanceof ConnectionLost ? cause : new ConnectionLost(cause);
    for (const reject of this.#open) reject(this.#lost);
    this.#open.clear();
    this.#connection.destroy();
    this.#onLost();
  }

  /** Statements are sent as they come, without waiting for the answers of those before. */
  rows<Row extends readonly unknown[]>(text: string, values: readonly Value[] = []): Promise<Row[]> {
    const send = () => this.#connection.sql.unsafe(text, values as never[], { prepare: true }).values();
    return this.#send(send) as unknown as Promise<Row[]>;
  }

  /** A statement without values, whose answer is the word that PostgreSQL has for what it did. */
  async command(text: string): Promise<string> {
    const result = (await this.#send(() => this.#connection.sql.unsafe(text))) as { command?: string };
    return result.command ?? "";
  }

  /** Several statements without values at once; the rows of each. */
  script<Row extends readonly unknown[]>(text: string): Promise<Row[][]> {
    return this.#send(() => this.#connection.sql.unsafe(text).values()) as unknown as Promise<Row[][]>;
  }

  /** What is still open has a while to come to its end. */
  async end(): Promise<void> {
    this.#connection.keep(true);
    if (this.#lost === null) await this.#connection.sql.end({ timeout: 5 });
    this.lose();
  }

  #send<T>(query: () => PromiseLike<T>): Promise<T> {
    const lost = this.#lost;
    if (lost !== null) return Promise.reject(lost);
    return new Promise<T>((resolve, reject) => {
      // A program that has nothing more to do ends, also when nobody closed what it opened; an answer is waited for.
      if (this.#open.size === 0) this.#connection.keep(true);
      this.#open.add(reject);
      query().then(
        (value) => {
          this.#over(reject);
          resolve(value);
        },
        (error: unknown) => {
          this.#over(reject);
          // Whatever the driver calls it: the connection it had is the only one it has.
          if (isLost(error)) this.lose(error);
          reject(this.#lost ?? (error as Error));
        },
      );
    });
  }

  #over(statement: (error: Error) => void): void {
    this.#open.delete(statement);
    if (this.#open.size === 0) this.#connection.keep(false);
  }
}

function readOnly(): Error {
  return Object.assign(new Error("it takes no writes"), { code: "25006" });
}
