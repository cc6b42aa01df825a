import type { Build } from "../core/pipelines/build-view.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { Engine } from "../engine/engine.ts";
import type { Orchestrator } from "./orchestrator.ts";
import { type Outputs, viewBuild } from "./outputs.ts";
import type { Worksite } from "./worksite.ts";
import { SourceChanges } from "./sources/changes.ts";
import { type BuildRow, type BuildStore, newestBuild } from "../store/builds.ts";

/** Seen no more often than this, in milliseconds: a picture for people. */
const FRAME = 100;

/** A build that this process leads. */
export class BuildHandle<All = unknown> {
  readonly id: string;
  readonly types?: { all: All };
  readonly #engine: Engine;
  readonly #outputs: Outputs;
  #row: BuildRow;
  #orchestrator!: Orchestrator;
  #seen = 0;
  #wake: (() => void)[] = [];
  #done: Promise<Build> | null = null;

  /** @internal */
  constructor(engine: Engine, row: BuildRow, outputs: Outputs) {
    this.#outputs = outputs;
    this.id = row.id;
    this.#engine = engine;
    this.#row = row;
  }

  /** @internal */
  ledBy(orchestrator: Orchestrator, signal: AbortSignal | undefined): void {
    this.#orchestrator = orchestrator;
    this.#done = orchestrator.ended.then(({ row, token }) => viewBuild(this.#engine.store, row, token));
    this.#done.catch(() => {});
    if (signal === undefined) return;
    const stop = (): void => void orchestrator.stop();
    // It may have been aborted while the build was being started.
    if (signal.aborted) return stop();
    signal.addEventListener("abort", stop, { once: true });
    void orchestrator.ended.then(() => signal.removeEventListener("abort", stop));
  }

  /** @internal */
  saw(row: BuildRow): void {
    this.#row = row;
    this.#seen++;
    for (const wake of this.#wake.splice(0)) wake();
  }

  /** How it ended, or was left: resolves in every state. */
  done(): Promise<Build> {
    return this.#done as Promise<Build>;
  }

  /** Lets what runs end, and leaves a build that can be resumed. */
  async stop(): Promise<Build> {
    await this.#orchestrator.stop();
    return this.done();
  }

  /** The build as it goes on; the last one is as `done` answers. */
  async *progress(): AsyncIterable<Build> {
    const ended = this.done();
    const over = ended.then(() => true);
    for (let seen = -1; ;) {
      if (seen !== this.#seen) {
        seen = this.#seen;
        yield await viewBuild(this.#engine.store, this.#row);
      }
      const news = Promise.withResolvers<false>();
      this.#wake.push(() => news.resolve(false));
      if (seen === this.#seen && (await Promise.race([news.promise, over]))) break;
      const pause = Promise.withResolvers<false>();
      const timer = setTimeout(() => pause.resolve(false), FRAME);
      const isOver = await Promise.race([over, pause.promise]);
      clearTimeout(timer);
      if (isOver) break;
    }
    yield await ended;
  }

  /** What a stage has made of a target; a stage with one target needs none named. */
  output<N extends keyof All>(stage: N, target?: string): Promise<All[N]> {
    return this.#outputs.one(this.#row, stage as string, target) as Promise<All[N]>;
  }

  /** All that a stage has made, in the order of the targets' ids. */
  outputs<N extends keyof All>(stage: N): AsyncIterable<{ target: string; output: All[N] }> {
    return this.#outputs.all(this.#row, stage as string) as AsyncIterable<{ target: string; output: All[N] }>;
  }
}

/** A build that is paused, or led by somebody else, is looked after this often. */
const LOOK_AGAIN = 3_000;

interface WatchParts {
  site: Worksite;
  signal: AbortSignal;
  /** A rerun is asked for once, not with each change. */
  start: (isFirst: boolean) => Promise<BuildHandle>;
  resume: (id: string) => Promise<BuildHandle>;
}

/** Builds, waits until the source is another, and builds again, until the signal says that it is enough. */
export async function* watchBuilds(parts: WatchParts): AsyncGenerator<Build> {
  const { site, signal } = parts;
  using changes = sourceChanges(site);
  for (let isFirst = true; !signal.aborted; isFirst = false) {
    await changes.mark();
    if (signal.aborted) return;
    const handle = await next(parts, isFirst);
    if (handle !== null) yield await handle.done();
    if (!(await changes.next(signal, handle === null ? LOOK_AGAIN : undefined))) return;
  }
}

/** What wakes whoever builds this again and again. */
export function sourceChanges({ model, folders, engine }: Worksite): SourceChanges {
  return new SourceChanges({ source: model.definition.source, folders, clock: engine.clock, log: engine.log });
}

/** The build that is to be done now. Null: somebody has to approve a budget first, or leads one. */
async function next({ site, signal, start, resume }: WatchParts, isFirst: boolean): Promise<BuildHandle | null> {
  const { builds } = site.engine.store;
  try {
    const open = await unfinished(builds, site.model.name);
    if (open === null) return await start(isFirst);
    if (open.state === "BUDGET_PAUSE" && !open.approved && !isFirst) return null;
    return await resume(open.id);
  } catch (error) {
    if (error === signal.reason) return null;
    if (!isFirst && error instanceof HoldfastError && error.code === "LOCK_CONFLICT") return null;
    throw error;
  }
}

/** The build of a pipeline that could be gone on with: there is one at most. */
export async function unfinished(builds: BuildStore, pipeline: string): Promise<BuildRow | null> {
  return (await newestBuild(builds, pipeline, "BUDGET_PAUSE")) ?? newestBuild(builds, pipeline, "CRASHED");
}
