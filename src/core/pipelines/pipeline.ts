import { hash } from "node:crypto";
import { type Budget, toBudget, UNLIMITED, type Cost } from "./budget.ts";
import { canonicalJson } from "../text/json.ts";
import { findDifferences } from "./build-view.ts";
import { checkCount, checkName, didYouMean, invalidOption, refuseUnknown, rejectSurplus } from "../text/options.ts";
import { HoldfastError } from "../text/errors.ts";
import { hideSecrets } from "./work.ts";
import { type FilesSource, type Source, type SourceDefinition, sourceOf, type Target } from "./source.ts";
import { checkStage, type StageContext, type StageDefinition, type StageKind, type StageOptions } from "./stage.ts";

type Run<C, Out> = (context: C) => Out | Promise<Out>;

/** T target, In what the next stage gets, Outs earlier outputs of one target, All every stage's output. */
export interface Pipeline<T = unknown, In = unknown, Outs = unknown, All = unknown> {
  readonly name: string;
  readonly types?: { target: T; input: In; outs: Outs; all: All };
  /** Adds a step that each target goes through. With `match`, other targets pass by unchanged. */
  stage<const N extends string, M extends In, Out, U extends keyof Outs = never>(
    name: N,
    options: StageOptions<T, M> & { uses?: U[]; match: (target: T, input: In) => input is M },
    run: Run<StageContext<T, M, Pick<Outs, U>>, Out>,
  ): Pipeline<T, Exclude<In, M> | Out, Outs & { [K in N]?: Out }, All & Record<N, Out>>;
  stage<const N extends string, Out, U extends keyof Outs = never>(
    name: N,
    options: StageOptions<T, In> & {
      /** Earlier stages whose outputs the handler gets in `outputs`. */
      uses?: U[];
      /** Glob of target ids, or a predicate. Other targets skip the stage unchanged. Default: all targets. */
      match: string | ((target: T, input: In) => boolean);
    },
    run: Run<StageContext<T, In, Pick<Outs, U>>, Out>,
  ): Pipeline<T, In | Out, Outs & { [K in N]?: Out }, All & Record<N, Out>>;
  stage<const N extends string, Out, U extends keyof Outs = never>(
    name: N,
    options: StageOptions<T, In> & { uses?: U[] },
    run: Run<StageContext<T, In, Pick<Outs, U>>, Out>,
  ): Pipeline<T, Out, Outs & Record<N, Out>, All & Record<N, Out>>;
  /** Makes many targets of each. The caller chooses their ids. */
  expand<const N extends string, V>(
    name: N,
    options: StageOptions<T, In>,
    run: Run<StageContext<T, In, {}>, Iterable<{ id: string; value: V }> | AsyncIterable<{ id: string; value: V }>>,
  ): Pipeline<Target & { parent: T }, V, Outs, All & Record<N, V>>;
  /** Makes one target of all, or of each group. */
  gather<const N extends string, Out>(
    name: N,
    options: StageOptions<Target, undefined> & {
      /** Group of a target; each group becomes one target. Default: all targets are one group. */
      by?: (target: T, output: In) => string;
      /** True: run also if targets failed; the handler gets their number in `failed`. Default: false. */
      partial?: boolean;
    },
    run: Run<
      StageContext<Target, undefined, {}> & {
        inputs: AsyncIterable<{ target: T; output: In; outputs: Outs }>;
        failed: number;
      },
      Out
    >,
  ): Pipeline<Target, Out, Record<N, Out>, All & Record<N, Out>>;
}

export interface PipelineOptions {
  /** How much a build may spend before it pauses. Default: unlimited. */
  budget?: Cost;
  /** How many targets may fail before the build starts no new work. Default: unlimited. */
  maxFailures?: number;
  /** `import.meta.url` of the module that exports the pipeline, for stages with `isolate: "process"`. */
  module?: string;
}

export interface PipelineDefinition {
  readonly name: string;
  readonly budget: Budget;
  readonly maxFailures: number | null;
  readonly module: string | null;
  readonly source: SourceDefinition;
  readonly stages: readonly StageDefinition[];
}

/**
 * Defines a pipeline: a source of targets, and the stages that they go through. Each call returns a new pipeline, so one
 * beginning can serve several pipelines.
 *
 * ```ts
 * const docs = pipeline("docs", { budget: { usd: 5 } })
 *   .source(files("docs/**\/*.md"))
 *   .stage("parse", { version: 1 }, async ({ target }) => parse(await target.bytes()))
 *   .gather("index", {}, async ({ inputs }) => indexOf(inputs));
 * ```
 */
export function pipeline(
  name: string,
  options: PipelineOptions = {},
): { source<T extends Target, In>(source: Source<T, In>): Pipeline<T, In, {}, {}> } {
  rejectSurplus(arguments, 2, "pipeline");
  const named = checkPipelineName(name);
  const where = `pipeline "${named}"`;
  refuseUnknown(options, ["budget", "maxFailures", "module"], where);
  const { budget, maxFailures, module } = options;
  const head = {
    name: named,
    budget: budget === undefined ? UNLIMITED : toBudget(budget, `The budget of ${where}`),
    maxFailures: maxFailures === undefined ? null : checkCount(maxFailures, `maxFailures of ${where}`, 0),
    module: module === undefined ? null : checkModule(module, where),
  };
  return Object.freeze({
    source<T extends Target, In>(source: Source<T, In>) {
      rejectSurplus(arguments, 1, "source");
      return pipelineValue({ ...head, source: sourceOf(source), stages: [] }) as Pipeline<T, In, {}, {}>;
    },
  });
}

export function isPipeline(given: unknown): given is Pipeline {
  return (
    typeof given === "object" &&
    given !== null &&
    Array.isArray((given as { definition?: PipelineDefinition }).definition?.stages)
  );
}

export function pipelineOf(given: unknown): PipelineDefinition {
  const { definition } = (typeof given === "object" && given !== null ? given : {}) as { definition?: PipelineDefinition };
  if (typeof definition === "object" && Array.isArray(definition.stages)) return definition;
  throw new HoldfastError("NOT_A_PIPELINE", "This is not a pipeline.", "Create one with pipeline(name).source(…).");
}

function pipelineValue(definition: PipelineDefinition): Pipeline {
  const add =
    (kind: StageKind) =>
    (...args: unknown[]): Pipeline => {
      const [name, options, run] = args;
      const stage = checkStage(kind, name, options, run);
      rejectSurplus(args, 3, kind);
      checkPosition(definition, stage);
      return pipelineValue({ ...definition, stages: [...definition.stages, stage] });
    };
  Object.freeze(definition.stages);
  return Object.freeze({
    name: definition.name,
    definition: Object.freeze(definition),
    stage: add("stage"),
    expand: add("expand"),
    gather: add("gather"),
  }) as unknown as Pipeline;
}

function checkPosition({ name, module, stages }: PipelineDefinition, stage: StageDefinition): void {
  if (stages.some((other) => other.name === stage.name)) {
    throw new HoldfastError(
      "STAGE_TWICE",
      `Pipeline "${name}" has a stage "${stage.name}" already.`,
      "Give each stage another name: results are stored by it.",
    );
  }
  const known = outputsAfter(stages);
  for (const used of stage.uses) if (!known.includes(used)) throw unknownStage(used, stage, stages, known);
  if (stage.kind === "gather" && isOneTarget(stages)) {
    throw new HoldfastError(
      "GATHER_OF_ONE",
      `The gather "${stage.name}" of pipeline "${name}" has only one target: an earlier gather made one of all.`,
      "Use `stage` instead, or give the earlier gather `by`.",
    );
  }
  if (stage.isolate === "process" && module === null) {
    throw new HoldfastError(
      "MODULE_NEEDED",
      `Stage "${stage.name}" runs in a child process, which does not know the module of pipeline "${name}".`,
      "Call pipeline(name, { module: import.meta.url }), and export the pipeline from that module.",
    );
  }
}

function outputsAfter(stages: readonly StageDefinition[]): string[] {
  const last = stages.findLastIndex(({ kind }) => kind === "gather");
  return stages
    .slice(Math.max(0, last))
    .filter(({ kind }) => kind !== "expand")
    .map(({ name }) => name);
}

function isOneTarget(stages: readonly StageDefinition[]): boolean {
  const last = stages.findLast(({ kind }) => kind !== "stage");
  return last?.kind === "gather" && last.by === null;
}

function unknownStage(
  used: string,
  { name }: StageDefinition,
  stages: readonly StageDefinition[],
  known: string[],
): HoldfastError {
  const other = stages.find((stage) => stage.name === used);
  const why =
    other === undefined
      ? "and there is no such stage before it"
      : other.kind === "expand"
        ? "whose outputs are targets of their own, not an output of one"
        : "which is before a gather, so its outputs are those of other targets";
  return new HoldfastError(
    "STAGE_UNKNOWN",
    `Stage "${name}" uses "${used}", ${why}.`,
    known.length === 0
      ? "No earlier stage has an output: leave `uses` out."
      : `${didYouMean(used, known)}Give one or more of ${known.join(", ")}.`,
  );
}

function checkPipelineName(name: unknown): string {
  const named = checkName(name, "A pipeline's name");
  if (named.trim() === named) return named;
  throw new HoldfastError(
    "NAME_INVALID",
    `A pipeline's name is ${JSON.stringify(named)}.`,
    "Give a name without spaces around it.",
  );
}

function checkModule(module: unknown, where: string): string {
  if (typeof module === "string" && module.startsWith("file:")) return module;
  throw invalidOption(`\`module\` of ${where} must be a file URL.`, "Give import.meta.url.");
}

/** Stands for a function in a description: whether there is one counts, but not its text. */
export type FunctionMark = { function: true };

export interface StageDescription extends Pick<StageDefinition, "name" | "kind" | "version" | "uses" | "reuse" | "partial"> {
  key: string | FunctionMark | null;
  match: string | FunctionMark | null;
  by: FunctionMark | null;
}

export type SourceDescription = FilesSource | { kind: "items"; version: FunctionMark | null; cursor: FunctionMark | null };

/** Parts of a pipeline that must not change if a build is to be resumed. How stages run (retries, limits, budget) may change. */
export interface PipelineDescription {
  name: string;
  source: SourceDescription;
  stages: readonly StageDescription[];
  /** Hashes of the handlers' texts, by stage. A difference is only worth a warning. */
  code: Readonly<Record<string, string>>;
}

const FUNCTION_MARK: FunctionMark = { function: true };

export function describePipeline({ name, source, stages }: PipelineDefinition): PipelineDescription {
  return {
    name,
    source: describeSource(source),
    stages: stages.map(describeStage),
    code: Object.fromEntries(stages.map((stage) => [stage.name, stage.code])),
  };
}

/** Returns the hash of a pipeline. A build can be resumed with every pipeline of the same hash. */
export function pipelineHash({ name, source, stages }: PipelineDescription): string {
  return hash("sha256", canonicalJson(["holdfast.pipeline.1", name, source, stages], "pipeline"));
}

export function pipelineDifferences(before: PipelineDescription, after: PipelineDescription): string[] {
  const found: string[] = [];
  if (before.name !== after.name) found.push(`The pipeline is called "${after.name}", it was "${before.name}".`);
  for (const { part, before: was, after: is } of findDifferences(
    shownSource(before.source),
    shownSource(after.source),
    "source",
  )) {
    found.push(`${part} is ${describePart(is)}, it was ${describePart(was)}.`);
  }
  const [old, now] = [byName(before), byName(after)];
  for (const name of old.keys()) if (!now.has(name)) found.push(`The stage "${name}" is gone.`);
  for (const [name, stage] of now) {
    const was = old.get(name);
    if (was === undefined) found.push(`The stage "${name}" is new.`);
    else found.push(...stageDifferences(was, stage));
  }
  const [was, is] = [[...old.keys()].filter((name) => now.has(name)), [...now.keys()].filter((name) => old.has(name))];
  if (was.some((name, i) => name !== is[i])) found.push(`The order of the stages is ${is.join(", ")}, it was ${was.join(", ")}.`);
  return found;
}

export function pipelineChanged(build: string, before: PipelineDescription, after: PipelineDescription): HoldfastError {
  const found = pipelineDifferences(before, after);
  return new HoldfastError(
    "PIPELINE_CHANGED",
    `The pipeline of build ${build} changed after the build was started. ` +
      // An older version of Holdfast computed the hash differently.
      (found.length === 0 ? "It was started by another version of Holdfast." : found.join(" ")),
    "Abandon the build and start a new one, which reuses every result that did not change.",
  );
}

export function editedStages(before: PipelineDescription, after: PipelineDescription): string[] {
  const old = byName(before);
  return after.stages
    .filter(({ name, version }) => old.get(name)?.version === version && before.code[name] !== after.code[name])
    .map(({ name }) => name);
}

function stageDifferences(before: StageDescription, after: StageDescription): string[] {
  return findDifferences(shown(before), shown(after), "").map(
    ({ part, before: was, after: is }) =>
      `${part.slice(1)} of stage "${after.name}" is ${describePart(is)}, it was ${describePart(was)}.`,
  );
}

function shown({ key, match, by, ...stage }: StageDescription): object {
  return { ...stage, key: typeof key === "string" ? hideSecrets(JSON.parse(key)) : leaf(key), match: leaf(match), by: leaf(by) };
}

function shownSource(source: SourceDescription): object {
  return source.kind === "files" ? source : { ...source, version: leaf(source.version), cursor: leaf(source.cursor) };
}

const FUNCTION = Symbol("a function");

function leaf(value: string | FunctionMark | null): string | symbol | undefined {
  return typeof value === "string" ? value : value === null ? undefined : FUNCTION;
}

function describeStage({ name, kind, version, key, uses, match, reuse, by, partial }: StageDefinition): StageDescription {
  return {
    name,
    kind,
    version,
    key: typeof key === "function" ? FUNCTION_MARK : key,
    uses,
    match: typeof match === "function" ? FUNCTION_MARK : match,
    reuse,
    by: by === null ? null : FUNCTION_MARK,
    partial,
  };
}

function describeSource(source: SourceDefinition): SourceDescription {
  if (source.kind === "files") return source;
  return {
    kind: "items",
    version: source.version === null ? null : FUNCTION_MARK,
    cursor: source.cursor === null ? null : FUNCTION_MARK,
  };
}

function byName({ stages }: PipelineDescription): Map<string, StageDescription> {
  return new Map(stages.map((stage) => [stage.name, stage]));
}

function describePart(value: unknown): string {
  if (value === undefined || value === null) return "not there";
  return value === FUNCTION ? "a function" : JSON.stringify(value);
}
