import { type CostHistory, meanCost } from "../core/pipelines/budget.ts";
import { type Amount, type Cost, NO_COST, plus, toAmount } from "../core/pipelines/cost.ts";
import { stageEstimate } from "../core/pipelines/stage.ts";
import { LeaseLostError, isTransient } from "../core/text/errors.ts";
import { type Attempt, SettleAs, permanentFailure } from "../engine/attempt.ts";
import type { Engine } from "../engine/engine.ts";
import { describeError } from "../engine/log.ts";
import type { BuildRow } from "../store/builds.ts";
import type { StagePosition } from "./model.ts";

/** A crash loses at most the costs reported within this time; an attempt that ends sooner reports them when it settles. */
const COST_SAVE_DELAY_MS = 50;

/** Adds up what running attempts report, and saves it before they end so that a crash does not lose it. */
export class CostRecorder {
  readonly #engine: Engine;
  readonly #unsaved = new Set<Attempt>();

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  add(attempt: Attempt, cost: Cost, what: string): void {
    const amount = toAmount(cost, what);
    if (attempt.isOver || attempt.work === undefined) return;
    attempt.work.cost = plus(attempt.work.cost, amount);
    if (this.#unsaved.size === 0) this.#engine.clock.after(COST_SAVE_DELAY_MS, () => this.#save());
    this.#unsaved.add(attempt);
  }

  #save(): void {
    const open = [...this.#unsaved].filter(({ isOver }) => !isOver);
    this.#unsaved.clear();
    const reports = open.map(({ job, fence, work }) => ({ job, fence, cost: work?.cost ?? NO_COST }));
    if (reports.length === 0) return;
    const { store, log } = this.#engine;
    store
      .saveProgress(reports)
      .catch((error: unknown) => log.warn("costs were not written; they go with the attempt's end", describeError(error)));
  }
}

const COST_HISTORY_TTL_MS = 1_000;
/** Retry interval for a reservation; another attempt may have freed budget without a notification. */
const RESERVE_RETRY_MS = 250;

/** Reserves an attempt's estimate before the attempt starts. While the budget has no room, the attempt waits or is released. */
export class BudgetReserver {
  readonly #engine: Engine;
  readonly #pipeline: string;
  #costs: Promise<Record<string, CostHistory>> | null = null;
  #askedAt = 0;

  constructor(engine: Engine, pipeline: string) {
    this.#engine = engine;
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
    const known = await this.knownEstimate(place, context).catch((error: unknown) => {
      // A retry would get the same error.
      throw isTransient(error) ? error : new SettleAs(permanentFailure(error));
    });
    const { store, clock, leaseTable } = this.#engine;
    const { job, fence, claimed } = attempt;
    for (;;) {
      const [answer] = await store.work.begin([{ job, fence, estimate: known ?? NO_COST }]);
      // The attempt's timeout starts when its reservation is granted.
      if (attempt.lost === null) leaseTable.setTimeoutAt(attempt.slot, clock.monotonic() + claimed.policy.timeout);
      if (answer === "start") return;
      if (answer === "lost") throw new LeaseLostError(claimed.id, "start");
      if (answer === "pause") throw new SettleAs({ kind: "released" });
      attempt.signal.throwIfAborted();
      await this.#change(attempt.signal);
    }
  }

  /** The stage's own estimate, else the mean cost of its past attempts; null: there is neither. */
  async knownEstimate({ stage }: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount | null> {
    return stageEstimate(stage, context) ?? this.mean(stage.name);
  }

  /** The mean cost of past attempts; null while there are none. */
  async mean(stage: string): Promise<Amount | null> {
    const { store, clock } = this.#engine;
    const now = clock.monotonic();
    if (this.#costs === null || now - this.#askedAt > COST_HISTORY_TTL_MS) {
      this.#askedAt = now;
      this.#costs = store.work.costs(this.#pipeline);
    }
    const history = (await this.#costs)[stage];
    return history === undefined ? null : meanCost(history);
  }

  #change(signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const unlisten = this.#engine.store.onChange(() => resolve(), { ownOnly: true });
    const cancel = this.#engine.clock.after(RESERVE_RETRY_MS, resolve);
    signal.addEventListener("abort", () => resolve(), { once: true });
    return promise.finally(() => {
      unlisten();
      cancel();
    });
  }
}
