import type { Change, ChangeOptions } from "../store.ts";
import type { Value } from "./connection/driver.ts";
import { reconnectDelay, codeOf, LOCK_TIMEOUT } from "./connection/faults.ts";
import type { Session, SessionOptions } from "./connection/session.ts";
import { quoteName } from "./migrate.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";

/** Times between two looks for commits of other processes, ±25 %: while notifications arrive, and while they cannot. */
const LISTENING_LOOK_MS = 5_000;
const DEAF_LOOK_MS = 500;
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

  /** Looks for commits. As long as the snapshot of transactions stays the same, no process has committed anything. */
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
    this.#cancelConnect = inRealTime(reconnectDelay(this.#losses++, this.#options.random), () => void this.#listen());
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

/** Minimum times between two notifications: while another process listens, while none does, and while none can be delivered. */
const NOTIFY_INTERVAL_MS = { heard: 2, unheard: 100, undelivered: 1_000 } as const;
const LISTENER_CHECK_MS = 1_000;
const CLOSE_TIMEOUT_MS = 1_000;
/** PostgreSQL rejects 8,000 bytes and more. */
const MAX_BYTES = 7_900;

export interface Committed {
  ready: ReadonlySet<string>;
  ended: readonly { job: JobKey; fence: Fence }[];
}

/** A hint for other processes. It may get lost, because they also look by themselves. */
interface Notification {
  from: string;
  ready: readonly string[] | null;
  ended: readonly (readonly [job: JobKey, fence: Fence])[];
}

type Statement = [text: string, ...values: Value[]];

// One notification is under way at a time; later commits share the next one. PostgreSQL makes commits that notify wait for each
// other in all databases of the server, so no commit of a job notifies by itself.
export class Notifier {
  readonly #send: (text: string, ...values: Value[]) => Promise<readonly unknown[]>;
  readonly #channel: string;
  readonly #from: string;
  readonly #listeners: string;
  #ready = new Set<string>();
  #ended: Committed["ended"][number][] = [];
  #isPending = false;
  #underWay: Committed | null = null;
  #sending: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | null = null;
  #sentAt = Number.NEGATIVE_INFINITY;
  #checkedAt = Number.NEGATIVE_INFINITY;
  #state: keyof typeof NOTIFY_INTERVAL_MS = "unheard";
  #isClosed = false;

  constructor(schema: string, from: string, send: (text: string, ...values: Value[]) => Promise<readonly unknown[]>) {
    this.#channel = channelOf(schema);
    this.#from = from;
    this.#listeners = listenerName(schema, "");
    this.#send = send;
  }

  /** Returns the statement to send right behind a commit, whose answer goes to `answered`. If null, the caller calls `add`. */
  behind(committed: Committed): Statement | null {
    const isUrgent = committed.ready.size + committed.ended.length > 0;
    if (!isUrgent || this.#state !== "heard" || this.#isPending || this.#underWay !== null || this.#isClosed) return null;
    return performance.now() < this.#sentAt + NOTIFY_INTERVAL_MS.heard ? null : this.#statement(committed);
  }

  add({ ready, ended }: Committed): void {
    for (const queue of ready) this.#ready.add(queue);
    this.#ended.push(...ended);
    this.#isPending = true;
    this.#schedule();
  }

  answered(answer: { rows: readonly unknown[] } | { error: unknown }): void {
    const sent = this.#underWay;
    this.#underWay = null;
    if ("rows" in answer) {
      this.#state = answer.rows.length > 0 ? "heard" : "unheard";
    } else if (isUndelivered(answer.error) && sent !== null) {
      this.#state = "undelivered";
      // Holders of ended leases notice that by themselves, but jobs that can be claimed would wait.
      return this.add({ ready: sent.ready, ended: [] });
    }
    this.#schedule();
  }

  within(ready: Iterable<string>): Statement {
    return ["select pg_notify($1, $2)", this.#channel, notificationText({ from: "", ready: [...ready], ended: [] })];
  }

  async close(): Promise<void> {
    await new Promise<void>((resolve) => process.nextTick(resolve));
    this.#isClosed = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, CLOSE_TIMEOUT_MS);
    const rest = this.#sending.then(() => (this.#ready.size + this.#ended.length > 0 ? this.#sendPending() : undefined));
    await Promise.race([rest, late]);
    clearTimeout(timer);
  }

  #schedule(): void {
    if (!this.#isPending || this.#underWay !== null || this.#isClosed) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const left = this.#sentAt + NOTIFY_INTERVAL_MS[this.#state] - performance.now();
    if (left <= 0) this.#sending = this.#sendPending();
    else this.#timer = setTimeout(() => this.#schedule(), left).unref();
  }

  async #sendPending(): Promise<void> {
    const pending = { ready: this.#ready, ended: this.#ended };
    this.#ready = new Set();
    this.#ended = [];
    this.#isPending = false;
    try {
      this.answered({ rows: await this.#send(...this.#statement(pending)) });
    } catch (error) {
      this.answered({ error });
    }
  }

  #statement(committed: Committed): Statement {
    const { ready, ended } = committed;
    const now = performance.now();
    this.#underWay = committed;
    this.#sentAt = now;
    const pairs = ended.map(({ job, fence }): [JobKey, Fence] => [job, fence]);
    const text = notificationText({ from: this.#from, ready: [...ready], ended: pairs });
    if (this.#state === "heard" && now < this.#checkedAt + LISTENER_CHECK_MS) return [NOTIFY, this.#channel, text];
    this.#checkedAt = now;
    return [NOTIFY_LISTENERS, this.#channel, text, this.#listeners, this.#from];
  }
}

export function channelOf(schema: string): string {
  return `holdfast:${schema}`;
}

export function listenerName(schema: string, store: string): string {
  return `holdfast hears ${schema} ${store}`;
}

export function notificationText({ from, ready, ended }: Notification): string {
  const text = JSON.stringify([from, ready, ended]);
  if (Buffer.byteLength(text) <= MAX_BYTES) return text;
  return ended.length > 0 ? notificationText({ from, ready, ended: [] }) : JSON.stringify([from, null, []]);
}

export function parseNotification(text: string): Notification | null {
  try {
    const [from, ready, ended] = JSON.parse(text) as [unknown, unknown, unknown];
    if (typeof from !== "string" || !(ready === null || Array.isArray(ready)) || !Array.isArray(ended)) return null;
    return { from, ready: ready as string[] | null, ended: ended as Notification["ended"] };
  } catch {
    return null;
  }
}

/** Whether the notification queue is full, because a listener does not read, or another notifying commit takes too long. */
function isUndelivered(error: unknown): boolean {
  const code = codeOf(error);
  return code === "54000" || code === LOCK_TIMEOUT;
}

/** Bounded, because it waits for all notifying commits on the server, which may wait for a replica. A hint needs no sync. */
const NOTIFY = `
  select pg_notify($1, $2), set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '250ms', true)`;
/** Notifies only while another store listens; otherwise there is no row. Every role may see the names of connections. */
const NOTIFY_LISTENERS = `${NOTIFY} where exists (
  select 1 from pg_stat_activity
  where datname = current_database() and starts_with(application_name, $3) and application_name <> $3 || $4)`;
