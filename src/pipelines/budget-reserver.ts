import { toJobError } from "../core/jobs/job.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import { type CostHistory, estimateCost } from "../core/pipelines/budget.ts";
import { type Amount, type Cost, NO_COST, plus, toAmount } from "../core/pipelines/cost.ts";
import { stageEstimate } from "../core/pipelines/stage.ts";
import type { Clock } from "../core/text/duration.ts";
import { LeaseLostError, isTransient } from "../core/text/errors.ts";
import { type Attempt, SettleAs, permanentFailure } from "../engine/attempt.ts";
import type { LeaseTable } from "../engine/leases.ts";
import { type Log, describeError } from "../engine/log.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store } from "../store/store.ts";
import type { StagePosition } from "./model.ts";

/** A crash loses at most the costs reported within this time; an attempt that ends sooner reports them when it settles. */
const COST_SAVE_DELAY_MS = 50;

/** Sums the costs that running attempts report, and saves them before the attempts end so that a crash does not lose them. */
export class CostRecorder {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #unsaved = new Map<AttemptCost, LeaseRef>();
  #saving = false;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  open(lease: LeaseRef, stage: string): AttemptCost {
    return new AttemptCost(`A cost of stage "${stage}"`, (cost) => {
      this.#unsaved.set(cost, lease);
      if (this.#saving) return;
      this.#saving = true;
      this.#clock.after(COST_SAVE_DELAY_MS, () => this.#save());
    });
  }

  #save(): void {
    this.#saving = false;
    const reports = [...this.#unsaved]
      .filter(([cost]) => !cost.closed)
      .map(([{ total }, { job, fence }]) => ({ job, fence, cost: total }));
    this.#unsaved = new Map();
    if (reports.length === 0) return;
    this.#store
      .saveProgress(reports)
      .catch((error: unknown) => this.#log.warn("costs were not written; they go with the attempt's end", describeError(error)));
  }
}

export class AttemptCost {
  total: Amount = NO_COST;
  closed = false;
  readonly #what: string;
  readonly #onChange: (cost: AttemptCost) => void;

  constructor(what: string, onChange: (cost: AttemptCost) => void) {
    this.#what = what;
    this.#onChange = onChange;
  }

  add(cost: Cost): void {
    this.total = plus(this.total, toAmount(cost, this.#what));
    if (!this.closed) this.#onChange(this);
  }
}

const COST_HISTORY_TTL_MS = 1_000;
/** Retry interval for a reservation; another attempt may have freed budget without a notification. */
const RESERVE_RETRY_MS = 250;

/** Reserves an attempt's estimate before the attempt starts. While the budget has no room, the attempt waits or is released. */
export class BudgetReserver {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #leaseTable: LeaseTable;
  readonly #pipeline: string;
  #costs: Promise<Record<string, CostHistory>> | null = null;
  #askedAt = 0;

  constructor(parts: { store: Store; clock: Clock; leaseTable: LeaseTable }, pipeline: string) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#leaseTable = parts.leaseTable;
    this.#pipeline = pipeline;
  }

  async begin(
    attempt: Attempt,
    build: BuildRow,
    place: StagePosition,
    context: { target: unknown; input: unknown },
  ): Promise<void> {
    const isLimited = build.budget.micros !== null || build.budget.tokens !== null;
    if (!isLimited && place.stage.estimate === null) return;
    const amount = await this.estimate(place, context).catch((error: unknown) => {
      // A retry would get the same error.
      throw isTransient(error) ? error : new SettleAs(permanentFailure(toJobError(error)));
    });
    const { job, fence, claimed } = attempt;
    for (;;) {
      const [answer] = await this.#store.work.begin([{ job, fence, estimate: amount }]);
      // The attempt's timeout starts when its reservation is granted.
      if (attempt.lost === null) this.#leaseTable.setTimeoutAt(attempt.slot, this.#clock.monotonic() + claimed.policy.timeout);
      if (answer === "start") return;
      if (answer === "lost") throw new LeaseLostError(claimed.id, "start");
      if (answer === "pause") throw new SettleAs({ kind: "released" });
      attempt.signal.throwIfAborted();
      await this.#change(attempt.signal);
    }
  }

  async estimate(place: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount> {
    return (await this.knownEstimate(place, context)) ?? NO_COST;
  }

  async knownEstimate({ stage }: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount | null> {
    return stageEstimate(stage, context) ?? this.mean(stage.name);
  }

  /** The mean cost of past attempts; null while there are none. */
  async mean(stage: string): Promise<Amount | null> {
    const history = (await this.#history())[stage];
    return history === undefined || history.attempts === 0 ? null : estimateCost(null, history);
  }

  #history(): Promise<Record<string, CostHistory>> {
    const now = this.#clock.monotonic();
    if (this.#costs === null || now - this.#askedAt > COST_HISTORY_TTL_MS) {
      this.#askedAt = now;
      this.#costs = this.#store.work.costs(this.#pipeline);
    }
    return this.#costs;
  }

  #change(signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const unlisten = this.#store.onChange(() => resolve(), { ownOnly: true });
    const cancel = this.#clock.after(RESERVE_RETRY_MS, resolve);
    signal.addEventListener("abort", () => resolve(), { once: true });
    return promise.finally(() => {
      unlisten();
      cancel();
    });
  }
}
