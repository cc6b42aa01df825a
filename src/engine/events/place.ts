import type { Clock } from "../../core/text/duration.ts";
import type { Fence, ProcessId } from "../../core/text/ids.ts";
import type { Store } from "../../store/store.ts";

/** A dead holder is replaced sooner, see `FREE` in the store. */
const TTL = 30_000;
const RENEW = TTL / 3;
/** How often the position behind skipped events is stored. */
const LAZY = 1_000;

/** A relay's position among the events, and its right to continue from there. */
export interface Place {
  readonly cursor: number;
  /** Aborts when the right is lost. */
  readonly lost: AbortSignal;
  /** Resolves when every later event is certain to reach the relay. */
  open(): Promise<void>;
  /** False: another process delivers what comes after `cursor`. */
  take(): Promise<boolean>;
  /** Everything up to here was delivered. Written in the background; `saved` waits for that. */
  passed(seq: number): void;
  /** The same for filtered events: stored only now and then. */
  skipped(seq: number): void;
  /** False: another process has taken over. */
  saved(): Promise<boolean>;
  failed(error: string): Promise<void>;
  /** Nothing to deliver: the right may expire. */
  rest(): void;
  leave(): Promise<void>;
}

/** Of a subscriber without a name: nothing is stored. */
export class PassingPlace implements Place {
  readonly lost: AbortSignal = new AbortController().signal;
  readonly #start: () => Promise<number>;
  #cursor = 0;

  constructor(start: () => Promise<number>) {
    this.#start = start;
  }

  get cursor(): number {
    return this.#cursor;
  }

  async open(): Promise<void> {
    this.#cursor = await this.#start();
  }

  async take(): Promise<boolean> {
    return true;
  }

  passed(seq: number): void {
    this.#cursor = seq;
  }

  skipped(seq: number): void {
    this.#cursor = seq;
  }

  async saved(): Promise<boolean> {
    return true;
  }

  async failed(): Promise<void> {}

  rest(): void {}

  async leave(): Promise<void> {}
}

interface DurablePlaceParts {
  store: Store;
  clock: Clock;
  self: ProcessId;
  name: string;
  kind: string;
}

/**
 * Of a sink or a durable subscriber: a row in the store that one relay at a time holds. The token of the hold guards the
 * cursor, so a relay that slept too long moves nothing.
 */
export class DurablePlace implements Place {
  readonly #parts: DurablePlaceParts;
  #token: Fence | null = null;
  #cursor = 0;
  #stored = 0;
  #saving: Promise<void> | null = null;
  #trouble: unknown = null;
  #lost = new AbortController();
  /** When the right was last confirmed, on the monotonic clock. */
  #since = 0;
  #busy = false;
  #renewal: (() => void) | null = null;
  #lazy: (() => void) | null = null;

  constructor(parts: DurablePlaceParts) {
    this.#parts = parts;
  }

  get cursor(): number {
    return this.#cursor;
  }

  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  async open(): Promise<void> {
    this.#cursor = this.#stored = await this.#parts.store.sinks.open(this.#parts.name, this.#parts.kind);
  }

  async take(): Promise<boolean> {
    const isFresh = this.#token !== null && this.#parts.clock.monotonic() - this.#since < RENEW;
    if (!isFresh && !(await this.#hold())) return false;
    this.#busy = true;
    this.#keep();
    return true;
  }

  passed(seq: number): void {
    this.#cursor = seq;
    this.#saving ??= this.#save().finally(() => (this.#saving = null));
  }

  skipped(seq: number): void {
    this.#cursor = seq;
    this.#lazy ??= this.#parts.clock.after(LAZY, () => {
      this.#lazy = null;
      this.passed(this.#cursor);
    });
  }

  async saved(): Promise<boolean> {
    while (this.#saving !== null) await this.#saving;
    const trouble = this.#trouble;
    this.#trouble = null;
    if (trouble !== null) throw trouble;
    return this.#token !== null;
  }

  async failed(error: string): Promise<void> {
    const token = this.#token;
    if (token === null) return;
    if (await this.#parts.store.sinks.update(this.#parts.name, token, { error, ttl: TTL }))
      this.#since = this.#parts.clock.monotonic();
    else this.#lose();
  }

  rest(): void {
    this.#busy = false;
    this.#renewal?.();
    this.#renewal = null;
  }

  async leave(): Promise<void> {
    this.rest();
    this.#lazy?.();
    this.passed(this.#cursor);
    await this.saved();
    if (this.#token !== null) await this.#parts.store.sinks.update(this.#parts.name, this.#token, null);
    this.#token = null;
  }

  async #hold(): Promise<boolean> {
    const before = this.#parts.clock.monotonic();
    const held = await this.#parts.store.sinks.hold(this.#parts.name, { holder: this.#parts.self, ttl: TTL, token: this.#token });
    if (held === null) {
      // An operator has forgotten the sink while it was in use: it starts from now on, like a new one.
      this.#lose();
      await this.open();
      return false;
    }
    if (held.token === null || held.token !== this.#token) {
      this.#lose();
      this.#cursor = this.#stored = held.cursor;
    }
    this.#token = held.token;
    this.#since = before;
    return held.token !== null;
  }

  /** A delivery may take long, and so may the pause after a failure. */
  #keep(): void {
    this.#renewal ??= this.#parts.clock.after(RENEW, () => {
      this.#renewal = null;
      const token = this.#token;
      if (token === null) return;
      void this.#parts.store.sinks
        .hold(this.#parts.name, { holder: this.#parts.self, ttl: TTL, token })
        .then((held) => {
          if (this.#token !== token) return;
          if (held?.token !== token) return this.#lose();
          this.#since = this.#parts.clock.monotonic();
        })
        // The file may be locked for a moment; if the right expires meanwhile, the store rejects the cursor.
        .catch(() => {})
        .finally(() => this.#busy && this.#keep());
    });
  }

  /** One write at a time, of the newest position: a quick subscriber does not wait for a commit each. */
  async #save(): Promise<void> {
    try {
      while (this.#token !== null && this.#stored < this.#cursor) {
        const seq = this.#cursor;
        const token = this.#token;
        if (await this.#parts.store.sinks.update(this.#parts.name, token, { seq, ttl: TTL })) {
          this.#stored = seq;
          this.#since = this.#parts.clock.monotonic();
        } else if (this.#token === token) this.#lose();
      }
    } catch (error) {
      this.#trouble = error;
    }
  }

  #lose(): void {
    this.rest();
    if (this.#token === null) return;
    this.#token = null;
    this.#lost.abort();
    this.#lost = new AbortController();
  }
}
