import type { Build } from "../../core/build-view.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Pipeline } from "../../core/pipeline.ts";
import type { BuildHandle } from "../../runtime/builds/build-handle.ts";
import type { Model } from "../../runtime/builds/model.ts";
import { warningsOf } from "../../runtime/builds/plan.ts";
import type { BuildOptions } from "../../runtime/builds/settings.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { Operator } from "../../runtime/operator.ts";
import type { BuildRow } from "../../store/builds.ts";
import { environmentToken } from "../arguments.ts";

export interface Wanted {
  pipeline: Pipeline;
  model: Model;
  options: BuildOptions;
  token?: string | undefined;
  /** Abandons what was interrupted, and starts anew. */
  fresh?: boolean | undefined;
  /** How it is called again, for people. */
  again: string;
  /** How a build that was interrupted is abandoned and another started, where the command can. */
  anew?: string;
  signal: AbortSignal;
}

export type Begun = { handle: BuildHandle; how: "started" | "resumed"; warnings: string[] } | { paused: Build };

/** Starts a build, or goes on with the one that was interrupted, or with one that is paused, if somebody pays for it. */
export async function begin(hf: Holdfast, wanted: Wanted): Promise<Begun> {
  const { pipeline, model, options, signal } = wanted;
  const operator = new Operator(hf);
  const warnings = warningsOf(model, await operator.newestBuild(model.name));
  const open = await operator.unfinishedBuild(model.name);
  if (open === null || (wanted.fresh && open.state === "CRASHED")) {
    if (wanted.token !== undefined) throw nothingPaused(model.name);
    // With the start a build that was interrupted is abandoned.
    return { handle: await hf.builds.start(pipeline, { ...options, signal }), how: "started", warnings };
  }
  return resume(hf, open, wanted, warnings);
}

/** Goes on with this build, as it was started: what it refuses is said in the words of the command. */
export async function resume(hf: Holdfast, row: BuildRow, wanted: Wanted, warnings: string[]): Promise<Begun> {
  const { pipeline, options, signal } = wanted;
  const isPaused = row.state === "BUDGET_PAUSE";
  const token = wanted.token ?? (isPaused && options.budget !== undefined ? environmentToken() : undefined);
  if (isPaused && !row.approved && token === undefined) return { paused: (await hf.builds.get(row.id)) as Build };
  const paid = isPaused && token !== undefined ? { token } : {};
  try {
    return { handle: await hf.builds.resume(pipeline, row.id, { ...options, ...paid, signal }), how: "resumed", warnings };
  } catch (error) {
    if (error instanceof HoldfastError && AS_STARTED.has(error.code)) throw refused(error, row, wanted.anew);
    throw error;
  }
}

/** It is another pipeline than it was started with, or other options, or another host. */
const AS_STARTED = new Set(["PIPELINE_CHANGED", "OPTION_INVALID", "TARGET_ELSEWHERE"]);

function refused({ code, message }: HoldfastError, { id, state }: BuildRow, anew: string | undefined): HoldfastError {
  const goOn = code === "OPTION_INVALID" ? "Leave it out to go on. Or " : "";
  const hint =
    state === "CRASHED" && anew !== undefined
      ? `${anew} abandons it and starts anew: finished work is reused.`
      : `holdfast builds abandon ${id} --reason "…" ends it; then start anew: finished work is reused.`;
  return new HoldfastError(code, message, goOn + hint);
}

function nothingPaused(pipeline: string): HoldfastError {
  return new HoldfastError(
    "USAGE",
    `A token was given, and no build of pipeline "${pipeline}" is paused.`,
    "Leave --token out to start one.",
  );
}
