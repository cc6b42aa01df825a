import { isDeepStrictEqual } from "node:util";
import { fromBudget } from "../../core/budget.ts";
import type { Build } from "../../core/build-view.ts";
import type { Cost } from "../../core/cost.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Pipeline } from "../../core/pipeline.ts";
import type { BuildHandle } from "../../runtime/builds/build-handle.ts";
import type { Model } from "../../runtime/builds/model.ts";
import { warningsOf } from "../../runtime/builds/plan.ts";
import { type BuildOptions, checkBuildOptions } from "../../runtime/builds/settings.ts";
import { unfinished } from "../../runtime/builds/watch.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import type { BuildRow } from "../../store/builds.ts";

export interface Wanted {
  pipeline: Pipeline;
  model: Model;
  options: BuildOptions;
  token?: string | undefined;
  /** Abandons what was interrupted, and starts anew. */
  fresh?: boolean | undefined;
  /** How it is called again, for people. */
  again: string;
  signal: AbortSignal;
}

export type Begun = { handle: BuildHandle; how: "started" | "resumed"; warnings: string[] } | { paused: Build };

/** Starts a build, or goes on with the one that was interrupted, or with one that is paused, if somebody pays for it. */
export async function begin(hf: Holdfast, wanted: Wanted): Promise<Begun> {
  const { pipeline, model, options, signal } = wanted;
  const { builds } = hf.engine.store;
  const warnings = warningsOf(model, await builds.newestBuild(model.name));
  const open = await unfinished(builds, model.name);
  if (open === null || (wanted.fresh && open.state === "CRASHED")) {
    if (wanted.token !== undefined) throw nothingPaused(model.name);
    // With the start a build that was interrupted is abandoned.
    return { handle: await hf.builds.start(pipeline, { ...options, signal }), how: "started", warnings };
  }
  return resume(hf, open, wanted, warnings);
}

/** Goes on with this build. */
export async function resume(hf: Holdfast, row: BuildRow, wanted: Wanted, warnings: string[]): Promise<Begun> {
  const { pipeline, options, signal, token, again } = wanted;
  const { concurrency } = options;
  const goOn = { signal, ...(concurrency === undefined ? {} : { concurrency }) };
  const isPaused = row.state === "BUDGET_PAUSE";
  if (isPaused && !row.approved && token === undefined) return { paused: (await hf.builds.get(row.id)) as Build };
  refuseOthers(row, wanted);
  const paid = isPaused && token !== undefined ? { token, budget: options.budget as Cost } : {};
  try {
    return { handle: await hf.builds.resume(pipeline, row.id, { ...goOn, ...paid }), how: "resumed", warnings };
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "PIPELINE_CHANGED") throw changed(error, row, again);
    throw error;
  }
}

/** It goes on as it was started; what somebody asks for now must not be passed over in silence. */
function refuseOthers(row: BuildRow, { model, options, token, again }: Wanted): void {
  const checked = checkBuildOptions(model, options, "run");
  const settings = JSON.parse(row.options) as { rerun: string[]; only: object };
  const isApproving = row.state === "BUDGET_PAUSE" && token !== undefined;
  const differ = [
    options.rerun !== undefined && !isDeepStrictEqual(checked.settings.rerun, settings.rerun) && "--rerun",
    options.only !== undefined && !isDeepStrictEqual(checked.settings.only, settings.only) && "--only",
    options.maxFailures !== undefined && options.maxFailures !== row.maxFailures && "--max-failures",
    options.budget !== undefined && !isApproving && !isDeepStrictEqual(options.budget, fromBudget(row.budget)) && "--budget",
  ].filter((name) => name !== false);
  if (differ.length === 0) return;
  throw new HoldfastError(
    "USAGE",
    `Build ${row.id} is ${row.state} and goes on as it was started, with other ${differ.join(" and ")} than now.`,
    row.state === "CRASHED"
      ? `Leave ${differ.join(" and ")} out to go on. To start anew: ${again} --fresh; finished work is reused.`
      : `Leave ${differ.join(" and ")} out to go on.`,
  );
}

function changed({ message }: HoldfastError, { id, state }: BuildRow, again: string): HoldfastError {
  const hint =
    state === "CRASHED"
      ? `${again} --fresh abandons it and starts anew: finished work is reused.`
      : `holdfast builds abandon ${id} --reason "…" ends it; then start anew: finished work is reused.`;
  return new HoldfastError("PIPELINE_CHANGED", message, hint);
}

function nothingPaused(pipeline: string): HoldfastError {
  return new HoldfastError(
    "USAGE",
    `A token was given, and no build of pipeline "${pipeline}" is paused.`,
    "Leave --token out to start one.",
  );
}
