import type { Clock } from "../../core/text/duration.ts";
import { type Event, HeldEvents, matchesEventType, redeliverAfter } from "../../core/jobs/event.ts";
import type { DeliveryPosition } from "./position.ts";
import { type Sink, DeliveryFailed } from "./sinks.ts";
import { passPoint } from "../../store/points.ts";
import type { Store } from "../../store/store.ts";
import { type Log, describeError } from "../log.ts";

const PAGE_EVENTS = 500;
const STANDBY_MS = 400;
const MAX_REFUSALS_IN_A_ROW = 5;
/** An unanswered event is held back for this multiple of the time it took, so that others are delivered most of the time. */
const UNANSWERED_PAUSE_FACTOR = 4;
/** A sink that refuses one event now and then must not fill the log. */
const MIN_LOGGED_REFUSALS = 4;
const STOP_GRACE_MS = 5_000;

export interface RelayParts {
  store: Store;
  clock: Clock;
  log: Log;
  name: string;
  position: DeliveryPosition;
  sink: Sink;
  types?: readonly string[] | undefined;
  random?: () => number;
}

/** Delivers events in order, and then moves the position: a crash in between delivers again, never skips. */
export class Relay {
  readonly #parts: RelayParts;
  readonly #finished: Promise<void>;
  readonly #abort = new AbortController();
  readonly #opened: Promise<void>;
  #isStopping = false;
  #isAbandoned = false;
  #hasCommits = false;
  #isListening = false;
  #wake: (() => void) | null = null;
  #failures = 0;
  #held: HeldEvents | null = null;
  #refusedInARow = 0;

  constructor(parts: RelayParts) {
    this.#parts = parts;
    this.#opened = parts.position.open();
    // A caller that awaits `opened` gets the error, and `run` tries again.
    this.#opened.catch(() => {});
    this.#finished = this.#run();
  }

  get opened(): Promise<void> {
    return this.#opened;
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#wake?.();
    if (!this.#isAbandoned) await this.#finished;
  }

  /** Stops, and gives up a delivery that does not end; its events are delivered again next time. */
  async stopSoon(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    // Use real time, and keep the process alive: no caller may be left that moves a test's clock.
    const timer = setTimeout(() => {
      this.#abort.abort();
      // Give a sink that obeys the signal a moment to end; a subscriber may not obey it.
      setImmediate(resolve);
    }, STOP_GRACE_MS);
    await Promise.race([this.stop(), promise.then(() => this.abandon())]);
    clearTimeout(timer);
  }

  abandon(): void {
    this.#isStopping = true;
    this.#isAbandoned = true;
    this.#parts.position.pause();
    this.#wake?.();
  }

  async #run(): Promise<void> {
    const { store, position } = this.#parts;
    const unlisten = store.onChange(() => {
      this.#hasCommits = true;
      if (this.#isListening) this.#wake?.();
    });
    let opening: (() => Promise<void>) | null = () => this.#opened;
    while (!this.#isStopping) {
      try {
        await opening?.();
        opening = null;
        await this.#round();
      } catch (error) {
        if (this.#isAbandoned) break;
        if (opening !== null) opening = () => position.open();
        await this.#fail(error);
      }
    }
    unlisten();
    if (!this.#isAbandoned) await position.leave().catch((error: unknown) => this.#warn("could not be left in order", error));
  }

  /** Delivers a page. The position stays before the oldest event that the sink refused, so that a crash loses no event. */
  async #round(): Promise<void> {
    const { store, position, clock, sink } = this.#parts;
    this.#hasCommits = false;
    const from = position.cursor;
    if (sink.refusesSingleEvents && this.#held?.deliveredTo !== from) this.#held = new HeldEvents(from);
    const held = this.#held;
    const due = held?.due(clock.monotonic()) ?? [];
    const hasRoom = held === null || held.hasRoom;
    const page = hasRoom ? await store.events.page({ after: held?.readTo ?? from, limit: PAGE_EVENTS }) : [];
    if (due.length + page.length === 0) {
      if (held === null || held.isEmpty) position.pause();
      return this.#waitForCommit(held?.nextIn(clock.monotonic()));
    }
    if (!(await position.acquire())) return this.#waitForCommit(STANDBY_MS);
    // Another process has delivered these events meanwhile.
    if (position.cursor !== from) return;
    // Read the signal now: once this hold is lost, the position has another signal, for the next hold.
    const { lost } = position;
    if (held === null) await this.#deliver(page);
    else
      await this.#offerAll(held, due, page, lost).finally(() => {
        if (!lost.aborted && position.cursor < held.deliveredTo) position.skip(held.deliveredTo);
      });
    await position.flush();
  }

  async #offerAll(held: HeldEvents, due: readonly Event[], page: readonly Event[], lost: AbortSignal): Promise<void> {
    for (const event of due) {
      const answer = await this.#offer(held, event, lost);
      if (answer === "stop") return;
      // Either the sink is down, or it cannot answer this event: a new event shows which.
      if (answer === "unanswered") break;
    }
    for (const event of page) {
      if (!matchesEventType(event.type, this.#parts.types)) held.advance(event);
      else if (!held.holdsBack(event) && (await this.#offer(held, event, lost)) === "stop") return;
    }
  }

  /** Delivers one event. "stop": deliver nothing more now. Throws if the sink is down. */
  async #offer(held: HeldEvents, event: Event, lost: AbortSignal): Promise<"stop" | "answered" | "unanswered"> {
    const { position, sink, clock, random = Math.random } = this.#parts;
    if (this.#isStopping || lost.aborted) return "stop";
    passPoint("deliver", "begun");
    const begunAt = clock.monotonic();
    try {
      await sink.deliver([event], AbortSignal.any([lost, this.#abort.signal]));
    } catch (error) {
      if (this.#isAbandoned || lost.aborted) return "stop";
      const now = clock.monotonic();
      const isUnanswered = error instanceof DeliveryFailed && error.isDown;
      const atLeast = isUnanswered ? Math.max(error.after, UNANSWERED_PAUSE_FACTOR * (now - begunAt)) : 0;
      const refusals = held.refuse(event, now, random(), atLeast);
      // Only first refusals count: an event that is refused again and again must not stop those of other jobs.
      if (refusals === 1) this.#refusedInARow++;
      const isDown = refusals === 1 && (isUnanswered || this.#refusedInARow >= MAX_REFUSALS_IN_A_ROW);
      if (isDown || !(error instanceof DeliveryFailed)) throw error;
      await this.#recordRefusal(event, refusals, error);
      return isUnanswered ? "unanswered" : "answered";
    }
    if (this.#isAbandoned) return "stop";
    passPoint("deliver", "written");
    this.#failures = 0;
    this.#refusedInARow = 0;
    if (lost.aborted) return "stop";
    held.accept(event);
    if (position.cursor < held.deliveredTo) position.advance(held.deliveredTo);
    return "answered";
  }

  async #recordRefusal({ seq, type, job, build }: Event, refusals: number, error: unknown): Promise<void> {
    if (refusals >= MIN_LOGGED_REFUSALS)
      this.#warn("an event is refused again and again; others are delivered", error, { seq, type, job, build, refusals });
    await this.#parts.position
      .recordFailure(textOf(error))
      .catch((more: unknown) => this.#warn("a failure could not be written down", more));
  }

  async #deliver(page: readonly Event[]): Promise<void> {
    const { position, sink, types } = this.#parts;
    const { lost } = position;
    const signal = AbortSignal.any([lost, this.#abort.signal]);
    let batch: Event[] = [];
    for (const [i, event] of page.entries()) {
      if (matchesEventType(event.type, types)) batch.push(event);
      if (batch.length < sink.maxEvents && (i < page.length - 1 || batch.length === 0)) continue;
      if (this.#isStopping || lost.aborted) return;
      passPoint("deliver", "begun");
      await sink.deliver(batch, signal);
      if (this.#isAbandoned) return;
      passPoint("deliver", "written");
      this.#failures = 0;
      if (lost.aborted) return;
      position.advance((batch.at(-1) as Event).seq);
      batch = [];
    }
    const { seq } = page.at(-1) as Event;
    if (position.cursor < seq) position.skip(seq);
  }

  /** Pauses the sink and keeps the right to deliver: another process would get the same answer. */
  async #fail(failure: unknown): Promise<void> {
    const { position, clock, random = Math.random } = this.#parts;
    const asked = failure instanceof DeliveryFailed ? failure.after : 0;
    const pause = Math.max(redeliverAfter(++this.#failures, random()), asked);
    this.#warn("delivering events failed; it is tried again", failure, { failures: this.#failures, after: pause });
    await position.flush().catch(() => {});
    await position
      .recordFailure(textOf(failure))
      .catch((more: unknown) => this.#warn("a failure could not be written down", more));
    if (!this.#isStopping) await this.#wait(clock, pause);
  }

  async #waitForCommit(atMost?: number): Promise<void> {
    if (this.#hasCommits || this.#isStopping) return;
    this.#isListening = true;
    await this.#wait(this.#parts.clock, atMost);
    this.#isListening = false;
  }

  async #wait(clock: Clock, atMost?: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const cancel = atMost === undefined ? () => {} : clock.after(atMost, resolve);
    this.#wake = resolve;
    await promise;
    this.#wake = null;
    cancel();
  }

  #warn(message: string, error: unknown, data: object = {}): void {
    if (this.#isAbandoned) return;
    this.#parts.log.warn(message, { sink: this.#parts.name, ...describeError(error), error: textOf(error), ...data });
  }
}

const MAX_TEXT_LENGTH = 500;

/** Returns a short text of any thrown value, because a subscriber may throw anything. */
function textOf(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return text.length > MAX_TEXT_LENGTH ? `${text.slice(0, MAX_TEXT_LENGTH)}…` : text;
}
