import { type StoredValue, type ValueHash, parseCompletedStages, type CompletedStages } from "../core/pipelines/work.ts";
import type { Amount } from "../core/pipelines/budget.ts";
import type { BuildKey, ResultKey } from "../core/text/ids.ts";
import type { JobError } from "../core/jobs/job.ts";
import type { BuildRow } from "./builds.ts";
import type { NewJob, WorkStore } from "./store.ts";

export interface ResultContext {
  stage: string;
  hash: string;
  /** Path of the only target whose result counts, which the hash names. Default: all targets that share results. */
  path?: string;
  build?: BuildKey;
}

export type ResultQuery =
  | { keys: readonly ResultKey[] }
  /** The result of a build for a target: its own, or else the newest earlier one that did not fail. `before`: not its own. */
  | { build: string; stage: string; path: string; before?: boolean }
  /** All results of a build for a stage, by path; failures only if asked for. */
  | { build: string; stage: string; after?: string; limit: number; failures?: true }
  | { build: string; failed: true; limit: number }
  /** Failures from before a resume whose targets are still to be listed again, by key. */
  | { retried: BuildKey; after: ResultKey | 0; limit: number };

export async function resultOf(
  work: Pick<WorkStore, "results">,
  build: string,
  stage: string,
  path: string,
  { before = false } = {},
): Promise<StoredResult | null> {
  return (await work.results({ build, stage, path, before }))[0] ?? null;
}

/** A target of one segment of a pipeline: the part between source, expands and gathers. */
export interface TargetRow {
  segment: number;
  path: string;
  id: string;
  parent: string | null;
  hash: string;
  fingerprint: string | null;
  value: StoredValue;
  seen: BuildKey;
  /** Definition of the segment whose end the completed stages reach. Null: they do not. `GONE`: the target was removed. */
  done: string | null;
  completed: CompletedStages;
  group: string | null;
  /** `memberHash` at the end of the segment. Null: the target is not there. */
  member: string | null;
  failure: ResultKey | null;
  rev: number;
}

export interface TargetPaths {
  pipeline: string;
  segment: number;
  paths: readonly string[];
}

/** A page by the UTF-8 bytes of the paths. `unseen`: only targets that this build has not listed. `parent`: only its children. */
export interface TargetPage {
  pipeline: string;
  segment: number;
  after?: string;
  limit: number;
  parent?: string;
  unseen?: BuildKey;
}

/** A page of targets at the end of their segment, by (group, path), null first. */
export interface MemberPage {
  members: true;
  pipeline: string;
  segment: number;
  after?: { group: string | null; path: string };
  group?: string | null;
  limit: number;
}

export type Flow =
  | { to: "work"; completed: CompletedStages; job: NewJob }
  | { to: "end"; completed: CompletedStages; done: string | null; group: string | null; member: string | null }
  /** The target failed before a stage could run, because a key function threw. */
  | { to: "failed"; completed: CompletedStages; stage: string; hash: string; error: JobError };

export interface Passed {
  stage: string;
  as: "cached" | "passed";
  /** The target's result of this stage from this build on, if it changed. Null: it has none. */
  result?: ResultKey | null;
}

export interface ListedTarget {
  path: string;
  id: string;
  parent: string | null;
  hash: string;
  fingerprint: string | null;
  value: StoredValue;
  /** Revision that was read. 0: the target is new. */
  rev: number;
  /** True: the row of this revision has the content above, so only the target's position is written. */
  isStored?: boolean;
  passed: readonly Passed[];
  /** Null: the target is unchanged and at the end of its segment, so only `seen` is written. */
  flow: Flow | null;
  artifacts?: readonly NamedArtifact[];
}

export interface ListedBatch {
  build: BuildKey;
  pipeline: string;
  segment: number;
  targets: readonly ListedTarget[];
  /** Targets to remove after their `removals`. `had`: stages whose results end here. `keep`: children are still to be removed. */
  gone?: readonly { path: string; rev: number; removals: readonly NewJob[]; had?: readonly string[]; keep?: boolean }[];
  /** Failures from before the resume that this batch lists again; they are deleted with it. */
  retried?: readonly ResultKey[];
  /** Checkpoint of the job, from which the listing continues. Default: unchanged. */
  cursor?: string;
}

export interface Clearing {
  pipeline?: string;
  /** "idle": running attempts continue to their end, except listings. */
  which: "idle" | "all";
  limit: number;
}

export interface NewWork {
  /** Null: the build is made in the same commit. */
  build: BuildKey | null;
  kind: "listing" | "stage" | "remove";
  /** "" for a listing. */
  stage: string;
  segment: number;
  path: string;
}

export interface WorkView {
  kind: NewWork["kind"];
  stage: string;
  build: BuildRow;
  segment: number;
  /** Null for a listing, or if the target was removed. */
  target: TargetRow | null;
  /** The results of an earlier target with this path are still being removed. */
  removing: boolean;
}

export interface WorkEnd {
  cost: Amount;
  /** Result of a success. Null: it existed already, or there is none (a listing, a removal). */
  result: NewResult | null;
  /** Progress of a success's target, which is left alone if its `rev` is another one than was read. Null for a listing. */
  target: ListedTarget | null;
  /** Target of a removal, which is deleted once nothing of it is left to be removed. */
  forget?: { path: string; rev: number };
  context?: { hash: string; parts: string };
}

export interface NewResult {
  hash: string;
  parts: string;
  output: StoredValue;
  artifacts: readonly NamedArtifact[];
  /** True: other targets may reuse the result, so its hash does not name its target. */
  shared?: boolean;
}

export interface NamedArtifact {
  name: string;
  hash: string;
  size: number;
}

export interface ArtifactRef extends NamedArtifact {
  build: string;
  stage: string;
  path: string;
}

export interface FoundResult {
  key: ResultKey;
  output: StoredValue;
}

export interface StoredResult {
  key: ResultKey;
  build: string;
  stage: string;
  path: string;
  target: string;
  /** "REUSED": the result was made by an earlier build, or for another target. */
  state: "SUCCESS" | "FAILED" | "REUSED";
  hash: string;
  parts: string | null;
  output: StoredValue;
  cost: Amount;
  error: JobError | null;
  at: number;
}

/** Cost of some results of a build that were made in a row, and when the last of them was made. */
export interface SpendSlice {
  at: number;
  cost: Amount;
}

export type Beginning =
  | "start"
  /** Other attempts have reserved too much. */
  | "wait"
  /** The budget is used up, and the build is about to pause. */
  | "pause"
  | "lost";

export interface ResultColumns extends Omit<StoredResult, "build" | "output" | "cost" | "error">, OutputColumns {
  build: string | null;
  micros: number;
  tokens: number;
  error: string | null;
}

export interface OutputColumns {
  output_hash: string;
  output_text: string | null;
  output_file: string | null;
  output_size: number;
}

export function toResult(row: ResultColumns): StoredResult {
  return {
    key: row.key,
    // A superseded result belongs to no build.
    build: row.build ?? "",
    stage: row.stage,
    path: row.path,
    target: row.target,
    state: row.state,
    hash: row.hash,
    parts: row.parts,
    output: toOutput(row),
    cost: { micros: row.micros, tokens: row.tokens },
    error: row.error === null ? null : (JSON.parse(row.error) as JobError),
    at: row.at,
  };
}

export function toOutput(row: OutputColumns): StoredValue {
  return {
    hash: row.output_hash as ValueHash,
    text: row.output_text,
    artifact: row.output_file,
    size: row.output_size,
  };
}

/** Artifact name of a result's output, which no user can give. */
export const OUTPUT = "";

export interface TargetColumns extends Omit<TargetRow, "value" | "seen" | "completed" | "group" | "failure"> {
  value_hash: string;
  value_text: string | null;
  value_file: string | null;
  value_size: number;
  seen: number;
  completed: string;
  grouping: string | null;
  failure: number | null;
}

export function toTarget(row: TargetColumns): TargetRow {
  const text = row.completed;
  let completed: CompletedStages | undefined;
  return {
    segment: row.segment,
    path: row.path,
    id: row.id,
    parent: row.parent,
    hash: row.hash,
    fingerprint: row.fingerprint,
    value: { hash: row.value_hash as ValueHash, text: row.value_text, artifact: row.value_file, size: row.value_size },
    seen: row.seen as BuildKey,
    done: row.done,
    // Parse on use, because a build that finds a target unchanged never reads it.
    get completed() {
      return (completed ??= parseCompletedStages(text));
    },
    group: row.grouping,
    member: row.member,
    failure: row.failure as ResultKey | null,
    rev: row.rev,
  };
}
