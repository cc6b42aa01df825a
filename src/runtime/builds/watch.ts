import type { Build } from "../../core/build-view.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { BuildStore } from "../../store/builds.ts";
import { SourceChanges } from "../sources/changes.ts";
import type { BuildHandle } from "./build-handle.ts";
import type { Worksite } from "./worksite.ts";

/** A build that is paused, or led by somebody else, is looked after this often. */
const LOOK_AGAIN = 3_000;

export interface WatchParts {
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
export async function unfinished(builds: BuildStore, pipeline: string): ReturnType<BuildStore["newestBuild"]> {
  return (await builds.newestBuild(pipeline, "BUDGET_PAUSE")) ?? builds.newestBuild(pipeline, "CRASHED");
}
