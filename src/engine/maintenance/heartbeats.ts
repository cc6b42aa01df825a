import type { Clock } from "../../core/text/duration.ts";
import type { LockToken } from "../../store/builds.ts";
import type { Store } from "../../store/store.ts";
import { type Log, describeError } from "../log.ts";

export const HEARTBEAT_MS = 5_000;

/** Renews orchestrator locks, in the keeper thread if there is one: a handler that blocks the event loop must lose none. */
export class Heartbeats {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  /** Sends a message to the keeper thread. False: there is no thread. */
  readonly #send: (message: HeartbeatMessage) => boolean;
  readonly #held = new Map<string, { lock: LockToken; onLost: () => void }>();
  #timer: (() => void) | null = null;

  constructor(parts: { store: Store; clock: Clock; log: Log; send: (message: HeartbeatMessage) => boolean }) {
    ({ store: this.#store, clock: this.#clock, log: this.#log, send: this.#send } = parts);
  }

  watch(lock: LockToken, onLost: () => void): () => void {
    this.#held.set(lock.token, { lock, onLost });
    if (!this.#send({ hold: lock })) this.#beatSoon();
    return () => {
      if (!this.#held.delete(lock.token)) return;
      this.#send({ release: lock.token });
      if (this.#held.size === 0) this.#stop();
    };
  }

  resend(): void {
    for (const { lock } of this.#held.values()) this.#send({ hold: lock });
  }

  lost(token: string): void {
    const held = this.#held.get(token);
    this.#held.delete(token);
    held?.onLost();
  }

  #beatSoon(): void {
    this.#timer ??= this.#clock.after(HEARTBEAT_MS, () => {
      this.#timer = null;
      void this.#beat();
    });
  }

  async #beat(): Promise<void> {
    for (const { lock } of this.#held.values()) {
      try {
        if (!(await this.#store.builds.beat(lock))) this.lost(lock.token);
      } catch (error) {
        this.#log.warn("a build's lock could not be kept; it is tried again", describeError(error));
      }
    }
    if (this.#held.size > 0) this.#beatSoon();
  }

  #stop(): void {
    this.#timer?.();
    this.#timer = null;
  }
}

export type HeartbeatMessage = { hold: LockToken } | { release: string };
