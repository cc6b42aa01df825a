import type { Clock } from "../core/clock.ts";
import { renewalInterval } from "../core/lease.ts";
import type { JobError } from "../core/job.ts";
import type { Next, Outcome } from "../core/retry.ts";
import type { Fate, Settlement, Store } from "../store/store.ts";
import { type Holding, type Holdings, NEVER } from "./holdings.ts";

/** A job that was claimed ahead and did not get to run for this long goes back: its worker is busy with another. */
const PATIENCE = 1_000;
/** How often it looks whether a running job was cancelled or taken by somebody else. */
const PATROL = 250;
/** A round that failed is made again after this, where rounds are made only when needed. */
const RETRY = 100;
/** Wall and monotonic time that part by more than this in one round have not just drifted. */
const JUMP = 500;

/** Why the main thread no longer holds a lease. */
export type LossReason = "LEASE_LOST" | "CANCELLED" | "TIMEOUT" | "GIVEN_BACK";
export interface Loss {
  slot: number;
  job: number;
  fence: number;
  reason: LossReason;
}

/** An attempt that ran past its timeout, as the store has settled it. */
export interface TimedOut {
  job: number;
  outcome: Outcome;
  decided: Next | undefined;
}

export interface KeeperParts {
  store: Store;
  holdings: Holdings;
  clock: Clock;
  onLoss: (loss: Loss) => void;
  onTimedOut: (timedOut: TimedOut) => void;
}

/**
 * Renews all leases of a process together, ends attempts at their timeout, gives back what waits too long, and notices
 * losses. It runs in a thread of its own wherever it can, so a handler that blocks the event loop keeps its job.
 */
export class Keeper {
  readonly #store: Store;
  readonly #holdings: Holdings;
  readonly #clock: Clock;
  readonly #onLoss: (loss: Loss) => void;
  readonly #onTimedOut: (timedOut: TimedOut) => void;
  #patrolledAt = 0;
  /** Wall time less monotonic time, when last looked. */
  #drift: number | null = null;
  /** Attempts that were ended here and are not written yet. */
  #endings: Settlement[] = [];
  #round: Promise<void> | null = null;
  /** A renewal that failed is tried again then, and not at once: the store may refuse all writes. */
  #renewAgainAt = Number.NEGATIVE_INFINITY;

  constructor(parts: KeeperParts) {
    this.#store = parts.store;
    this.#holdings = parts.holdings;
    this.#clock = parts.clock;
    this.#onLoss = parts.onLoss;
    this.#onTimedOut = parts.onTimedOut;
  }

  /** One round; errors of the store are left for the next one, until a lease is in danger. */
  round(): Promise<void> {
    this.#round ??= this.#run().finally(() => (this.#round = null));
    return this.#round;
  }

  /** When something will have to be done; NEVER when nothing is held. */
  nextAt(): number {
    if (this.#endings.length > 0) return this.#clock.monotonic() + RETRY;
    let at = NEVER;
    for (const held of this.#holdings.all())
      at = Math.min(at, Math.max(renewAt(held), this.#renewAgainAt), held.running ? held.timeoutAt : held.since + PATIENCE);
    return at;
  }

  async #run(): Promise<void> {
    const now = this.#clock.monotonic();
    const renew: Holding[] = [];
    const patrol: Holding[] = [];
    const patrolling = now - this.#patrolledAt >= PATROL;
    const jumped = this.#jumped(now);
    for (const held of this.#holdings.all()) {
      if (now >= held.timeoutAt) this.#end(held, "TIMEOUT", { kind: "error", error: timeoutError(held, now) });
      else if (!held.running && now - held.since >= PATIENCE) this.#end(held, "GIVEN_BACK", { kind: "released" });
      else if (jumped || now >= renewAt(held)) renew.push(held);
      else if (patrolling && held.running && now - held.since >= PATROL) patrol.push(held);
    }
    if (patrolling) this.#patrolledAt = now;
    if (renew.length > 0) await this.#renew(renew, now);
    await this.#writeEndings();
    if (patrol.length > 0) this.#notice(patrol, await this.#store.inspect(patrol));
  }

  /**
   * The wall clock was set, or the host slept: what is written in the store no longer means what it meant, and to the
   * others these leases may look expired.
   */
  #jumped(monotonic: number): boolean {
    const drift = this.#clock.now() - monotonic;
    const jumped = this.#drift !== null && Math.abs(drift - this.#drift) > JUMP;
    this.#drift = drift;
    return jumped;
  }

  async #renew(held: Holding[], now: number): Promise<void> {
    try {
      const fates = await this.#store.renew(held);
      for (const one of held) this.#holdings.renewed(one, now + one.lease);
      this.#notice(held, fates);
    } catch {
      // A passing trouble is tried again in the next round; a lease that has run out meanwhile cannot be trusted.
      const later = this.#clock.monotonic();
      this.#renewAgainAt = later + RETRY;
      this.#notice(
        held,
        held.map((one) => (later >= one.expiresAt ? "lost" : "held")),
      );
    }
  }

  /** First take it from the main thread, then write: the other way round it might start what was just ended. */
  #end(held: Holding, reason: LossReason, outcome: Outcome): void {
    if (!this.#holdings.revoke(held)) return;
    this.#onLoss({ slot: held.slot, job: held.job, fence: held.fence, reason });
    this.#endings.push({ job: held.job, fence: held.fence, outcome });
  }

  /**
   * What could not be written stays for the next round, and if the lease runs out before, the store refuses it. None waits for
   * another: once they have failed together, each is written by itself.
   */
  async #writeEndings(): Promise<void> {
    if (this.#endings.length === 0) return;
    const endings = this.#endings;
    this.#endings = [];
    const settle = async (some: readonly Settlement[]) => {
      await this.#store.settle(some);
      for (const { job, outcome, decided } of some) if (outcome.kind === "error") this.#onTimedOut({ job, outcome, decided });
    };
    try {
      await settle(endings);
    } catch (error) {
      if (endings.length === 1) this.#endings.push(...endings);
      else await Promise.all(endings.map((one) => settle([one]).catch(() => this.#endings.push(one))));
      throw error;
    }
  }

  #notice(held: Holding[], fates: Fate[]): void {
    for (const [i, one] of held.entries()) {
      const fate = fates[i];
      if (fate === "held" || !this.#holdings.revoke(one)) continue;
      this.#onLoss({ slot: one.slot, job: one.job, fence: one.fence, reason: fate === "cancelled" ? "CANCELLED" : "LEASE_LOST" });
    }
  }
}

function renewAt(held: Holding): number {
  return held.expiresAt - held.lease + renewalInterval(held.lease);
}

function timeoutError(held: Holding, now: number): JobError {
  return { name: "TimeoutError", code: "TIMEOUT", message: `It ran for ${Math.round(now - held.since)} ms, past its timeout.` };
}
