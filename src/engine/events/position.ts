import type { Clock } from "../../core/text/duration.ts";
import type { Fence, ProcessId } from "../../core/text/ids.ts";
import type { Store } from "../../store/store.ts";

/** How long the right to deliver lasts. A dead holder is replaced sooner: see `free` in store/sql/events.ts. */
const RIGHT_TTL_MS = 30_000;
const RENEWAL_MS = RIGHT_TTL_MS / 3;
const SKIPPED_SAVE_MS = 1_000;

/** A relay's position among the events, and its right to continue from there. */
export type DeliveryPosition = Pick<DurablePosition, keyof DurablePosition>;

/** Returns the position of a subscriber without a name, which is not stored. */
export function transientPosition(start: () => Promise<number>): DeliveryPosition {
  const moveTo = (seq: number) => void (position.cursor = seq);
  const position = {
    cursor: 0,
    lost: new AbortController().signal,
    open: async () => moveTo(await start()),
    acquire: async () => true,
    advance: moveTo,
    skip: moveTo,
    flush: async () => true,
    recordFailure: async () => {},
    pause: () => {},
    leave: async () => {},
  };
  return position;
}

interface DurablePositionParts {
  store: Store;
  clock: Clock;
  self: ProcessId;
  name: string;
  kind: string;
}

/** A stored position that one relay at a time holds. Its token guards the cursor, so a relay that overslept moves nothing. */
export class DurablePosition {
  readonly #parts: DurablePositionParts;
  #token: Fence | null = null;
  #cursor = 0;
  #stored = 0;
  #saving: Promise<void> | null = null;
  #saveError: unknown = null;
  #lost = new AbortController();
  #confirmedAt = 0;
  #isBusy = false;
  #renewal: (() => void) | null = null;
  #cancelSkippedSave: (() => void) | null = null;

  constructor(parts: DurablePositionParts) {
    this.#parts = parts;
  }

  get cursor(): number {
    return this.#cursor;
  }

  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** Reads the stored position. Once this resolves, every later event is certain to reach the relay. */
  async open(): Promise<void> {
    this.#cursor = this.#stored = await this.#parts.store.events.position({ name: this.#parts.name, kind: this.#parts.kind });
  }

  /** Takes or keeps the right to deliver. False: another process delivers what comes after `cursor`. */
  async acquire(): Promise<boolean> {
    const isFresh = this.#token !== null && this.#parts.clock.monotonic() - this.#confirmedAt < RENEWAL_MS;
    if (!isFresh && !(await this.#hold())) return false;
    this.#isBusy = true;
    this.#renewLater();
    return true;
  }

  /** Records that everything up to `seq` was delivered. The write runs in the background; `flush` waits for it. */
  advance(seq: number): void {
    this.#cursor = seq;
    this.#saving ??= this.#save().finally(() => (this.#saving = null));
  }

  /** Moves past events that a filter left out. The new position is stored only now and then. */
  skip(seq: number): void {
    this.#cursor = seq;
    this.#cancelSkippedSave ??= this.#parts.clock.after(SKIPPED_SAVE_MS, () => {
      this.#cancelSkippedSave = null;
      this.advance(this.#cursor);
    });
  }

  async flush(): Promise<boolean> {
    while (this.#saving !== null) await this.#saving;
    const error = this.#saveError;
    this.#saveError = null;
    if (error !== null) throw error;
    return this.#token !== null;
  }

  async recordFailure(error: string): Promise<void> {
    const token = this.#token;
    if (token === null) return;
    if (await this.#parts.store.events.deliver(this.#parts.name, token, { error, ttl: RIGHT_TTL_MS }))
      this.#confirmedAt = this.#parts.clock.monotonic();
    else this.#lose();
  }

  pause(): void {
    this.#isBusy = false;
    this.#renewal?.();
    this.#renewal = null;
  }

  async leave(): Promise<void> {
    this.pause();
    this.#cancelSkippedSave?.();
    this.advance(this.#cursor);
    await this.flush();
    if (this.#token !== null) await this.#parts.store.events.deliver(this.#parts.name, this.#token, null);
    this.#token = null;
  }

  async #hold(): Promise<boolean> {
    const before = this.#parts.clock.monotonic();
    const held = await this.#parts.store.events.hold(this.#parts.name, {
      holder: this.#parts.self,
      ttl: RIGHT_TTL_MS,
      token: this.#token,
    });
    if (held === null) {
      // An operator has removed the sink while it was in use: it starts from now on, like a new one.
      this.#lose();
      await this.open();
      return false;
    }
    if (held.token === null || held.token !== this.#token) {
      this.#lose();
      this.#cursor = this.#stored = held.cursor;
    }
    this.#token = held.token;
    this.#confirmedAt = before;
    return held.token !== null;
  }

  /** Renews the right to deliver, because a delivery, or the pause after a failure, may last longer than the right. */
  #renewLater(): void {
    this.#renewal ??= this.#parts.clock.after(RENEWAL_MS, () => {
      this.#renewal = null;
      const token = this.#token;
      if (token === null) return;
      void this.#parts.store.events
        .hold(this.#parts.name, { holder: this.#parts.self, ttl: RIGHT_TTL_MS, token })
        .then((held) => {
          if (this.#token !== token) return;
          if (held?.token !== token) return this.#lose();
          this.#confirmedAt = this.#parts.clock.monotonic();
        })
        // The file may be locked for a moment; if the right expires meanwhile, the store rejects the cursor.
        .catch(() => {})
        .finally(() => this.#isBusy && this.#renewLater());
    });
  }

  /** Stores the newest position, one write at a time, so that a quick subscriber does not wait for a commit per event. */
  async #save(): Promise<void> {
    try {
      while (this.#token !== null && this.#stored < this.#cursor) {
        const seq = this.#cursor;
        const token = this.#token;
        if (await this.#parts.store.events.deliver(this.#parts.name, token, { seq, ttl: RIGHT_TTL_MS })) {
          this.#stored = seq;
          this.#confirmedAt = this.#parts.clock.monotonic();
        } else if (this.#token === token) this.#lose();
      }
    } catch (error) {
      this.#saveError = error;
    }
  }

  #lose(): void {
    this.pause();
    if (this.#token === null) return;
    this.#token = null;
    this.#lost.abort();
    this.#lost = new AbortController();
  }
}
