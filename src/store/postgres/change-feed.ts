import type { Change } from "../store.ts";
import type { Value } from "./connection/driver.ts";
import { Crier, earOf } from "./notifier.ts";
import { channelOf, Listener, type ListenerOptions, parseNotice } from "./notification.ts";

export interface NewsOptions {
  schema: string;
  /** The handle's own name. */
  handle: string;
  send: (text: string, ...values: Value[]) => Promise<readonly unknown[]>;
  connect: ListenerOptions["connect"];
  after: ListenerOptions["after"];
  random: () => number;
}

interface Told {
  ready: ReadonlySet<string>;
  ended: Change["ended"];
}

/** How long it listens on when nobody asks any more: who waits for one job after the other asks again soon. */
const LINGER = 10_000;

/** Who wants to hear of commits, this handle's own and those of others, and of what is about to be committed. */
export class News {
  readonly #options: NewsOptions;
  readonly #crier: Crier;
  readonly #listeners = new Set<{ call: (change: Change) => void; ownOnly: boolean }>();
  readonly #expectant = new Set<{ call: () => void }>();
  #listener: Listener | null = null;
  #leaving: NodeJS.Timeout | null = null;
  #seen = "";
  #closed = false;

  constructor(options: NewsOptions) {
    this.#options = options;
    this.#crier = new Crier(options.schema, options.handle, options.send);
  }

  onChange(call: (change: Change) => void, ownOnly: boolean): () => void {
    const listener = { call, ownOnly };
    this.#listeners.add(listener);
    this.#listenIfNeeded();
    return () => {
      this.#listeners.delete(listener);
      this.#listenIfNeeded();
    };
  }

  onIncoming(call: () => void): () => void {
    const expectant = { call };
    this.#expectant.add(expectant);
    return () => this.#expectant.delete(expectant);
  }

  /** What this handle has committed; `told`: others are told of it already. */
  committed({ ready, ended }: Told, told: boolean): void {
    this.#tell({ own: true, ready, ended });
    // After whoever waits for the answer has gone on with it.
    if (!told) process.nextTick(() => this.#crier.say(ready, ended));
  }

  /** The statement that tells others, right behind the commit; null: not now. */
  behind({ ready, ended }: Told): [text: string, ...values: Value[]] | null {
    return this.#crier.behind(ready, ended);
  }

  /** What a statement that is a transaction by itself tells with its commit; null: not now. And how long that took. */
  along({ ready }: Told): [channel: string, text: string] | null {
    return this.#crier.along(ready);
  }

  took(millis: number): void {
    this.#crier.took(millis);
  }

  /** What was sent behind a commit is over; or nobody could be told, so or otherwise. */
  wentBehind(): void {
    this.#crier.wentBehind();
  }

  untold(): void {
    this.#crier.hush();
  }

  /** The statement that tells others when a transaction is committed that is not this handle's. */
  within(ready: ReadonlySet<string>): [text: string, ...values: Value[]] {
    return this.#crier.within(ready);
  }

  /** Jobs were handed in, and are not committed yet. */
  announce(): void {
    for (const { call } of this.#expectant) call();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#listeners.clear();
    this.#expectant.clear();
    await Promise.all([this.#crier.close(), this.#silence()]);
  }

  #tell(change: Change): void {
    for (const { call, ownOnly } of this.#listeners) if (change.own || !ownOnly) call(change);
  }

  /** A connection that nobody needs is one that others cannot have. */
  #listenIfNeeded(): void {
    const needed = !this.#closed && [...this.#listeners].some(({ ownOnly }) => !ownOnly);
    if (!needed) {
      if (this.#listener !== null) this.#leaving ??= setTimeout(() => void this.#silence().catch(() => {}), LINGER).unref();
      return;
    }
    if (this.#leaving !== null) clearTimeout(this.#leaving);
    this.#leaving = null;
    const { schema, handle, connect, after, random } = this.#options;
    this.#listener ??= new Listener({
      connect,
      channel: channelOf(schema),
      name: earOf(schema, handle),
      after,
      random,
      onNotice: (text) => this.#hear(text),
      onDoubt: () => this.#doubt(),
      onLook: () => void this.#look().catch(() => {}),
    });
  }

  async #silence(): Promise<void> {
    if (this.#leaving !== null) clearTimeout(this.#leaving);
    this.#leaving = null;
    const listener = this.#listener;
    this.#listener = null;
    await listener?.close();
  }

  #doubt(): void {
    this.#tell({ own: false, ready: null, ended: [] });
  }

  /**
   * Which transactions are over and which are not: as long as that is the same, nobody has committed anything. A server
   * that cannot be asked has nothing to tell.
   */
  async #look(): Promise<void> {
    const [row] = (await this.#options.send("select pg_current_snapshot()::text")) as [[string]];
    if (row[0] === this.#seen) return;
    this.#seen = row[0];
    this.#doubt();
  }

  #hear(text: string): void {
    const notice = parseNotice(text);
    if (notice?.from === this.#options.handle) return;
    const { ready = null, ended = [] } = notice ?? {};
    this.#tell({
      own: false,
      ready: ready === null ? null : new Set(ready),
      ended: ended.map(([job, fence]) => ({ job, fence })),
    });
  }
}
