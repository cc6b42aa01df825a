import { resolve } from "node:path";
import type { Artifacts } from "../artifacts/artifacts.ts";
import { toJobError } from "../core/jobs/job.ts";
import type { Fingerprint } from "../core/pipelines/work.ts";
import type { BuildKey, JobKey } from "../core/text/ids.ts";
import { SettleAs, type Attempt, permanentFailure } from "../engine/attempt.ts";
import type { Engine } from "../engine/engine.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Claimed } from "../store/store.ts";
import type { WorkView } from "../store/work.ts";
import type { Model, StagePosition } from "./model.ts";
import { ClaimedFile } from "./sources/file-target.ts";
import { Root } from "./sources/root.ts";
import { BuildContext, LiveTargets } from "./stage-planner.ts";
import { Batcher, ResultReader, Values } from "./values.ts";
import { type CostHistory, meanCost, type Amount, type Cost, NO_COST, plus, toAmount } from "../core/pipelines/budget.ts";
import { stageEstimate } from "../core/pipelines/stage.ts";
import { LeaseLostError, isTransient } from "../core/text/errors.ts";
import { describeError } from "../engine/log.ts";

const VIEW_BATCH_SIZE = 500;

/** How long a worker with another definition of the pipeline leaves its queue alone. */
const OTHER_DEFINITION_PAUSE_MS = 5_000;
/** Leftover jobs of an ended build are cancelled within this time. */
const CLEAR_RETRY_MS = 1_000;

export class PipelineRuntime {
  readonly engine: Engine;
  readonly model: Model;
  readonly artifacts: () => Promise<Artifacts>;
  readonly values: Values;
  readonly reader: ResultReader;
  readonly costs: CostRecorder;
  readonly budget: BudgetReserver;
  readonly targets: LiveTargets;
  readonly folders: { cwd: string; skip: readonly string[] };
  readonly #views: Batcher<JobKey, WorkView | null>;
  readonly #prefetched = new WeakMap<Claimed, Promise<WorkView | null>>();
  #buildContext: BuildContext | null = null;
  readonly #leaving = new Set<BuildKey>();
  #restsUntil = Number.NEGATIVE_INFINITY;

  constructor(engine: Engine, model: Model) {
    this.engine = engine;
    this.model = model;
    this.artifacts = () => engine.artifacts();
    this.values = new Values(this.artifacts);
    this.reader = new ResultReader(engine.store.work, this.values);
    this.costs = new CostRecorder(engine);
    this.budget = new BudgetReserver(engine, model.name);
    this.#views = new Batcher(VIEW_BATCH_SIZE, (jobs) => engine.store.work.works(jobs));
    this.folders = { cwd: process.cwd(), skip: ownFiles(engine) };
    this.targets = new LiveTargets(model, engine.store.work, (id, fingerprint) => this.#claimFile(id, fingerprint));
  }

  get hasArtifacts(): boolean {
    return this.engine.location.kind === "sqlite" || this.engine.artifactFolder.path !== null;
  }

  /** Opens the artifact folder for a source of files, which needs it for copies and snapshots. */
  async ready(): Promise<void> {
    if (this.model.definition.source.kind === "files") await this.artifacts();
  }

  prefetch(claimed: Claimed): void {
    if (this.#prefetched.has(claimed)) return;
    const view = this.#views.get(claimed.job);
    // The attempt gets the error when it awaits the view.
    view.catch(() => {});
    this.#prefetched.set(claimed, view);
  }

  /** Gives the view of a claimed job whose target this process has just written, so that nothing is read. */
  know(claimed: Claimed, view: WorkView): void {
    this.#prefetched.set(claimed, Promise.resolve(view));
  }

  view(claimed: Claimed): Promise<WorkView | null> {
    const view = this.#prefetched.get(claimed);
    this.#prefetched.delete(claimed);
    return view ?? this.#views.get(claimed.job);
  }

  isInside(path: string): boolean {
    return new Root(this.pathOf("."), this.folders.skip).holds(path);
  }

  pathOf(id: string): string {
    const { source } = this.model.definition;
    return resolve(this.folders.cwd, (source.kind === "files" ? source.root : null) ?? ".", id);
  }

  #claimFile(id: string, fingerprint: Fingerprint): ClaimedFile {
    const { source } = this.model.definition;
    const { artifactFolder } = this.engine;
    const pathOf = () => this.pathOf(id);
    // Compute the path on use, because most files are only compared by their fingerprint.
    return new ClaimedFile({
      id,
      fingerprint,
      snapshot: source.kind === "files" && source.snapshot,
      get path() {
        return pathOf();
      },
      get artifacts() {
        return artifactFolder.opened;
      },
    });
  }

  /** Rejects a build that was started with another definition of the pipeline. */
  buildContext(build: BuildRow): BuildContext {
    if (build.state !== "ACTIVE" && build.state !== "BUDGET_PAUSE") {
      // Another process is about to cancel the leftover jobs.
      throw new SettleAs({
        kind: "later",
        delay: CLEAR_RETRY_MS,
        error: toJobError(new Error(`build ${build.id} is ${build.state}`)),
      });
    }
    if (build.hash !== this.model.hash) {
      if (!this.isResting())
        this.engine.log.warn(
          "a build was started with another definition of its pipeline than this process has; others work on it",
          {
            build: build.id,
            pipeline: build.pipeline,
            hint: "Run the same code here as where the build was started, or let it end there first.",
          },
        );
      this.#restsUntil = this.engine.clock.monotonic() + OTHER_DEFINITION_PAUSE_MS;
      throw new SettleAs({ kind: "released" });
    }
    if (this.#buildContext?.build.key !== build.key) this.#buildContext = new BuildContext(this.engine.store, this.model, build);
    return this.#buildContext;
  }

  /** Marks the build as orchestrated here. Call the result before the orchestrator releases the build. */
  lead(build: BuildKey): () => void {
    this.#leaving.delete(build);
    return () => void this.#leaving.add(build);
  }

  isLeaving(build: BuildKey): boolean {
    return this.#leaving.has(build);
  }

  isResting(): boolean {
    return this.engine.clock.monotonic() < this.#restsUntil;
  }
}

function ownFiles({ location, artifactFolder }: Engine): string[] {
  const { path } = artifactFolder;
  const own =
    location.kind === "sqlite" && location.path !== ":memory:"
      ? ["", "-wal", "-shm", "-journal", "-alive", "-findings", "-witness"]
      : [];
  const database = location.kind === "sqlite" ? location.path : "";
  return [...own.map((suffix) => database + suffix), ...(path === null ? [] : [path])];
}

/** A crash loses at most the costs reported within this time. An attempt that ends sooner reports them when it settles. */
const COST_SAVE_DELAY_MS = 50;

/** Adds up the costs that running attempts report, and saves them before the attempts end so that a crash does not lose them. */
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

  /** Returns the stage's own estimate, else the mean cost of its past attempts, or null if there is neither. */
  async knownEstimate({ stage }: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount | null> {
    return stageEstimate(stage, context) ?? this.mean(stage.name);
  }

  async mean(stage: string): Promise<Amount | null> {
    const { store, clock } = this.#engine;
    const now = clock.monotonic();
    if (this.#costs === null || now - this.#askedAt > COST_HISTORY_TTL_MS) {
      this.#askedAt = now;
      this.#costs = store.work.costs(this.#pipeline);
    }
    const history = (await this.#costs)[stage];
    // A stage without costs is estimated as free: its first cost counts at once.
    if (history === undefined) this.#costs = null;
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
