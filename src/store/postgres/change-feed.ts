import type { Change, ChangeOptions } from "../store.ts";
import type { Value } from "./connection/driver.ts";
import { backoff } from "./connection/faults.ts";
import type { Session, SessionOptions } from "./connection/session.ts";
import { quoteName } from "./migrate.ts";
import { channelOf, type Committed, listenerName, Notifier, parseNotification } from "./notifier.ts";

/** Time between two looks for commits of other processes, ±25 %: while notifications arrive, and while they cannot. */
const LISTENING_LOOK_MS = 5_000;
const DEAF_LOOK_MS = 500;
/** How long the listening connection stays open after its last subscriber left. */
const LISTENER_IDLE_MS = 10_000;

interface ChangeFeedOptions {
  schema: string;
  handle: string;
  send: (text: string, ...values: Value[]) => Promise<readonly unknown[]>;
  /** Null behind a transaction-mode pooler, where no notification arrives. */
  connect: ((options: SessionOptions) => Promise<Session>) | null;
  /** Timer for looks while notifications arrive. All other timers run in real time, because they wait for other processes. */
  after: (millis: number, call: () => void) => () => void;
  random: () => number;
}

/** Notifies subscribers of commits of this store and of others, and of jobs that are about to be committed. */
export class ChangeFeed {
  readonly notifier: Notifier;
  readonly #options: ChangeFeedOptions;
  readonly #subscribers = new Set<ChangeOptions & { call: (change: Change) => void }>();
  #listener: Listener | null = null;
  #idleTimer: NodeJS.Timeout | null = null;
  #snapshot = "";
  #isClosed = false;

  constructor(options: ChangeFeedOptions) {
    this.#options = options;
    this.notifier = new Notifier(options.schema, options.handle, options.send);
  }

  onChange(call: (change: Change) => void, options: ChangeOptions): () => void {
    const subscriber = { call, ...options };
    this.#subscribers.add(subscriber);
    this.#listenIfNeeded();
    return () => {
      this.#subscribers.delete(subscriber);
      this.#listenIfNeeded();
    };
  }

  incoming(): void {
    for (const { onIncoming } of this.#subscribers) onIncoming?.();
  }

  committed(committed: Committed, isNotified: boolean): void {
    this.#publish({ own: true, ...committed });
    if (!isNotified) process.nextTick(() => this.notifier.add(committed));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#subscribers.clear();
    await Promise.all([this.notifier.close(), this.#stopListening()]);
  }

  #publish(change: Change): void {
    for (const { call, ownOnly } of this.#subscribers) if (change.own || !ownOnly) call(change);
  }

  #listenIfNeeded(): void {
    const isNeeded = !this.#isClosed && [...this.#subscribers].some(({ ownOnly }) => !ownOnly);
    if (!isNeeded) {
      if (this.#listener !== null)
        this.#idleTimer ??= setTimeout(() => void this.#stopListening().catch(() => {}), LISTENER_IDLE_MS).unref();
      return;
    }
    if (this.#idleTimer !== null) clearTimeout(this.#idleTimer);
    this.#idleTimer = null;
    this.#listener ??= new Listener(this.#options, {
      onNotification: (text) => this.#receive(text),
      onMissed: () => this.#publishUnknown(),
      onLook: () => void this.#look().catch(() => {}),
    });
  }

  async #stopListening(): Promise<void> {
    if (this.#idleTimer !== null) clearTimeout(this.#idleTimer);
    this.#idleTimer = null;
    const listener = this.#listener;
    this.#listener = null;
    await listener?.close();
  }

  #publishUnknown(): void {
    this.#publish({ own: false, ready: null, ended: [] });
  }

  /** While the snapshot of transactions stays the same, no process has committed anything. */
  async #look(): Promise<void> {
    const [row] = (await this.#options.send("select pg_current_snapshot()::text")) as [[string]];
    if (row[0] === this.#snapshot) return;
    this.#snapshot = row[0];
    this.#publishUnknown();
  }

  #receive(text: string): void {
    const notification = parseNotification(text);
    if (notification?.from === this.#options.handle) return;
    const { ready = null, ended = [] } = notification ?? {};
    this.#publish({
      own: false,
      ready: ready === null ? null : new Set(ready),
      ended: ended.map(([job, fence]) => ({ job, fence })),
    });
  }
}

interface ListenerEvents {
  onNotification: (text: string) => void;
  onMissed: () => void;
  onLook: () => void;
}

class Listener {
  readonly #options: ChangeFeedOptions;
  readonly #events: ListenerEvents;
  #session: Session | null = null;
  #isListening = false;
  #losses = 0;
  #cancelLook: () => void = () => {};
  #cancelConnect: () => void = () => {};
  #isClosed = false;

  constructor(options: ChangeFeedOptions, events: ListenerEvents) {
    this.#options = options;
    this.#events = events;
    void this.#listen();
    this.#scheduleLook();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelLook();
    this.#cancelConnect();
    await this.#session?.end();
  }

  async #listen(): Promise<void> {
    const { connect, schema, handle } = this.#options;
    if (connect === null) return;
    const onNotice = (text: string) => (this.#isClosed ? undefined : this.#events.onNotification(text));
    let session: Session;
    try {
      session = await connect({ name: listenerName(schema, handle), onLost: () => this.#lost(), onNotice });
    } catch {
      return this.#lost();
    }
    if (this.#isClosed) return session.end();
    this.#session = session;
    try {
      await session.command(`listen ${quoteName(channelOf(schema))}`);
    } catch (error) {
      return session.lose(error);
    }
    if (this.#isClosed) return;
    this.#isListening = true;
    this.#losses = 0;
    this.#scheduleLook();
    this.#events.onMissed();
  }

  #lost(): void {
    this.#session = null;
    if (this.#isClosed) return;
    this.#isListening = false;
    this.#scheduleLook();
    this.#cancelConnect();
    this.#cancelConnect = inRealTime(backoff(this.#losses++, this.#options.random), () => void this.#listen());
  }

  #scheduleLook(): void {
    this.#cancelLook();
    if (this.#isClosed) return;
    const look = () => {
      this.#scheduleLook();
      this.#events.onLook();
    };
    const { after, random } = this.#options;
    const millis = Math.round((this.#isListening ? LISTENING_LOOK_MS : DEAF_LOOK_MS) * (0.75 + random() / 2));
    this.#cancelLook = this.#isListening ? after(millis, look) : inRealTime(millis, look);
  }
}

function inRealTime(millis: number, call: () => void): () => void {
  const timer = setTimeout(call, millis).unref();
  return () => clearTimeout(timer);
}
