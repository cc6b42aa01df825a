import { toJobError } from "../core/jobs/job.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import { type CostHistory, estimate } from "../core/pipelines/budget.ts";
import { type Amount, type Cost, NOTHING, plus, toAmount } from "../core/pipelines/cost.ts";
import { stageEstimate } from "../core/pipelines/stage.ts";
import type { Clock } from "../core/text/duration.ts";
import { LeaseLostError, isPassing } from "../core/text/errors.ts";
import { type Attempt, SettleAs, failForGood } from "../engine/attempt.ts";
import type { LeaseTable } from "../engine/leases.ts";
import { type Log, describeError } from "../engine/log.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store } from "../store/store.ts";
import type { StagePosition } from "./model.ts";

/** What a running attempt has reported is on the disk this soon; what ends sooner is written with its end. */
const SOON = 50;

/** Sums up the costs that attempts report, and saves them while the attempts run, so that a crash does not lose them. */
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
      this.#clock.after(SOON, () => this.#save());
    });
  }

  #save(): void {
    this.#saving = false;
    const reports = [...this.#unsaved]
      .filter(([cost]) => !cost.closed)
      .map(([{ total }, { job, fence }]) => ({ job, fence, cost: total }));
    this.#unsaved = new Map();
    if (reports.length === 0) return;
    this.#store.work
      .saveCosts(reports)
      .catch((error: unknown) => this.#log.warn("costs were not written; they go with the attempt's end", describeError(error)));
  }
}

/** Of one attempt. */
export class AttemptCost {
  total: Amount = NOTHING;
  /** The attempt is over: its end says what it cost. */
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

/** How long what is known of past costs is believed. */
const FRESH = 1_000;
/** Retry interval for a reservation; another attempt may have freed budget without a notification. */
const ASK_AGAIN = 250;

/** Sets money aside for an attempt before it starts; while there is none, it waits, or gives the work back. */
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

  /** Returns when the attempt may start. */
  async begin(
    attempt: Attempt,
    build: BuildRow,
    place: StagePosition,
    context: { target: unknown; input: unknown },
  ): Promise<void> {
    const isLimited = build.budget.micros !== null || build.budget.tokens !== null;
    if (!isLimited && place.stage.estimate === null) return;
    const amount = await this.estimate(place, context).catch((error: unknown) => {
      // It would say the same again.
      throw isPassing(error) ? error : new SettleAs(failForGood(toJobError(error)));
    });
    const { job, fence, claimed } = attempt;
    for (;;) {
      const [answer] = await this.#store.work.begin([{ job, fence, estimate: amount }]);
      // To wait for money is no part of its work: its time begins when it does.
      if (attempt.lost === null) this.#leaseTable.prolong(attempt.slot, this.#clock.monotonic() + claimed.policy.timeout);
      if (answer === "start") return;
      if (answer === "lost") throw new LeaseLostError(claimed.id, "start");
      if (answer === "pause") throw new SettleAs({ kind: "released" });
      attempt.signal.throwIfAborted();
      await this.#change(attempt.signal);
    }
  }

  async estimate(place: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount> {
    return (await this.knownEstimate(place, context)) ?? NOTHING;
  }

  /** What the stage says, else the mean of its past attempts; null: neither is there. */
  async knownEstimate({ stage }: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount | null> {
    return stageEstimate(stage, context) ?? this.mean(stage.name);
  }

  /** What past attempts have cost, each; null while there are none. */
  async mean(stage: string): Promise<Amount | null> {
    const history = (await this.#history())[stage];
    return history === undefined || history.attempts === 0 ? null : estimate(null, history);
  }

  #history(): Promise<Record<string, CostHistory>> {
    const now = this.#clock.monotonic();
    if (this.#costs === null || now - this.#askedAt > FRESH) {
      this.#askedAt = now;
      this.#costs = this.#store.work.costs(this.#pipeline);
    }
    return this.#costs;
  }

  /** Until something was committed here, or a while has passed. */
  #change(signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const unlisten = this.#store.onChange(() => resolve(), { ownOnly: true });
    const cancel = this.#clock.after(ASK_AGAIN, resolve);
    signal.addEventListener("abort", () => resolve(), { once: true });
    return promise.finally(() => {
      unlisten();
      cancel();
    });
  }
}
