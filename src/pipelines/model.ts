import { hash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { dirname, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import type { Policy } from "../core/jobs/retry.ts";
import { checkConcurrency } from "../core/jobs/run-options.ts";
import { type Budget, toBudget, type Cost } from "../core/pipelines/budget.ts";
import { OnlyTargets } from "../core/pipelines/source.ts";
import {
  describePipeline,
  type Pipeline,
  type PipelineDefinition,
  type PipelineDescription,
  pipelineHash,
  pipelineOf,
} from "../core/pipelines/pipeline.ts";
import type { StageDefinition } from "../core/pipelines/stage.ts";
import { listingJobName, pipelineQueue, type Segment, segmentsOf, stageJobName } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { type Glob, matchGlob } from "../core/text/glob.ts";
import type { BuildKey } from "../core/text/ids.ts";
import {
  checkCount,
  checkSignal,
  checkText,
  describeValue,
  didYouMean,
  invalidOption,
  refuseUnknown,
} from "../core/text/options.ts";
import { type DeclaredLimits, limitKeys } from "../engine/definition.ts";
import type { NewJob } from "../store/store.ts";
import type { NewWork } from "../store/work.ts";

export interface StagePosition {
  segment: Segment;
  index: number;
  stage: StageDefinition;
  position: number;
  declared: DeclaredLimits;
  glob: Glob | null;
}

/** A listing has no timeout: it commits as it proceeds, and loses its lease when it stops making progress. */
const LISTING: Policy = {
  attempts: 3,
  backoff: "exponential",
  delay: 1_000,
  maxDelay: 60_000,
  crashes: 10,
  onInterrupt: "resume",
  timeout: 7 * 86_400_000,
};

/** A pipeline as the engine runs it: its segments, and how work items become jobs. */
export class Model {
  readonly definition: PipelineDefinition;
  readonly description: PipelineDescription;
  readonly hash: string;
  readonly segments: readonly Segment[];
  readonly queue: string;
  /** True if only the host that lists the targets can process them. */
  readonly bound: boolean;
  readonly #places = new Map<string, StagePosition>();

  constructor(definition: PipelineDefinition, host: string) {
    this.definition = definition;
    this.description = describePipeline(definition);
    this.hash = pipelineHash(this.description);
    this.segments = segmentsOf(definition.stages);
    this.bound = definition.source.kind === "files" && !definition.source.snapshot;
    this.queue = pipelineQueue(definition.name, this.bound ? host : null);
    let position = 0;
    for (const segment of this.segments)
      for (const [index, stage] of segment.stages.entries())
        this.#places.set(stage.name, {
          segment,
          index,
          stage,
          position: position++,
          declared: this.#declare(stage),
          glob: typeof stage.match === "string" ? matchGlob(stage.match, `stage "${stage.name}"`) : null,
        });
  }

  get name(): string {
    return this.definition.name;
  }

  get places(): Iterable<StagePosition> {
    return this.#places.values();
  }

  place(stage: string): StagePosition {
    const place = this.#places.get(stage);
    if (place !== undefined) return place;
    throw new HoldfastError(
      "STAGE_UNKNOWN",
      `Pipeline "${this.name}" has no stage "${stage}".`,
      `${didYouMean(stage, [...this.#places.keys()])}Its stages are ${[...this.#places.keys()].join(", ") || "none"}.`,
    );
  }

  isExpand(stage: string): boolean {
    return this.#places.get(stage)?.stage.kind === "expand";
  }

  isFrom(stage: string, from: StagePosition): boolean {
    const place = this.#places.get(stage);
    return place !== undefined && place.segment === from.segment && place.index >= from.index;
  }

  /** Creates the job of a stage. Its limits see the input that the handler will see. */
  stageJob(place: StagePosition, work: { build: BuildKey; path: string; context: string }, input: unknown): NewJob {
    const { declared } = place;
    const job = this.#stageJob(place, work, {});
    if (declared.isEmpty) return job;
    return { ...job, declares: declared.declaration, limitKeys: this.#limitKeys(place, input, work.context) };
  }

  /** Creates targets from an expand's children. It calls no handler, so no limit applies. */
  childrenJob(place: StagePosition, work: { build: BuildKey; path: string }): NewJob {
    return this.#stageJob(place, work, { children: true });
  }

  /** Runs a stage's `remove`. With `gone`, the target is deleted afterwards; otherwise it continues. */
  removeJob(
    place: StagePosition,
    work: { build: BuildKey; path: string; segment: number },
    what: { result: number; gone: boolean },
  ): NewJob {
    const { stage } = place;
    return {
      ...this.#job(stageJobName(this.name, stage.name), stage.version, stage.policy),
      priority: 0,
      input: JSON.stringify({ stage: stage.name, target: work.path, remove: what }),
      work: {
        build: work.build,
        kind: what.gone ? "remove" : "stage",
        stage: stage.name,
        segment: work.segment,
        path: work.path,
      },
      ...(place.declared.isEmpty ? {} : { declares: place.declared.declaration, limitKeys: place.declared.keys.map(() => "") }),
    };
  }

  /** Creates a listing's job. With "failed", it lists only targets that failed before the build was resumed. */
  listingJob(build: BuildKey | null, round: number, which?: "failed"): NewJob {
    const listed = this.segments.find((segment) => segment.round === round && segment.from !== "expand") as Segment;
    const work: NewWork = { build, kind: "listing", stage: "", segment: listed.index, path: "" };
    return { ...this.#job(listingJobName(this.name), 1, LISTING), priority: 0, input: JSON.stringify({ round, which }), work };
  }

  get listingPolicy(): Policy {
    return LISTING;
  }

  #stageJob({ stage, segment, position }: StagePosition, work: { build: BuildKey; path: string }, more: object): NewJob {
    return {
      ...this.#job(stageJobName(this.name, stage.name), stage.version, stage.policy),
      // Targets near their end run first, so that targets finish one by one, and not all at the end.
      priority: position + 1,
      input: JSON.stringify({ stage: stage.name, target: work.path, ...more }),
      work: { build: work.build, kind: "stage", stage: stage.name, segment: segment.index, path: work.path },
    };
  }

  #job(name: string, version: number, policy: Policy): Omit<NewJob, "work"> {
    return { name, queue: this.queue, version, policy, input: null, priority: 0, delay: 0 };
  }

  #declare({ name, limits, reuse }: StageDefinition): DeclaredLimits {
    // When targets can share results, only one of those with the same bytes runs; the others reuse its result.
    const alone =
      reuse === "bytes"
        ? [{ rule: { of: "job" as const, position: limits.length, keyed: true, concurrency: 1, rate: null }, key: undefined }]
        : [];
    const all = [...limits, ...alone];
    const sorted = [...all.filter(({ rule }) => rule.keyed), ...all.filter(({ rule }) => !rule.keyed)];
    const declaration = {
      queue: this.queue,
      name: stageJobName(this.name, name),
      limits: sorted.map(({ rule }) => rule),
    };
    return { declaration, isEmpty: sorted.length === 0, keys: sorted.map(({ key }) => key) };
  }

  #limitKeys({ declared, stage }: StagePosition, input: unknown, context: string): string[] {
    const keys = limitKeys(declared, input, stage.name);
    if (stage.reuse !== "bytes") return keys;
    const own = declared.declaration.limits.findIndex(({ position }) => position === stage.limits.length);
    return keys.map((key, i) => (i === own ? context : key));
  }
}

/** Returns the idempotency key for outside services, which is the same for every attempt at the same work. */
export function workKey(databaseId: string, pipeline: string, stage: string, context: string): string {
  return hash("sha256", JSON.stringify(["holdfast.work.1", databaseId, pipeline, stage, context]));
}

export interface BuildOptions {
  /** How much the build may spend before it pauses. Default: the pipeline's. */
  budget?: Cost;
  /** How many work items run at once in this process. Default: 8. */
  concurrency?: number;
  /** How many targets may fail before the build starts no new work. Default: the pipeline's. */
  maxFailures?: number;
  /** Stages to run again although they have results. */
  rerun?: string[];
  /** Ids or globs of targets: only these are built. Names of stages: nothing behind the last of them is built. Default: everything. */
  only?: string[];
  /** Stops the build when it aborts, as `stop` does. */
  signal?: AbortSignal;
}

/** The settings that are stored with the build, for the processes that work on it. */
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
  void new OnlyTargets(targets);
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

const RELATIVE_IMPORT = /\b(?:import|export)\b(?:[^"'`;()]*?\bfrom)?\s*["'](\.\.?\/[^"']+)["']/g;

const modules = new WeakMap<PipelineDefinition, string>();
const hashed = new Map<string, Promise<string>>();

/** Records the file that a pipeline was loaded from, for a pipeline without `module`. */
export function loadedFrom(pipeline: Pipeline, file: string): void {
  modules.set(pipelineOf(pipeline), resolve(file));
}

/**
 * Hashes the program that runs a pipeline (its `module`, else the file it was loaded from, else the main script) and its static
 * relative imports. Computed once, because later changes of files do not change a running program. Returns "" without a file.
 */
export function programHash(definition: PipelineDefinition): Promise<string> {
  const { module } = definition;
  const path = module === null ? (modules.get(definition) ?? process.argv[1]) : fileURLToPath(module);
  if (path === undefined) return Promise.resolve("");
  let known = hashed.get(path);
  if (known === undefined) hashed.set(path, (known = hashFiles(path)));
  return known;
}

async function hashFiles(entry: string): Promise<string> {
  const files = new Map<string, string>();
  const read = async (path: string): Promise<void> => {
    if (files.has(path)) return;
    files.set(path, "");
    // The match may be text that only looks like an import, so a missing file is no error.
    const bytes = await readFile(path).catch(() => null);
    if (bytes === null) return void files.delete(path);
    files.set(path, hash("sha256", bytes));
    const imports = bytes.toString().matchAll(RELATIVE_IMPORT);
    await Promise.all([...imports].map(([, address]) => read(fileURLToPath(new URL(address as string, pathToFileURL(path))))));
  };
  await read(entry);
  if (files.size === 0) return "";
  // Use relative paths, so that the same program has the same hash in another folder.
  const named = [...files].map(([path, content]) => [relative(dirname(entry), path).replaceAll("\\", "/"), content]);
  return hash("sha256", JSON.stringify(named.sort(([a = ""], [b = ""]) => (a < b ? -1 : 1))));
}
