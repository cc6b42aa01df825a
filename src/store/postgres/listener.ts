import { backoff } from "./backoff.ts";
import { quoteName } from "./migrate.ts";
import type { Session, SessionOptions } from "./session.ts";

/** Between two looks, in milliseconds, give or take a quarter: while others can be heard, and while not. */
const SLOW = 5_000;
const QUICK = 500;

export interface ListenerOptions {
  /** Null behind a pooler, which gives each transaction another connection: there nobody is told anything. */
  connect: ((options: SessionOptions) => Promise<Session>) | null;
  channel: string;
  /** What its connection is called in the server's list, for those who want to know whether anybody listens. */
  name: string;
  /** A timer for the slow looks; the quick ones are made in real time, since it is others that they look for. */
  after: (millis: number, call: () => void) => () => void;
  random: () => number;
  onNotice: (text: string) => void;
  /** Something may have been missed. */
  onDoubt: () => void;
  /** It is time to look whether something was. */
  onLook: () => void;
}

/** Hears what others commit: over a connection of its own, and now and then by looking. */
export class Listener {
  readonly #options: ListenerOptions;
  #session: Session | null = null;
  #hears = false;
  #losses = 0;
  #cancelLook: () => void = () => {};
  #cancelTry: () => void = () => {};
  #closed = false;

  constructor(options: ListenerOptions) {
    this.#options = options;
    void this.#listen();
    this.#look();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#cancelLook();
    this.#cancelTry();
    await this.#session?.end();
  }

  async #listen(): Promise<void> {
    const { connect, name, channel } = this.#options;
    if (connect === null) return;
    let session: Session;
    try {
      session = await connect({ name, onLost: () => this.#lost(), onNotice: (text) => this.#notice(text) });
    } catch {
      return this.#lost();
    }
    if (this.#closed) return session.end();
    this.#session = session;
    try {
      await session.command(`listen ${quoteName(channel)}`);
    } catch (error) {
      return session.lose(error);
    }
    if (this.#closed) return;
    // From now on everything is heard; until now nothing was.
    this.#hears = true;
    this.#losses = 0;
    this.#look();
    this.#options.onDoubt();
  }

  #notice(text: string): void {
    if (!this.#closed) this.#options.onNotice(text);
  }

  #lost(): void {
    this.#session = null;
    if (this.#closed) return;
    this.#hears = false;
    this.#look();
    this.#cancelTry();
    this.#cancelTry = inRealTime(backoff(this.#losses++, this.#options.random), () => void this.#listen());
  }

  #look(): void {
    this.#cancelLook();
    if (this.#closed) return;
    const look = () => {
      this.#look();
      this.#options.onLook();
    };
    const millis = Math.round((this.#hears ? SLOW : QUICK) * (0.75 + this.#options.random() / 2));
    this.#cancelLook = this.#hears ? this.#options.after(millis, look) : inRealTime(millis, look);
  }
}

function inRealTime(millis: number, call: () => void): () => void {
  const timer = setTimeout(call, millis).unref();
  return () => clearTimeout(timer);
}
