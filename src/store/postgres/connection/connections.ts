import { backoff } from "./faults.ts";
import type { Rows, Server, Value } from "./driver.ts";
import { closedError, explain, isLost } from "./faults.ts";
import { Session } from "./session.ts";

interface ReaderOptions {
  /** Connections, at most: reads that may be under way at once without waiting for each other. */
  most: number;
  /** Until this much has passed, a server that is gone is waited for; in milliseconds. */
  patience: number;
  random: () => number;
}

/** A connection, how many reads are under way on it, and when the last of them is over. */
interface Seat {
  session: Promise<Session>;
  reads: number;
  last: Promise<void>;
}

/** Reads, each by itself, over connections of their own: no query waits for a write. */
export class Reader {
  readonly #server: Server;
  readonly #options: ReaderOptions;
  #seats: Seat[] = [];
  #closed = false;

  constructor(server: Server, options: ReaderOptions) {
    this.#server = server;
    this.#options = options;
  }

  /** Reading twice does no harm: a lost connection is tried again, for a while. */
  readonly rows: Rows = <Row extends readonly unknown[]>(text: string, ...values: Value[]): Promise<Row[]> =>
    this.#patiently((session) => session.rows<Row>(text, values));

  /**
   * Statements without values as one transaction, which no process has to hold open: the server runs it through by itself,
   * also when the process that sent it dies or is stopped. The rows of each. It must do no harm to run it twice.
   */
  script<Row extends readonly unknown[]>(...statements: string[]): Promise<Row[][]> {
    return this.#patiently((session) => session.script<Row>(statements.join(";")));
  }

  /** Sent once: for what is not worth waiting for. */
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
        await new Promise((resolve) => setTimeout(resolve, backoff(losses, this.#options.random)));
      }
    }
  }

  async #send<T>(send: (session: Session) => Promise<T>): Promise<T> {
    if (this.#closed) throw closedError();
    const seat = this.#seat();
    seat.reads++;
    // A pooler hands a connection on with each answer: what was sent before that is never answered.
    const turn = this.#server.address.pooled ? seat.last : undefined;
    const read = Promise.resolve(turn).then(async () => send(await seat.session));
    const over = () => void seat.reads--;
    seat.last = read.then(over, over);
    return read;
  }

  /** A free one, or another, or the one that is waited for the least. */
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

/** The connection over which this handle writes. It is opened anew when it was lost, and set up each time. */
export class Writer {
  readonly #server: Server;
  readonly #setUps: ((session: Session) => Promise<void>)[] = [];
  #session: Session | null = null;

  constructor(server: Server) {
    this.#server = server;
  }

  /** For people: without user and password. */
  get address(): string {
    return this.#server.address.name;
  }

  /** Connections are not one's own for longer than a transaction. */
  get pooled(): boolean {
    return this.#server.address.pooled;
  }

  /** The one there is, if it is of any use. */
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
      // Half set up it is good for nothing.
      session.lose(error);
      throw error;
    }
    this.#session = session;
    return session;
  }

  /** What else is to be done with each connection from now on, before anything is written over it. */
  onSession(setUp: (session: Session) => Promise<void>): void {
    this.#setUps.push(setUp);
  }

  async close(): Promise<void> {
    await this.#session?.end();
  }
}
