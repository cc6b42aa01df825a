import type { Clock } from "../core/clock.ts";
import { type Event, isAskedFor, redeliverAfter } from "../core/event.ts";
import { passPoint } from "../store/points.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "./log.ts";
import type { Place } from "./place.ts";
import { type Sink, SinkDown } from "./sinks/sink.ts";
import { said } from "./trouble.ts";

/** Read at once. */
const PAGE = 500;
/** While somebody else has something to deliver, it is looked this often whether that one still does; a janitor strikes off the dead. */
const STANDBY = 400;
/** When a process leaves, a delivery in flight may take this long. */
const GRACE = 5_000;

export interface RelayParts {
  store: Store;
  clock: Clock;
  log: Log;
  /** What it is called in the log. */
  name: string;
  place: Place;
  sink: Sink;
  types?: readonly string[] | undefined;
  random?: () => number;
}

/**
 * Brings events to one sink: reads from its place on, delivers in order, and moves its place after that. Dying in
 * between means delivering again, never skipping. It runs by itself and waits for nobody but its sink.
 */
export class Relay {
  readonly #parts: RelayParts;
  readonly #over: Promise<void>;
  readonly #abort = new AbortController();
  readonly #opened: Promise<void>;
  #stopping = false;
  #abandoned = false;
  #fresh = false;
  #listening = false;
  #wake: (() => void) | null = null;
  #failures = 0;

  constructor(parts: RelayParts) {
    this.#parts = parts;
    this.#opened = parts.place.open();
    // Whoever awaits `opened` hears of it, and `run` tries again.
    this.#opened.catch(() => {});
    this.#over = this.#run();
  }

  /** Resolves when what happens from now on is certain to reach the sink. */
  get opened(): Promise<void> {
    return this.#opened;
  }

  /** Resolves when the delivery in flight is done, and its place is kept. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#wake?.();
    if (!this.#abandoned) await this.#over;
  }

  /** The same, but who does not come to an end is left behind; its events come again next time. */
  async stopSoon(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    // Real time, and the process stays for it: nobody may be left to move another clock on.
    const timer = setTimeout(() => {
      this.#abort.abort();
      // A moment for a sink that heeds it; a subscriber may be deaf.
      setImmediate(resolve);
    }, GRACE);
    await Promise.race([this.stop(), promise.then(() => this.abandon())]);
    clearTimeout(timer);
  }

  /** From here on the store is not touched any more. */
  abandon(): void {
    this.#stopping = true;
    this.#abandoned = true;
    this.#parts.place.rest();
    this.#wake?.();
  }

  async #run(): Promise<void> {
    const { store, place } = this.#parts;
    const unlisten = store.onChange(() => this.#hear());
    let opening: (() => Promise<void>) | null = () => this.#opened;
    while (!this.#stopping) {
      try {
        await opening?.();
        opening = null;
        await this.#round();
      } catch (error) {
        if (this.#abandoned) break;
        if (opening !== null) opening = () => place.open();
        await this.#fail(error);
      }
    }
    unlisten();
    if (!this.#abandoned) await place.leave().catch((error: unknown) => this.#warn("could not be left in order", error));
  }

  /** One page, or a wait for it. */
  async #round(): Promise<void> {
    const { store, place } = this.#parts;
    this.#fresh = false;
    const from = place.cursor;
    const page = await store.events.page({ after: from, limit: PAGE });
    if (page.length === 0) {
      place.rest();
      return this.#news();
    }
    if (!(await place.take())) return this.#news(STANDBY);
    // Somebody else has delivered meanwhile.
    if (place.cursor !== from) return;
    await this.#deliver(page);
    await place.saved();
  }

  async #deliver(page: readonly Event[]): Promise<void> {
    const { place, sink, types } = this.#parts;
    const { lost } = place;
    const signal = AbortSignal.any([lost, this.#abort.signal]);
    let batch: Event[] = [];
    for (const [i, event] of page.entries()) {
      if (isAskedFor(event.type, types)) batch.push(event);
      if (batch.length < sink.atOnce && (i < page.length - 1 || batch.length === 0)) continue;
      if (this.#stopping || lost.aborted) return;
      passPoint("deliver", "begun");
      await sink.deliver(batch, signal);
      if (this.#abandoned) return;
      passPoint("deliver", "written");
      this.#failures = 0;
      if (lost.aborted) return;
      place.passed((batch.at(-1) as Event).seq);
      batch = [];
    }
    const { seq } = page.at(-1) as Event;
    if (place.cursor < seq) place.skipped(seq);
  }

  /** The sink is left alone for a while. The right to deliver is kept: another process would get the same answer. */
  async #fail(trouble: unknown): Promise<void> {
    const { place, clock, random = Math.random } = this.#parts;
    const asked = trouble instanceof SinkDown ? trouble.after : 0;
    const pause = Math.max(redeliverAfter(++this.#failures, random()), asked);
    this.#warn("delivering events failed; it is tried again", trouble, { failures: this.#failures, after: pause });
    await place.saved().catch(() => {});
    await place.failed(textOf(trouble)).catch((more: unknown) => this.#warn("a failure could not be written down", more));
    if (!this.#stopping) await this.#wait(clock, pause);
  }

  /** Waits for a commit of anybody, or this long. */
  async #news(atMost?: number): Promise<void> {
    if (this.#fresh || this.#stopping) return;
    this.#listening = true;
    await this.#wait(this.#parts.clock, atMost);
    this.#listening = false;
  }

  async #wait(clock: Clock, atMost?: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const cancel = atMost === undefined ? () => {} : clock.after(atMost, resolve);
    this.#wake = resolve;
    await promise;
    this.#wake = null;
    cancel();
  }

  #hear(): void {
    this.#fresh = true;
    if (this.#listening) this.#wake?.();
  }

  #warn(message: string, error: unknown, data: object = {}): void {
    if (this.#abandoned) return;
    this.#parts.log.warn(message, { sink: this.#parts.name, ...said(error), error: textOf(error), ...data });
  }
}

const LONGEST_TEXT = 500;

/** For people; a subscriber may throw anything. */
function textOf(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}…` : text;
}
