import type { Host } from "./address.ts";
import { connect, type Connection, type Rows, type Server, type Value } from "./driver.ts";
import { reconnectDelay, closedError, codeOf, ConnectionLost, explain, isLost, isRefused, NO_WRITES } from "./faults.ts";
import { RELIED_SET } from "./session-settings.ts";

export interface SessionOptions {
  name: string;
  onLost?: () => void;
  onNotice?: (text: string) => void;
}

/** One connection. Once it is lost, it rejects every open statement and takes no further one. */
export class Session {
  readonly #connection: Connection;
  readonly #server: Server;
  readonly #host: Host;
  readonly #watchdog: ConnectionWatchdog;
  #onLost: () => void = () => {};
  readonly #open = new Set<(error: Error) => void>();
  readonly #prepared = new Map<string, string>();
  #names = 0;
  #answers = 0;
  #backend = 0;
  #lost: ConnectionLost | null = null;
  readonly #madeAt = performance.now();
  #refusesWrites = false;
  #ending = false;

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
        examine: (isSilent) => this.#isServed(isSilent),
        onDead: () => this.lose(new Error("no answer comes any more")),
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

  /** Whether it has rejected a write. A new connection may accept it, because settings count as of when a connection is made. */
  get isDated(): boolean {
    return this.#refusesWrites && performance.now() - this.#madeAt >= REJECTING_KEPT_MS;
  }

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

  rows<Row extends readonly unknown[]>(text: string, values: readonly Value[] = []): Promise<Row[]> {
    const send = () => this.#connection.sql.unsafe(text, values as never[], { prepare: true }).values();
    return this.#send(send) as unknown as Promise<Row[]>;
  }

  /** Runs a user's statement. It is not prepared, because its text may differ each time. It returns rows as objects. */
  async query(text: string, values: readonly unknown[]): Promise<unknown[]> {
    return [...((await this.#send(() => this.#connection.sql.unsafe(text, values as never[]))) as Iterable<unknown>)];
  }

  async command(text: string): Promise<string> {
    const result = (await this.#send(() => this.#connection.sql.unsafe(text))) as { command?: string };
    return result.command ?? "";
  }

  script<Row extends readonly unknown[]>(text: string): Promise<Row[][]> {
    return this.#send(() => this.#connection.sql.unsafe(text).values()) as unknown as Promise<Row[][]>;
  }

  get isPooled(): boolean {
    return this.#server.address.pooled;
  }

  /** Sends one message: `before` without rows, then statements whose rows are the answer. It ends at the first error. */
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
      const [, ...answers] = await this.script<unknown[]>(parts.join(";"));
      if (answers.length === statements.length) return answers;
      throw new Error(`${statements.length} statements were sent, and ${answers.length} answered with rows.`);
    } catch (error) {
      for (const text of added) this.#prepared.delete(text);
      if (!isOutdated(error)) throw error;
      this.lose(error);
      throw this.#lost ?? error;
    }
  }

  async end(): Promise<void> {
    this.#ending = true;
    this.#connection.keep(true);
    if (this.#lost === null) await this.#connection.sql.end({ timeout: 5 });
    this.lose();
  }

  async #isServed(isSilent: () => boolean): Promise<boolean> {
    if (this.#backend === 0) return true;
    let other: Session | null = null;
    try {
      other = await Session.#at(this.#server, this.#host, { name: "holdfast asks" }, 2 * this.#server.silence);
      if (this.#server.address.pooled) return true;
      const isAtWork = (await other.rows(AT_WORK, [this.#backend])).length > 0;
      // A role may lack the right to end it. Then the server ends it when it notices that the connection is lost.
      if (!isAtWork && isSilent()) await other.rows(TERMINATE, [this.#backend]).catch(() => {});
      return isAtWork;
    } catch (error) {
      return !isLost(error) || isRefused(error);
    } finally {
      await other?.end();
    }
  }

  #send<T>(query: () => PromiseLike<T>): Promise<T> {
    const lost = this.#lost;
    if (lost !== null) return Promise.reject(lost);
    return new Promise<T>((resolve, reject) => {
      // Only open statements keep the process alive: a program that has nothing more to do ends, even if it closed nothing.
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
          if (isLost(error)) this.lose(error);
          else if (codeOf(error) === NO_WRITES) this.#refused(error);
          reject(this.#lost ?? (error as Error));
        },
      );
    });
  }

  /** Loses the connection: another host takes the writes by now, and reads from this one may be outdated. */
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

const OPEN = new WeakMap<Server, Set<Session>>();

/** A connection that rejects writes is kept for this many milliseconds, so that calls do not reconnect each time. */
const REJECTING_KEPT_MS = 1_000;

function takesNoWrites(): Error {
  return Object.assign(new Error("it takes no writes"), { code: NO_WRITES });
}

function isOutdated(error: unknown): boolean {
  return codeOf(error) === "0A000" && /cached plan/.test((error as Error).message);
}

/** Finds a statement at work. One whose last bytes were lost on the way also looks active: the server waits for the rest. */
const AT_WORK = `
  select 1 from pg_stat_activity
  where pid = $1 and coalesce(state, '') not like 'idle%' and coalesce(wait_event, '') <> 'ClientRead'`;

/** Otherwise the server holds the locks of a lost transaction for as long as it waits for the rest of a statement. */
const TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and application_name like 'holdfast %'";

function literal(value: Value): string {
  return typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value);
}

interface Watched {
  signs(): { waits: boolean; heard: number };
  examine(isSilent: () => boolean): Promise<boolean>;
  onDead(): void;
}

/** Asks over another connection whether the server works, because after a power loss TCP waits for 15 minutes. */
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
    const isSilent = () => {
      const signs = this.#watched.signs();
      return signs.waits && signs.heard === heard;
    };
    const lives = await this.#watched.examine(isSilent);
    this.#isExamined = false;
    if (!lives && isSilent()) this.#watched.onDead();
  }
}

interface ReaderOptions {
  most: number;
  patience: number;
  random: () => number;
}

interface Seat {
  session: Promise<Session>;
  reads: number;
  last: Promise<void>;
}

export class Reader {
  readonly #server: Server;
  readonly #options: ReaderOptions;
  #seats: Seat[] = [];
  #closed = false;

  constructor(server: Server, options: ReaderOptions) {
    this.#server = server;
    this.#options = options;
  }

  readonly rows: Rows = <Row extends readonly unknown[]>(text: string, ...values: Value[]): Promise<Row[]> =>
    this.#patiently((session) => session.rows<Row>(text, values));

  /** Runs one transaction, which the server runs to its end even if this process dies. It must be safe to run twice. */
  script<Row extends readonly unknown[]>(...statements: string[]): Promise<Row[][]> {
    return this.#patiently((session) => session.script<Row>(statements.join(";")));
  }

  attempt(text: string, ...values: Value[]): Promise<readonly unknown[]> {
    return this.#send((session) => session.rows(text, values));
  }

  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all(
      this.#seats.map(async ({ session }) => {
        const opened = await session.catch(() => null);
        await opened?.end();
      }),
    );
  }

  async #patiently<T>(send: (session: Session) => Promise<T>): Promise<T> {
    const since = performance.now();
    for (let losses = 0; ; losses++) {
      try {
        return await this.#send(send);
      } catch (error) {
        const patient = performance.now() - since < this.#options.patience;
        if (!isLost(error) || !patient) throw explain(error, this.#server.address.name);
        await new Promise((resolve) => setTimeout(resolve, reconnectDelay(losses, this.#options.random)));
      }
    }
  }

  async #send<T>(send: (session: Session) => Promise<T>): Promise<T> {
    if (this.#closed) throw closedError();
    const seat = this.#seat();
    seat.reads++;
    // A pooler hands a connection on with each answer, and statements pipelined before that are never answered.
    const turn = this.#server.address.pooled ? seat.last : undefined;
    const read = Promise.resolve(turn).then(async () => send(await seat.session));
    const over = () => void seat.reads--;
    seat.last = read.then(over, over);
    return read;
  }

  #seat(): Seat {
    const free = this.#seats.find(({ reads }) => reads === 0);
    if (free !== undefined) return free;
    if (this.#seats.length === this.#options.most)
      return this.#seats.reduce((least, seat) => (seat.reads < least.reads ? seat : least));
    const remove = () => (this.#seats = this.#seats.filter((other) => other !== seat));
    const session = Session.open(this.#server, { name: "holdfast reads", onLost: remove });
    session.catch(remove);
    const seat: Seat = { session, reads: 0, last: Promise.resolve() };
    this.#seats.push(seat);
    return seat;
  }
}

/** The connection over which a handle writes. It is opened and set up again after a loss. */
export class Writer {
  readonly #server: Server;
  readonly #setUps: ((session: Session) => Promise<void>)[] = [];
  #session: Session | null = null;

  constructor(server: Server) {
    this.#server = server;
  }

  get address(): string {
    return this.#server.address.name;
  }

  get pooled(): boolean {
    return this.#server.address.pooled;
  }

  get current(): Session | null {
    return this.#session === null || this.#session.isLost || this.#session.isDated ? null : this.#session;
  }

  async session(): Promise<Session> {
    if (this.current !== null) return this.current;
    this.#session?.lose();
    const session = await Session.open(this.#server, { name: "holdfast writes" });
    try {
      for (const setUp of this.#setUps) await setUp(session);
    } catch (error) {
      session.lose(error);
      throw error;
    }
    this.#session = session;
    return session;
  }

  onSession(setUp: (session: Session) => Promise<void>): void {
    this.#setUps.push(setUp);
  }

  async close(): Promise<void> {
    await this.#session?.end();
  }
}
