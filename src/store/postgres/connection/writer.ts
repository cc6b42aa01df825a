import type { Server } from "./driver.ts";
import { Session } from "./session.ts";

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
