import type { Durability } from "../store.ts";
import type { Sql } from "./driver.ts";
import { Session } from "./session.ts";

/** The connection over which this handle writes. It is opened anew when it was lost, and set up each time. */
export class Writer {
  /** For people: without user and password. */
  readonly address: string;
  readonly #sql: Sql;
  readonly #setUps: ((session: Session) => Promise<void>)[];
  #session: Session | null = null;

  constructor(sql: Sql, options: { address: string; setUp: (session: Session) => Promise<void> }) {
    this.#sql = sql;
    this.address = options.address;
    this.#setUps = [options.setUp];
  }

  async session(): Promise<Session> {
    if (this.#session !== null && !this.#session.isLost) return this.#session;
    const session = await Session.open(this.#sql);
    this.#session = session;
    for (const setUp of this.#setUps) await setUp(session);
    return session;
  }

  /** What else is to be done with each connection from now on, before anything is written over it. */
  onSession(setUp: (session: Session) => Promise<void>): void {
    this.#setUps.push(setUp);
  }

  /** The driver says that the connection is closed. */
  closed(): void {
    this.#session?.lose();
  }

  /** It cannot be trusted any more. */
  drop(session: Session): void {
    session.lose();
    if (this.#session === session) this.#session = null;
  }

  /** Of a transaction by its number; null: nobody knows any more. */
  async statusOf(xid: string): Promise<"committed" | "aborted" | "in progress" | null> {
    const session = await this.session();
    const [row] = await session.rows<["committed" | "aborted" | "in progress" | null]>("select pg_xact_status($1::text::xid8)", [
      xid,
    ]);
    return row?.[0] ?? null;
  }

  async close(): Promise<void> {
    this.#session?.release();
    this.#session = null;
    await this.#sql.end({ timeout: 5 });
  }
}

/** Set and read back: whatever the server's or the user's default is. */
export function synchronousCommit(durability: Durability): "on" | "off" {
  return durability === "power" ? "on" : "off";
}
