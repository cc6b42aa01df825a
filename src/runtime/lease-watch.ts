import type { Clock } from "../core/clock.ts";
import { renewalInterval } from "../core/lease.ts";
import type { Holdings } from "./holdings.ts";
import type { Loss } from "./keeper.ts";

/** How often it looks, in milliseconds: that late, at most, is a loss told. */
const EVERY = 50;
/** The same while nothing is held: less often, because waking a sleeping process costs more than the look itself. */
const IDLE_EVERY = 500;
/** A look that comes later than it was meant to by more than this: this thread, or the whole process, did not run. */
const LATE = 150;
/** So many of the last such gaps count. */
const REMEMBERED = 64;

/**
 * Tells of leases that have run out. It asks nobody: a server that is gone keeps whoever renews waiting for longer than a
 * lease lasts, and what runs under a lease that has run out may run elsewhere by then.
 *
 * Only what ran out under its eyes is lost. Where the process was stopped, or its host suspended, nothing could be renewed:
 * then there is as much time for it as others leave it before they take an expired lease away. What had run out before a
 * gap has been lost before it: a host that stutters puts nothing off for long.
 */
export class LeaseWatch {
  readonly #holdings: Holdings;
  readonly #clock: Clock;
  readonly #onLoss: (loss: Loss) => void;
  #lookedAt = Number.NaN;
  #dueAt = Number.NaN;
  /** When it did not run, the last of them last. */
  readonly #gaps: { from: number; to: number }[] = [];
  #cancel: () => void = () => {};

  constructor(parts: { holdings: Holdings; clock: Clock; onLoss: (loss: Loss) => void }) {
    this.#holdings = parts.holdings;
    this.#clock = parts.clock;
    this.#onLoss = parts.onLoss;
  }

  start(): void {
    this.#look();
  }

  stop(): void {
    this.#cancel();
  }

  #look(): void {
    const now = this.#clock.monotonic();
    if (now - this.#dueAt > LATE) this.#gaps.push({ from: this.#lookedAt, to: now });
    if (this.#gaps.length > REMEMBERED) this.#gaps.shift();
    let holds = false;
    for (const held of this.#holdings.all()) {
      holds = true;
      if (now < this.#until(held.expiresAt, held.lease)) continue;
      // Renewed since it was read? Then it is good for another while.
      if ((this.#holdings.read(held.slot)?.expiresAt ?? now) > now || !this.#holdings.revoke(held)) continue;
      this.#onLoss({ slot: held.slot, job: held.job, fence: held.fence, reason: "LEASE_LOST" });
    }
    const wait = holds ? EVERY : IDLE_EVERY;
    this.#lookedAt = now;
    this.#dueAt = now + wait;
    this.#cancel = this.#clock.after(wait, () => this.#look());
  }

  /** Until when it counts as held. */
  #until(expiresAt: number, lease: number): number {
    const gap = this.#gaps.findLast(({ from }) => from <= expiresAt);
    return gap === undefined ? expiresAt : Math.max(expiresAt, gap.to + renewalInterval(lease));
  }
}
