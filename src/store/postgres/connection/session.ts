import type { Host } from "./address.ts";
import { connect, type Connection, type Server, type Value } from "./driver.ts";
import { codeOf, ConnectionLost, isLost, isRefused, NO_WRITES } from "./faults.ts";
import { RELIED_SET } from "./session-settings.ts";

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
  readonly #server: Server;
  readonly #host: Host;
  readonly #watchdog: ConnectionWatchdog;
  /** Set once the connection is handed out. */
  #onLost: () => void = () => {};
  readonly #open = new Set<(error: Error) => void>();
  /** The names of statements that were prepared, by their texts. */
  readonly #prepared = new Map<string, string>();
  #names = 0;
  #answers = 0;
  /** The process at the server that serves it. */
  #backend = 0;
  #lost: ConnectionLost | null = null;
  readonly #madeAt = performance.now();
  #refusesWrites = false;
  /** `end` was called, and is awaited. */
  #ending = false;

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

  static async #at(server: Server, host: Host, options: SessionOptions, most = Number.POSITIVE_INFINITY): Promise<Session> {
    const { address } = server;
    const session = new Session(server, host, options);
    const within = Math.min(address.within, most);
    const timer = setTimeout(() => session.lose(new Error(`no answer within ${within / 1_000} s`)), within);
    try {
      // It takes a statement to connect.
      const relied = address.pooled ? "" : `, ${RELIED_SET}`;
      const [row] = await session.rows<[number, string]>(
        `select pg_backend_pid(), current_setting('transaction_read_only')${relied}`,
      );
      const [backend, readOnly] = row as [number, string];
      if (address.writable && readOnly === "on") throw new ConnectionLost(takesNoWrites());
      session.#backend = backend;
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
    this.#server = server;
    this.#host = host;
    this.#watchdog = new ConnectionWatchdog(
      {
        signs: () => ({ waits: this.#open.size > 0, heard: this.#answers + this.#connection.heard() }),
        examine: () => this.#isServed(),
        bury: () => this.lose(new Error("no answer comes any more")),
      },
      server.silence,
    );
    OPEN.set(server, (OPEN.get(server) ?? new Set()).add(this));
    this.#connection = connect(server, host, {
      name,
      onClose: (cause) => this.lose(cause),
      ...(onNotice === undefined ? {} : { onNotice: (_channel, text) => onNotice(text) }),
    });
  }

  get isLost(): boolean {
    return this.#lost !== null;
  }

  /**
   * It refused a write, and another one may be worth a try by now: what the user or the database is set to counts for a
   * connection as it was when that was made.
   */
  get isDated(): boolean {
    return this.#refusesWrites && performance.now() - this.#madeAt >= ANOTHER;
  }

  /** It is gone, or cannot be trusted any more. */
  lose(cause?: unknown): void {
    if (this.#lost !== null) return;
    this.#lost = cause instanceof ConnectionLost ? cause : new ConnectionLost(cause);
    OPEN.get(this.#server)?.delete(this);
    for (const reject of this.#open) reject(this.#lost);
    this.#open.clear();
    this.#watchdog.stop();
    this.#connection.destroy();
    this.#onLost();
  }

  /** Statements are sent as they come, without waiting for the answers of those before. */
  rows<Row extends readonly unknown[]>(text: string, values: readonly Value[] = []): Promise<Row[]> {
    const send = () => this.#connection.sql.unsafe(text, values as never[], { prepare: true }).values();
    return this.#send(send) as unknown as Promise<Row[]>;
  }

  /** A statement of a user's own: not prepared, because its text may be another each time; rows as objects. */
  async query(text: string, values: readonly unknown[]): Promise<unknown[]> {
    return [...((await this.#send(() => this.#connection.sql.unsafe(text, values as never[]))) as Iterable<unknown>)];
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

  /** A pooler is in between, and nothing can be prepared. */
  get isPooled(): boolean {
    return this.#server.address.pooled;
  }

  /**
   * One message: after some statements that have no rows these, which do; their rows are the answer. At the first that
   * fails it ends.
   */
  async together(
    before: readonly string[],
    statements: readonly { text: string; values: readonly Value[] }[],
  ): Promise<unknown[][][]> {
    const parts = [...before];
    const added: string[] = [];
    for (const { text, values } of statements) {
      let name = this.#prepared.get(text);
      if (name === undefined) {
        name = `holdfast_${++this.#names}`;
        this.#prepared.set(text, name);
        added.push(text);
        parts.push(`prepare ${name} as ${text}`);
      }
      parts.push(values.length === 0 ? `execute ${name}` : `execute ${name} (${values.map(literal).join(", ")})`);
    }
    try {
      // The driver puts all that has no rows to what comes next: what stands before is the first.
      const [, ...answers] = await this.script<unknown[]>(parts.join(";"));
      if (answers.length === statements.length) return answers;
      throw new Error(`${statements.length} statements were sent, and ${answers.length} answered with rows.`);
    } catch (error) {
      // It may have come to nothing before they were prepared.
      for (const text of added) this.#prepared.delete(text);
      if (!isOutdated(error)) throw error;
      // On another connection it is prepared anew.
      this.lose(error);
      throw this.#lost ?? error;
    }
  }

  /** What is still open has a while to come to its end. */
  async end(): Promise<void> {
    this.#ending = true;
    this.#connection.keep(true);
    if (this.#lost === null) await this.#connection.sql.end({ timeout: 5 });
    this.lose();
  }

  /** Asked over another connection: whether the server is at a statement of this one, or has long waited for the next. */
  async #isServed(): Promise<boolean> {
    // Until it is open there is a time limit.
    if (this.#backend === 0) return true;
    let other: Session | null = null;
    try {
      other = await Session.#at(this.#server, this.#host, { name: "holdfast asks" }, 2 * this.#server.silence);
      const rows = await other.rows(AT_WORK, [this.#backend]);
      return this.#server.address.pooled || rows.length > 0;
    } catch (error) {
      // A server that refuses is there.
      return !isLost(error) || isRefused(error);
    } finally {
      await other?.end();
    }
  }

  #send<T>(query: () => PromiseLike<T>): Promise<T> {
    const lost = this.#lost;
    if (lost !== null) return Promise.reject(lost);
    return new Promise<T>((resolve, reject) => {
      // A program that has nothing more to do ends, also when it closed nothing; an answer is awaited.
      if (this.#open.size === 0) this.#connection.keep(true);
      this.#open.add(reject);
      this.#watchdog.watch();
      query().then(
        (value) => {
          this.#over(reject);
          resolve(value);
        },
        (error: unknown) => {
          this.#over(reject);
          // Whatever the driver calls it: the connection it had is the only one it has.
          if (isLost(error)) this.lose(error);
          else if (codeOf(error) === NO_WRITES) this.#refused(error);
          reject(this.#lost ?? (error as Error));
        },
      );
    });
  }

  /** Of several hosts another takes the writes by now, and what is read here may be of before. */
  #refused(cause: unknown): void {
    this.#refusesWrites = true;
    if (!this.#server.address.writable) return;
    for (const session of OPEN.get(this.#server) ?? []) session.lose(cause);
  }

  #over(statement: (error: Error) => void): void {
    this.#answers++;
    this.#open.delete(statement);
    if (this.#open.size === 0 && !this.#ending) this.#connection.keep(false);
  }
}

/** All open sessions of a server, for when it turns out to be the wrong one. */
const OPEN = new WeakMap<Server, Set<Session>>();

/** So long a connection that refuses writes is kept all the same, in milliseconds: many may be told so in that time. */
const ANOTHER = 1_000;

function takesNoWrites(): Error {
  return Object.assign(new Error("it takes no writes"), { code: NO_WRITES });
}

/** The tables are not what they were when it was prepared. */
function isOutdated(error: unknown): boolean {
  return codeOf(error) === "0A000" && /cached plan/.test((error as Error).message);
}

const AT_WORK = "select 1 from pg_stat_activity where pid = $1 and coalesce(state, '') not like 'idle%'";

function literal(value: Value): string {
  return typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value);
}

/** What is watched. */
interface Watched {
  /** Whether an answer is waited for; and a number that grows with all that is heard. */
  signs(): { waits: boolean; heard: number };
  /** Whether the server still serves it, asked over another connection. */
  examine(): Promise<boolean>;
  bury(): void;
}

/**
 * A server whose host has lost its power, or a firewall that has forgotten a connection, says nothing: the system would
 * wait for a quarter of an hour. So when no answer has come for a while, another connection asks the server. A statement may
 * also just take its time.
 */
class ConnectionWatchdog {
  readonly #watched: Watched;
  readonly #every: number;
  #timer: NodeJS.Timeout | null = null;
  #heard = 0;
  #isExamined = false;

  constructor(watched: Watched, every: number) {
    this.#watched = watched;
    this.#every = every;
  }

  /** Said when an answer is waited for. It costs nothing while one is. */
  watch(): void {
    if (this.#timer !== null) return;
    this.#heard = this.#watched.signs().heard;
    this.#timer = setInterval(() => this.#look(), this.#every).unref();
  }

  stop(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }

  #look(): void {
    const { waits, heard } = this.#watched.signs();
    if (!waits) return this.stop();
    if (heard === this.#heard) void this.#examine(heard);
    this.#heard = heard;
  }

  async #examine(heard: number): Promise<void> {
    if (this.#isExamined) return;
    this.#isExamined = true;
    const lives = await this.#watched.examine();
    this.#isExamined = false;
    const signs = this.#watched.signs();
    if (!lives && signs.waits && signs.heard === heard) this.#watched.bury();
  }
}
