import { backoff } from "./faults.ts";
import type { Rows, Server, Value } from "./driver.ts";
import { closedError, explain, isLost } from "./faults.ts";
import { Session } from "./session.ts";

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

  /**
   * Runs statements without values as one transaction. The server runs it to its end even if the process that sent it dies or
   * is stopped. It must be safe to run twice.
   */
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
        await new Promise((resolve) => setTimeout(resolve, backoff(losses, this.#options.random)));
      }
    }
  }

  async #send<T>(send: (session: Session) => Promise<T>): Promise<T> {
    if (this.#closed) throw closedError();
    const seat = this.#seat();
    seat.reads++;
    // A pooler hands a connection on with each answer: statements pipelined before that are never answered.
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

/** The connection that a handle writes over. It is opened again when it was lost, and set up each time. */
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
