import type { Clock } from "../../src/core/text/duration.ts";
import type { JobKey, ProcessId } from "../../src/core/text/ids.ts";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import type { LeaseTable } from "../../src/engine/leases.ts";
import { Janitor } from "../../src/engine/maintenance/janitor.ts";
import type { Life } from "../../src/store/processes.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import type { CheckedStore } from "./checked-store.ts";

/** A lease that its claimer knows of. */
export interface Held extends LeaseRef {
  id: string;
  lease: number;
  /** True time. */
  renewedAt: number;
}

export type Condition = "working" | "stalled" | "dead" | "rebooted";

/** A user of the store: a process with a janitor of its own, or (without an id) a person or script by hand. */
export class Actor {
  readonly name: string;
  readonly id: ProcessId | null;
  /** Whether the others can prove its death, or can only wait for its leases. */
  readonly isLocal: boolean;
  readonly store: CheckedStore;
  readonly clock: ActorClock;
  readonly holds = new Map<JobKey, Held>();
  readonly janitor: Janitor | null;
  readonly #quiet: () => Promise<void>;
  condition: Condition = "working";
  /** True time. */
  wakesAt = 0;

  constructor(parts: {
    name: string;
    id: ProcessId | null;
    isLocal: boolean;
    store: CheckedStore;
    /** The store as its janitor sees it. */
    healed: Store;
    quiet: () => Promise<void>;
    clock: ActorClock;
    complain: (message: string) => void;
  }) {
    this.name = parts.name;
    this.id = parts.id;
    this.isLocal = parts.isLocal;
    this.store = parts.store;
    this.clock = parts.clock;
    this.#quiet = parts.quiet;
    this.janitor = parts.id === null ? null : this.#janitor(parts.id, parts.healed, parts.complain);
  }

  take(claimed: readonly Claimed[], trueTime: number): void {
    for (const { job, fence, id, lease } of claimed) this.holds.set(job, { job, fence, id, lease, renewedAt: trueTime });
  }

  life(): Life {
    if (!this.isLocal) return "unknown";
    return this.condition === "working" || this.condition === "stalled" ? "alive" : this.condition;
  }

  /** The janitor's next tick, to its end. */
  async tick(): Promise<void> {
    this.janitor?.start();
    // What it has left for later goes first, and alone.
    if (this.clock.fire("soon")) for (let turn = 0; turn < 10; turn++) await this.#turn();
    this.clock.fire("tick");
    // It sets its next timer when it is done.
    for (let turn = 0; !this.clock.isSet && turn < 1_000; turn++) await this.#turn();
  }

  /** What was called has its answer, or, in memory, some of it. */
  async #turn(): Promise<void> {
    await this.#quiet();
    await new Promise((resolve) => setImmediate(resolve));
  }

  #janitor(self: ProcessId, store: Store, complain: (message: string) => void): Janitor {
    const warn = (message: string, data?: object) => complain(`${message} ${JSON.stringify(data)}`);
    const leaseTable = { holds: ({ job, fence }: LeaseRef) => this.holds.get(job)?.fence === fence };
    return new Janitor({
      store,
      leaseTable: leaseTable as unknown as LeaseTable,
      clock: this.clock,
      log: { debug: () => {}, info: () => {}, warn, error: warn },
      self,
    });
  }
}

/** A janitor's ticks are further apart than this; what it only interrupts, to let others in, is not. */
const SOON = 100;

/** An actor's own clocks, both made from the true time of the world. */
export class ActorClock implements Clock {
  /** What its wall clock is wrong by. */
  skew = 0;
  readonly #trueTime: () => number;
  readonly #wall: () => number;
  readonly #bootedAt: number;
  readonly #timers = new Map<"soon" | "tick", () => void>();

  constructor(parts: { trueTime: () => number; wall: () => number; bootedAt: number }) {
    this.#trueTime = parts.trueTime;
    this.#wall = parts.wall;
    this.#bootedAt = parts.bootedAt;
  }

  get isSet(): boolean {
    return this.#timers.has("tick");
  }

  now(): number {
    return this.#wall() + this.skew;
  }

  monotonic(): number {
    return this.#trueTime() - this.#bootedAt;
  }

  after(millis: number, call: () => void): () => void {
    const kind = millis < SOON ? "soon" : "tick";
    this.#timers.set(kind, call);
    return () => this.#timers.delete(kind);
  }

  /** True when there was anything to be called. */
  fire(kind: "soon" | "tick"): boolean {
    const call = this.#timers.get(kind);
    this.#timers.delete(kind);
    call?.();
    return call !== undefined;
  }
}
