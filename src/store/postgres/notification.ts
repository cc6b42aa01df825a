import type { Fence, JobKey } from "../../core/text/ids.ts";
import { backoff } from "./connection/faults.ts";
import { codeOf } from "./connection/faults.ts";
import type { Session, SessionOptions } from "./connection/session.ts";
import { quoteName } from "./migrate.ts";

/** What others are told of a commit: a hint, which may be lost, and which nobody relies on. */
interface Notice {
  /** The handle that tells: it knows already. */
  from: string;
  /** Queues that have something; null: too many to name them. */
  ready: readonly string[] | null;
  ended: readonly (readonly [job: JobKey, fence: Fence])[];
}

/** PostgreSQL refuses 8,000 bytes and more. */
const MOST = 7_900;

/**
 * Whoever tells something waits, at his commit, for everybody on the server who does, in whatever database, and he may wait
 * for a replica that is gone. A hint is not worth that: what is called after `pg_notify` bounds it. Never null.
 */
export const WAIT_FOR_TELLERS = waitForTellers("1s");

export function waitForTellers(most: string): string {
  return `set_config('lock_timeout', '${most}', true)`;
}

/**
 * Somebody who listens has not read for so long that the server keeps no more notices; or somebody else who tells something
 * has been at his commit for too long.
 */
export function isUntold(error: unknown): boolean {
  const code = codeOf(error);
  return code === "54000" || code === "55P03";
}

/** Everybody who has the schema open listens here. */
export function channelOf(schema: string): string {
  return `holdfast:${schema}`;
}

/** What is too long to be said is left for others to find out. */
export function noticeText(notice: Notice): string {
  const { from, ready, ended } = notice;
  const text = JSON.stringify([from, ready, ended]);
  if (Buffer.byteLength(text) <= MOST) return text;
  // Ended leases are found by their holders before long; what was made ready would wait.
  if (ended.length > 0) return noticeText({ from, ready, ended: [] });
  return JSON.stringify([from, null, []]);
}

/** Null when it is nothing that this version of Holdfast says. */
export function parseNotice(text: string): Notice | null {
  try {
    const [from, ready, ended] = JSON.parse(text) as [unknown, unknown, unknown];
    if (typeof from !== "string" || !(ready === null || Array.isArray(ready)) || !Array.isArray(ended)) return null;
    return { from, ready: ready as string[] | null, ended: ended as Notice["ended"] };
  } catch {
    return null;
  }
}

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
