import { type Event, retryRefusedAfter } from "./event.ts";

/** At most so many events are held back in memory; past that, nothing more is read until some are delivered. */
const MAX_HELD = 1_000;
/** A crash delivers again what was delivered after the oldest event held back: at most so many events. */
const MAX_AHEAD = 10_000;

interface HeldSubject {
  /** In order; the first was refused, the others wait behind it. */
  events: Event[];
  refusals: number;
  retryAt: number;
}

/**
 * Events that a sink refused, and those behind them that are about the same job or build. Events of other jobs and builds
 * pass by. Times are of the monotonic clock.
 */
export class HeldEvents {
  readonly #subjects = new Map<string, HeldSubject>();
  #size = 0;
  /** All events up to here are delivered or held back. */
  #readTo: number;

  constructor(cursor: number) {
    this.#readTo = cursor;
  }

  get isEmpty(): boolean {
    return this.#size === 0;
  }

  /** Where to read on. */
  get readTo(): number {
    return this.#readTo;
  }

  /** All events up to here are delivered. */
  get delivered(): number {
    let oldest = this.#readTo + 1;
    for (const { events } of this.#subjects.values()) oldest = Math.min(oldest, (events[0] as Event).seq);
    return oldest - 1;
  }

  /** Whether more events may be read. */
  get hasRoom(): boolean {
    return this.#size < MAX_HELD && this.#readTo - this.delivered < MAX_AHEAD;
  }

  /** True: this event waits behind one that is held back. False: it is to be offered to the sink, or passed over. */
  holdsBack(event: Event): boolean {
    const subject = this.#subjects.get(subjectOf(event));
    if (subject === undefined) return false;
    subject.events.push(event);
    this.#size++;
    this.passed(event);
    return true;
  }

  /** The event is delivered, held back, or not asked for. Until then it is read again. */
  passed({ seq }: Event): void {
    this.#readTo = Math.max(this.#readTo, seq);
  }

  /** The refused events whose turn has come again. */
  due(now: number): Event[] {
    const due = [...this.#subjects.values()].filter(({ retryAt }) => retryAt <= now);
    return due.map(({ events }) => events[0] as Event).toSorted((a, b) => a.seq - b.seq);
  }

  /** How long until the next is due; undefined: nothing is held back. */
  nextIn(now: number): number | undefined {
    if (this.isEmpty) return undefined;
    return Math.max(0, Math.min(...[...this.#subjects.values()].map(({ retryAt }) => retryAt)) - now);
  }

  /** The sink refused this event. `atLeast`: the pause before a third delivery, or a later one. Returns the number of refusals. */
  refused(event: Event, now: number, random: number, atLeast = 0): number {
    this.passed(event);
    const name = subjectOf(event);
    const known = this.#subjects.get(name);
    const subject = known ?? { events: [event], refusals: 0, retryAt: 0 };
    if (known === undefined) {
      this.#subjects.set(name, subject);
      this.#size++;
    }
    const pause = retryRefusedAfter(++subject.refusals, random);
    subject.retryAt = now + (subject.refusals === 1 ? pause : Math.max(pause, atLeast));
    return subject.refusals;
  }

  /** The sink accepted an event. Those that it held back are due at once. */
  accepted(event: Event): void {
    this.passed(event);
    const name = subjectOf(event);
    const subject = this.#subjects.get(name);
    if (subject === undefined || subject.events[0] !== event) return;
    subject.events.shift();
    this.#size--;
    subject.refusals = 0;
    subject.retryAt = Number.NEGATIVE_INFINITY;
    if (subject.events.length === 0) this.#subjects.delete(name);
  }
}

/** Events about the same job or build are delivered in order; so are those about neither. */
function subjectOf({ job, build }: Event): string {
  return job === undefined ? (build === undefined ? "" : `build ${build}`) : `job ${job}`;
}
