import { hash } from "node:crypto";
import { canonical } from "./canonical.ts";
import { difference } from "./difference.ts";
import { HoldfastError } from "./errors.ts";
import { hideSecrets } from "./key.ts";
import type { PipelineDefinition } from "./pipeline.ts";
import type { SourceDefinition } from "./source.ts";
import type { StageDefinition, StageKind } from "./stage.ts";

/** Stands for a function: whether there is one counts, its text does not. */
export type AFunction = { function: true };

export interface StageDescription {
  name: string;
  kind: StageKind;
  version: number;
  /** Canonical text of a static key. */
  key: string | AFunction | null;
  uses: readonly string[];
  match: string | AFunction | null;
  reuse: "target" | "bytes";
  by: AFunction | null;
  partial: boolean;
}

export type SourceDescription =
  | { kind: "files"; globs: readonly string[]; root: string | null; ignore: readonly string[]; snapshot: boolean; dot: boolean }
  | { kind: "items"; version: AFunction | null; cursor: AFunction | null };

/** What a pipeline is, as far as a build that goes on must find it again. How it is run (retries, limits, budget) is not in it. */
export interface PipelineDescription {
  name: string;
  source: SourceDescription;
  stages: readonly StageDescription[];
  /** Hashes of the handlers' texts, by stage: no part of what counts, but of what is warned of. */
  code: Readonly<Record<string, string>>;
}

const A_FUNCTION: AFunction = { function: true };

export function describePipeline({ name, source, stages }: PipelineDefinition): PipelineDescription {
  return {
    name,
    source: describeSource(source),
    stages: stages.map(describeStage),
    code: Object.fromEntries(stages.map((stage) => [stage.name, stage.code])),
  };
}

/** The same for two pipelines between which a build can go on. */
export function pipelineHash({ name, source, stages }: PipelineDescription): string {
  return hash("sha256", canonical(["holdfast.pipeline.1", name, source, stages], "pipeline"));
}

/** What is not as it was, in plain words; empty exactly when the hashes are the same. */
export function pipelineDifferences(before: PipelineDescription, after: PipelineDescription): string[] {
  const found: string[] = [];
  if (before.name !== after.name) found.push(`The pipeline is called "${after.name}", it was "${before.name}".`);
  for (const { part, before: was, after: is } of difference(shownSource(before.source), shownSource(after.source), "source")) {
    found.push(`${part} is ${say(is)}, it was ${say(was)}.`);
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

/** Why a build cannot go on with the pipeline that was given. */
export function pipelineChanged(build: string, before: PipelineDescription, after: PipelineDescription): HoldfastError {
  const found = pipelineDifferences(before, after);
  return new HoldfastError(
    "PIPELINE_CHANGED",
    `The pipeline of build ${build} is not what it was when the build was started. ` +
      // The same, and another hash: hashes were made in another way then.
      (found.length === 0 ? "It was started by another version of Holdfast." : found.join(" ")),
    "Abandon it and start a new one: all that succeeded and has not changed is reused.",
  );
}

/** Stages whose code is not what it was, under the version that it had. */
export function editedStages(before: PipelineDescription, after: PipelineDescription): string[] {
  const old = byName(before);
  return after.stages
    .filter(({ name, version }) => old.get(name)?.version === version && before.code[name] !== after.code[name])
    .map(({ name }) => name);
}

function stageDifferences(before: StageDescription, after: StageDescription): string[] {
  return difference(shown(before), shown(after), "").map(
    ({ part, before: was, after: is }) => `${part.slice(1)} of stage "${after.name}" is ${say(is)}, it was ${say(was)}.`,
  );
}

/** A key in its parts; a function has none, and neither has what is not there. */
function shown({ key, match, by, ...stage }: StageDescription): object {
  return { ...stage, key: typeof key === "string" ? hideSecrets(JSON.parse(key)) : leaf(key), match: leaf(match), by: leaf(by) };
}

function shownSource(source: SourceDescription): object {
  return source.kind === "files" ? source : { ...source, version: leaf(source.version), cursor: leaf(source.cursor) };
}

const FUNCTION = Symbol("a function");

function leaf(value: string | AFunction | null): string | symbol | undefined {
  return typeof value === "string" ? value : value === null ? undefined : FUNCTION;
}

function describeStage({ name, kind, version, key, uses, match, reuse, by, partial }: StageDefinition): StageDescription {
  return {
    name,
    kind,
    version,
    key: typeof key === "function" ? A_FUNCTION : key,
    uses,
    match: typeof match === "function" ? A_FUNCTION : match,
    reuse,
    by: by === null ? null : A_FUNCTION,
    partial,
  };
}

function describeSource(source: SourceDefinition): SourceDescription {
  if (source.kind === "items") {
    return {
      kind: "items",
      version: source.version === null ? null : A_FUNCTION,
      cursor: source.cursor === null ? null : A_FUNCTION,
    };
  }
  const { kind, globs, root, ignore, snapshot, dot } = source;
  return { kind, globs, root, ignore, snapshot, dot };
}

function byName({ stages }: PipelineDescription): Map<string, StageDescription> {
  return new Map(stages.map((stage) => [stage.name, stage]));
}

function say(value: unknown): string {
  if (value === undefined || value === null) return "not there";
  return value === FUNCTION ? "a function" : JSON.stringify(value);
}
