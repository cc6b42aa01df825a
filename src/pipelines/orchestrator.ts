import { limitArguments } from "../core/text/options.ts";
import { randomBytes } from "node:crypto";
import { TOKEN_BYTES, tokenOf } from "../core/pipelines/budget.ts";
import type { Build } from "../core/pipelines/build-view.ts";
import { hasEnded, nextBuildMove, nextPausedMove, startsNothingNew, type WantedMove } from "../core/pipelines/build.ts";
import { gatherSegment } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { Engine } from "../engine/engine.ts";
import { describeError } from "../engine/log.ts";
import { ITEMS_PER_CLEAR } from "../engine/maintenance/janitor.ts";
import type { Worker } from "../engine/worker.ts";
import { buildById, type BuildRow, type LockToken, newestBuild, type OrchestratedBuild } from "../store/builds.ts";
import { BuildContext } from "./stage-planner.ts";
import type { Model } from "./model.ts";
import { type Outputs, viewBuild } from "./outputs.ts";
import { SourceChanges } from "./sources/changes.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";
import type { BuildStore, Store } from "../store/store.ts";

const MIN_LOOK_INTERVAL_MS = 25;
/** The longest time between two looks at the build, because a notification may be lost. */
const MAX_LOOK_INTERVAL_MS = 1_000;
/** How long a pausing build waits for running attempts, which have been paid for already. */
const PAUSE_DRAIN_MS = 24 * 3_600_000;

interface OrchestratorParts {
  engine: Engine;
  model: Model;
  row: OrchestratedBuild;
  lock: LockToken;
  worker: Worker;
  /** Called before the orchestrator releases the build. Listings stop then, because the next orchestrator continues them. */
  onLeave: () => void;
}

/** Starts rounds and moves one build between states; workers in any process do the work. It stops when its token is gone. */
export class Orchestrator {
  readonly ended: Promise<{ row: BuildRow; token?: string }>;
  row: BuildRow;
  #changed = Promise.withResolvers<void>();
  readonly #parts: OrchestratorParts;
  readonly #buildContext: BuildContext;
  readonly #end = Promise.withResolvers<{ row: BuildRow; token?: string }>();
  readonly #quit: (() => void)[] = [];
  #looking = false;
  #again = false;
  #timer: (() => void) | null = null;
  #due = 0;
  #over = false;
  /** The queue stays paused until leftovers of earlier builds are cleared. */
  #isQueuePaused: boolean;
  /** True while targets that failed before the resume are still to be listed again. */
  #retries: boolean;
  #stopping: Promise<void> | null = null;

  constructor(parts: OrchestratorParts) {
    this.#parts = parts;
    this.row = parts.row;
    this.#isQueuePaused = parts.row.isQueuePaused;
    this.#retries = parts.row.retries;
    this.#buildContext = new BuildContext(parts.engine.store, parts.model, parts.row);
    this.ended = this.#end.promise;
    const { engine, lock } = parts;
    this.#quit.push(
      engine.store.onChange(() => this.#soon(MIN_LOOK_INTERVAL_MS)),
      engine.heartbeats.watch(lock, () => this.#lost()),
    );
    this.#soon(0);
  }

  get changed(): Promise<void> {
    return this.#changed.promise;
  }

  #saw(row: BuildRow): void {
    this.row = row;
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }

  /** Releases the build. Running attempts may finish within the worker's drain time; a resume continues the build. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    if (this.#over) return;
    this.#parts.onLeave();
    await this.#parts.worker.stop();
    // An attempt that just ended may have been the last one.
    while (this.#looking) await new Promise((resolve) => setImmediate(resolve));
    await this.#look();
    if (!this.#over) await this.#move({ move: "crash", reason: "stopped" });
    await this.ended;
  }

  #soon(delay: number): void {
    if (this.#over) return;
    if (this.#looking) return void (this.#again = true);
    const { clock } = this.#parts.engine;
    const due = clock.monotonic() + delay;
    if (this.#timer !== null && this.#due <= due) return;
    this.#timer?.();
    this.#due = due;
    this.#timer = clock.after(delay, () => void this.#look());
  }

  async #look(): Promise<void> {
    if (this.#looking || this.#over) return;
    this.#timer?.();
    this.#timer = null;
    this.#looking = true;
    this.#again = false;
    const {
      engine,
      row: { id },
    } = this.#parts;
    try {
      const row = await buildById(engine.store.builds, id);
      if (row !== null) {
        this.#saw(row);
        await this.#lead(row);
      }
    } catch (error) {
      engine.log.warn("leading a build failed; it is tried again", { build: id, ...describeError(error) });
    }
    this.#looking = false;
    this.#soon(this.#again ? MIN_LOOK_INTERVAL_MS : MAX_LOOK_INTERVAL_MS);
  }

  async #lead(row: BuildRow): Promise<void> {
    if (row.state !== "ACTIVE") return this.#finish(row);
    if (this.#isQueuePaused) await this.#letRun(row);
    if (this.#stopping !== null && row.open > 0) return;
    const isFailing = startsNothingNew(row);
    const { engine, model, lock } = this.#parts;
    if (this.#retries && !isFailing && row.listing === "done" && (row.round === 0 || row.open === 0)) {
      // List failed targets again from round 0 on. Gathers behind them run again if their members have changed.
      const listing = model.listingJob(row.key, 0, "failed");
      this.#retries = !(await engine.store.builds.advance(row.id, lock, { round: 0, listing }));
      return;
    }
    if (!isFailing && row.listing === "done" && row.open === 0 && row.blocked === null) {
      const next = this.#nextRound(row);
      if (next !== null) {
        await engine.store.builds.advance(row.id, lock, { round: next, listing: model.listingJob(row.key, next) });
        return;
      }
    }
    const move = nextBuildMove(row);
    if (move !== null) await this.#move(move);
  }

  async #letRun({ id }: BuildRow): Promise<void> {
    const { engine, lock } = this.#parts;
    const clearing = { pipeline: lock.pipeline, which: "all", limit: ITEMS_PER_CLEAR } as const;
    while (!this.#over && (await engine.store.work.clearWork(clearing)) > 0);
    this.#isQueuePaused = !(await engine.store.builds.advance(id, lock, "run"));
  }

  #nextRound({ round, failed }: BuildRow): number | null {
    const segment = gatherSegment(this.#parts.model.segments, round + 1);
    const gather = segment?.stages[0];
    if (gather === undefined || !this.#buildContext.includes(this.#parts.model.place(gather.name))) return null;
    return failed === 0 || gather.partial ? round + 1 : null;
  }

  async #move(wanted: WantedMove): Promise<void> {
    const { engine, row, lock } = this.#parts;
    const minted = wanted.move === "pause" ? { bytes: new Uint8Array(randomBytes(TOKEN_BYTES)) } : undefined;
    try {
      const moved = await engine.store.builds.move(row.id, wanted, lock, minted);
      if (moved === null) return this.#lost();
      await this.#finish(moved, minted === undefined ? undefined : tokenOf(minted.bytes));
    } catch (error) {
      // Attempts are still running; their settles wake the orchestrator.
      if (!(error instanceof HoldfastError) || error.code !== "BUILD_NOT_READY") throw error;
    }
  }

  /** Ends this orchestrator, because another process took the lock or an operator broke it. */
  #lost(): void {
    if (this.#over) return;
    const { engine, row } = this.#parts;
    const hint = `Another process leads it by now; if none does, \`holdfast builds resume ${row.id}\`.`;
    engine.log.error("the lock of a pipeline is gone; its build is let go", { build: row.id, hint });
    void this.#read().then((row) => this.#finish(row));
  }

  async #finish(row: BuildRow, token?: string): Promise<void> {
    if (this.#over) return;
    this.#over = true;
    this.#timer?.();
    for (const quit of this.#quit.splice(0)) quit();
    this.#parts.onLeave();
    await this.#parts.worker.stop(row.state === "BUDGET_PAUSE" ? { drain: PAUSE_DRAIN_MS } : {});
    await this.#clear(row.state === "BUDGET_PAUSE" ? await this.#afterPause(row) : row);
    const last = await this.#read().catch(() => row);
    this.#saw(last);
    this.#end.resolve({ row: last, ...(token === undefined || hasEnded(last.state) ? {} : { token }) });
  }

  /** Runs when the attempts in flight at the pause have ended. It fails the build if a larger budget would not help. */
  async #afterPause(paused: BuildRow): Promise<BuildRow> {
    const { engine } = this.#parts;
    try {
      const row = await this.#read();
      const move = row.state === "BUDGET_PAUSE" ? nextPausedMove(row) : null;
      return (move && (await engine.store.builds.move(row.id, move, { by: engine.actor }))) ?? row;
    } catch (error) {
      // Attempts in other processes are still running; the process that resumes the build decides.
      const isEarly = error instanceof HoldfastError && error.code === "BUILD_NOT_READY";
      if (!isEarly) engine.log.warn("a paused build was not looked at again", { build: paused.id, ...describeError(error) });
      return paused;
    }
  }

  /** Cancels leftover work. Janitors finish this if the process dies. */
  async #clear({ state, pipeline, id: build }: BuildRow): Promise<void> {
    const { janitor, log } = this.#parts.engine;
    if (!hasEnded(state)) return;
    await janitor
      .clearWork(pipeline)
      .catch((error: unknown) => log.warn("clearing away what is left of a build failed", { build, ...describeError(error) }));
  }

  async #read(): Promise<BuildRow> {
    const { engine, row } = this.#parts;
    return (await buildById(engine.store.builds, row.id)) ?? row;
  }
}

const PROGRESS_INTERVAL_MS = 100;

/** A build that this process orchestrates. */
export class BuildHandle<All = unknown> {
  static {
    limitArguments(this.prototype, "build", { done: 0, stop: 0, progress: 0, output: 2, outputs: 1 });
  }

  readonly id: string;
  readonly types?: { all: All };
  readonly #store: Store;
  readonly #outputs: Outputs;
  readonly #orchestrator: Orchestrator;
  readonly #done: Promise<Build>;

  /** @internal */
  constructor(store: Store, orchestrator: Orchestrator, outputs: Outputs, signal: AbortSignal | undefined) {
    this.id = orchestrator.row.id;
    this.#store = store;
    this.#outputs = outputs;
    this.#orchestrator = orchestrator;
    this.#done = orchestrator.ended.then(({ row, token }) => viewBuild(store, row, token));
    this.#done.catch(() => {});
    if (signal === undefined) return;
    const stop = (): void => void orchestrator.stop();
    // The signal may have aborted while the build was being started.
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
    void orchestrator.ended.then(() => signal.removeEventListener("abort", stop));
  }

  /** Resolves in every state with the build as it ended or was left. */
  done(): Promise<Build> {
    return this.#done;
  }

  /** Lets running attempts end, and leaves a build that can be resumed. */
  async stop(): Promise<Build> {
    await this.#orchestrator.stop();
    return this.done();
  }

  /** Views of the running build. The last one equals the result of `done`. */
  async *progress(): AsyncIterable<Build> {
    const over = this.#done.then(() => true);
    for (let isOver = false; !isOver;) {
      const changed = this.#orchestrator.changed.then(() => false);
      yield await viewBuild(this.#store, this.#orchestrator.row);
      const { promise: pause, resolve } = Promise.withResolvers<false>();
      const timer = setTimeout(() => resolve(false), PROGRESS_INTERVAL_MS);
      isOver = (await Promise.race([over, pause])) || (await Promise.race([over, changed]));
      clearTimeout(timer);
    }
    yield await this.#done;
  }

  /** The output of a stage for a target. The target can be left out if the stage has only one. */
  output<N extends keyof All>(stage: N, target?: string): Promise<All[N]> {
    return this.#outputs.one(this.#orchestrator.row, stage as string, target) as Promise<All[N]>;
  }

  /** All outputs of a stage, ordered by target id. */
  outputs<N extends keyof All>(stage: N): AsyncIterable<{ target: string; output: All[N] }> {
    return this.#outputs.all(this.#orchestrator.row, stage as string) as AsyncIterable<{ target: string; output: All[N] }>;
  }
}

/** How often `watch` checks a build that is paused or orchestrated by another process. */
const RECHECK_MS = 3_000;

interface WatchParts {
  runtime: PipelineRuntime;
  signal: AbortSignal;
  /** `rerun` applies to the first build only. */
  start: (isFirst: boolean) => Promise<BuildHandle>;
  resume: (id: string) => Promise<BuildHandle>;
}

export async function* watchBuilds(parts: WatchParts): AsyncGenerator<Build> {
  const { runtime, signal } = parts;
  using changes = sourceChanges(runtime);
  for (let isFirst = true; !signal.aborted; isFirst = false) {
    await changes.mark();
    if (signal.aborted) return;
    const handle = await next(parts, isFirst);
    if (handle !== null) yield await handle.done();
    if (!(await changes.next(signal, handle === null ? RECHECK_MS : undefined))) return;
  }
}

export function sourceChanges({ model, folders, engine }: PipelineRuntime): SourceChanges {
  return new SourceChanges({ source: model.definition.source, folders, clock: engine.clock, log: engine.log });
}

/** Returns null if the budget needs an approval first, or another process orchestrates a build. */
async function next({ runtime, signal, start, resume }: WatchParts, isFirst: boolean): Promise<BuildHandle | null> {
  const { builds } = runtime.engine.store;
  try {
    const open = await unfinished(builds, runtime.model.name);
    if (open === null) return await start(isFirst);
    if (open.state === "BUDGET_PAUSE" && !open.approved && !isFirst) return null;
    return await resume(open.id);
  } catch (error) {
    if (error === signal.reason) return null;
    if (!isFirst && error instanceof HoldfastError && error.code === "LOCK_CONFLICT") return null;
    throw error;
  }
}

/** Returns the build that can be resumed. A pipeline has at most one. */
export async function unfinished(builds: BuildStore, pipeline: string): Promise<BuildRow | null> {
  return (await newestBuild(builds, pipeline, "BUDGET_PAUSE")) ?? newestBuild(builds, pipeline, "CRASHED");
}
