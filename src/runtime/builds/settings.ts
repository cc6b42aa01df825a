import { type Budget, toBudget } from "../../core/budget.ts";
import type { Cost } from "../../core/cost.ts";
import { Only } from "../../core/only.ts";
import { checkCount, checkSignal, checkText, describeValue, invalidOption, refuseUnknown } from "../../core/options.ts";
import { checkConcurrency } from "../../core/run-options.ts";
import type { Model } from "./model.ts";

export interface BuildOptions {
  /** How much it may spend before it pauses; default: what the pipeline says. */
  budget?: Cost;
  /** How many work items run at once in this process; default 8. */
  concurrency?: number;
  /** So many targets may fail before nothing new is started; default: what the pipeline says. */
  maxFailures?: number;
  /** Stages whose results are made anew. */
  rerun?: string[];
  /**
   * Ids of targets, or globs of them: nothing else is looked at, and each has to be there. Names of stages: nothing behind the
   * last of them is run.
   */
  only?: string[];
  /** Stops it, as `stop` does. */
  signal?: AbortSignal;
}

/** What is kept of them with the build, for whoever works on it. */
export interface BuildSettings {
  rerun: string[];
  only: { stages: string[]; targets: string[] };
}

export interface CheckedOptions {
  settings: BuildSettings;
  budget: Budget;
  maxFailures: number | null;
  concurrency: number;
  signal: AbortSignal | undefined;
}

const CONCURRENCY = 8;

export function checkBuildOptions(model: Model, options: BuildOptions & { token?: string }, where: string): CheckedOptions {
  const known = ["budget", "concurrency", "maxFailures", "rerun", "only", "signal"];
  refuseUnknown(options, where === "builds.resume" ? [...known, "token"] : known, where);
  const { budget, concurrency = CONCURRENCY, maxFailures, rerun = [], only = [], signal, token } = options;
  if (token !== undefined) checkText(token, "token");
  const { definition } = model;
  for (const name of checkNames(rerun, "rerun")) model.place(name);
  const names = new Set(definition.stages.map(({ name }) => name));
  const chosen = checkNames(only, "only");
  const targets = chosen.filter((name) => !names.has(name));
  // Refuses what is no glob.
  void new Only(targets);
  if (signal !== undefined) checkSignal(signal, "signal");
  return {
    settings: {
      rerun,
      only: { stages: chosen.filter((name) => names.has(name)), targets },
    },
    budget: budget === undefined ? definition.budget : toBudget(budget, "`budget`"),
    maxFailures: maxFailures === undefined ? definition.maxFailures : checkCount(maxFailures, "maxFailures", 0),
    concurrency: checkConcurrency(concurrency, "concurrency"),
    signal,
  };
}

export function checkNames(names: unknown, option: string): string[] {
  if (Array.isArray(names) && names.every((name) => typeof name === "string" && name !== "")) return names as string[];
  throw invalidOption(
    `\`${option}\` must be an array of names, got ${describeValue(names)}.`,
    "Give non-empty strings in an array.",
  );
}
