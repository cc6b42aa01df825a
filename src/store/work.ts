import type { CostHistory } from "../core/pipelines/budget.ts";
import type { KeptValue, ValueHash } from "../core/pipelines/context-hash.ts";
import type { Amount } from "../core/pipelines/cost.ts";
import type { BuildKey, JobKey, ResultKey } from "../core/text/ids.ts";
import type { JobError } from "../core/jobs/job.ts";
import type { Fate, LeaseRef } from "../core/jobs/lease.ts";
import { parseCompletedStages, type CompletedStages } from "../core/pipelines/work.ts";
import type { BuildRow } from "./builds.ts";
import type { NewJob } from "./store.ts";

/**
 * What builds work on and what comes of it: targets, the results of stages, the artifacts they name, and what it costs.
 *
 * Stages run as jobs of a queue of their pipeline (`core/work.ts` has the names). A job that has `work` is a *work item*:
 * (build, stage, target). All that follows from its end is in its settlement (`WorkEnd`), and is written with it: the
 * result, the target's way on, counts, cost, and the next work item. However an attempt leaves `running` (settled, released,
 * reclaimed, cancelled), what was reserved for it is free in that transaction, and what it is charged is spent.
 */
export interface WorkStore {
  // ── targets ──
  /** The targets of one segment; those that are not there are left out. */
  targets(query: TargetPaths | TargetPage | MemberPage): Promise<TargetRow[]>;
  countTargets(pipeline: string, segment: number): Promise<number>;
  /** Writes down a batch of a listing, if its job is still held. Targets whose `rev` is not what was read are left alone. */
  listed(lease: LeaseRef, batch: ListedBatch): Promise<Fate>;

  // ── results ──
  /** The newest SUCCESS for each context, if there is one. */
  lookUp(pipeline: string, contexts: readonly ResultContext[]): Promise<(FoundResult | null)[]>;
  results(query: ResultQuery): Promise<StoredResult[]>;

  // ── work ──
  /** Cancels open work items of builds that have ended; answers how many. Until then they do not count as pending work. */
  clearWork(clearing: Clearing): Promise<number>;
  /** What work items are about. Null: there is none. */
  works(jobs: readonly JobKey[]): Promise<(WorkView | null)[]>;
  /** Sets the estimates aside, in order, as far as the budgets allow. What is refused for good stops its queue, and is written into its build. */
  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]>;
  /** What running attempts have reported so far; a crash then charges it. */
  saveCosts(reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]>;
  /** What past attempts of the stages of a pipeline have cost. */
  costs(pipeline: string): Promise<Record<string, CostHistory>>;

  // ── artifacts ──
  /** How to see, inside a transaction, which of these are not there. Without it, references are not checked. */
  watchArtifacts(missing: (hashes: Iterable<string>) => readonly string[]): void;
  /** Which of these are referenced, by all that is committed, and by whatever was under way when it was asked. */
  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>>;
  /** Those that a build refers to, or only what it has of a stage and target. */
  artifacts(of: { build: string; stage?: string; path?: string }): Promise<ArtifactRef[]>;
}

/** What a result is looked up by. */
export interface ResultContext {
  stage: string;
  hash: string;
  /** Only of this target, which the hash names; left out: of all targets, where their results are shared. */
  path?: string;
  /** Only of this build (a rerun's). */
  build?: BuildKey;
}

/** Which results are read. */
export type ResultQuery =
  | { keys: readonly ResultKey[] }
  /**
   * The result that a build had for a target: its own, else what the newest build before it had that did not fail. `before`:
   * the one before that, for `why`: the newest of that stage and target from an earlier build.
   */
  | { build: string; stage: string; path: string; before?: boolean }
  /** All results that a build had for a stage, other than failures, in the order of paths. */
  | { build: string; stage: string; after?: string; limit: number }
  /** The first of what failed in a build, in the order in which it did. */
  | { build: string; failed: true; limit: number }
  /** Failures from before the build was resumed whose targets are still to be listed again, by key. */
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

/** A target of one segment of a pipeline: what lies between source, expands and gathers. */
export interface TargetRow {
  segment: number;
  /** What names it in its segment: its id, behind those of its parents. */
  path: string;
  id: string;
  parent: string | null;
  /** Of its content. */
  hash: string;
  /** A file's fingerprint, as JSON. */
  fingerprint: string | null;
  /** What the first stage gets. */
  value: KeptValue;
  /** The build that has listed it last. */
  seen: BuildKey;
  /** For which definition of its segment its completed stages hold to the end; null: it is not at the end; `GONE`: it is there no more. */
  done: string | null;
  completed: CompletedStages;
  group: string | null;
  /** `memberHash` at the end of the segment; null: it is not there. */
  member: string | null;
  /** The result that records why the target failed. */
  failure: ResultKey | null;
  /** Another with each change. */
  rev: number;
}

export interface TargetPaths {
  pipeline: string;
  segment: number;
  paths: readonly string[];
}

/** In the order of their paths' UTF-8 bytes. `unseen`: only those that this build has not listed. `parent`: only its children. */
export interface TargetPage {
  pipeline: string;
  segment: number;
  after?: string;
  limit: number;
  parent?: string;
  unseen?: BuildKey;
}

/** Those that have come to the end of their segment, in the order of (group, path), null first. */
export interface MemberPage {
  members: true;
  pipeline: string;
  segment: number;
  after?: { group: string | null; path: string };
  /** Only this group. */
  group?: string | null;
  limit: number;
}

/** Where a target goes. */
export type Flow =
  /** On to a stage. */
  | { to: "work"; completed: CompletedStages; job: NewJob }
  /** To the end of its segment. */
  | { to: "end"; completed: CompletedStages; done: string | null; group: string | null; member: string | null }
  /** Nowhere: something about it is wrong before it could run (a key function threw). It counts as failed. */
  | { to: "failed"; completed: CompletedStages; stage: string; hash: string; error: JobError };

/** What is counted on the way of a target. */
export interface Passed {
  stage: string;
  as: "cached" | "passed";
  /** The result that the target has of this stage from this build on, where it had another or none; null: it has none any more. */
  result?: ResultKey | null;
}

export interface ListedTarget {
  path: string;
  id: string;
  parent: string | null;
  hash: string;
  fingerprint: string | null;
  value: KeptValue;
  /** As it was read; 0: it was not there. */
  rev: number;
  passed: readonly Passed[];
  /** Null: it is as it was, and at the end of its segment; only that it was seen is written. */
  flow: Flow | null;
  /** What is kept of it in artifacts: a snapshot, a large value. */
  artifacts?: readonly NamedArtifact[];
}

export interface ListedBatch {
  build: BuildKey;
  pipeline: string;
  segment: number;
  targets: readonly ListedTarget[];
  /**
   * Paths of targets that are gone, each with the removals that it needs first; one without is forgotten at once. `had`: the
   * stages that it has results of, and which have none for it from this build on. `keep`: it is not forgotten by that, since
   * its children are still to be removed; the next listing finds it again.
   */
  gone?: readonly { path: string; rev: number; removals: readonly NewJob[]; had?: readonly string[]; keep?: boolean }[];
  /** Failures from before the resume (`retries`) that this batch lists again; they are deleted with it. */
  retried?: readonly ResultKey[];
  /** For the job's checkpoint: where the listing continues. Undefined: as it was. */
  cursor?: string;
}

/** Which work items of ended builds are to be cleared away. */
export interface Clearing {
  /** Of all pipelines, if none is named. */
  pipeline?: string;
  /** `idle`: what runs is left to its end, which is kept; but for listings, which are not needed any more. */
  which: "idle" | "all";
  /** In one commit. */
  limit: number;
}

/** On `NewJob.work`. */
export interface NewWork {
  /** Null: of the build that is made in the same commit. */
  build: BuildKey | null;
  kind: "listing" | "stage" | "remove";
  /** "" for a listing. */
  stage: string;
  segment: number;
  /** "" for a listing. */
  path: string;
}

export interface WorkView {
  kind: NewWork["kind"];
  stage: string;
  build: BuildRow;
  segment: number;
  /** Null for a listing, or where it is gone. */
  target: TargetRow | null;
  /** What was made of it when it was there before is still being removed, or about to be. */
  removing: boolean;
}

/** On `Settlement.work`: what belongs to the end of a work item, beside its outcome. */
export interface WorkEnd {
  /** What the attempt has reported. */
  cost: Amount;
  /** Of a success: what it made. Null: it was found made already, or makes nothing (a listing, a removal). */
  result: NewResult | null;
  /** Of a success: the target as it continues. `rev` as it was read: if it is another by now, the target is left alone. Null: nothing to say (a listing). */
  target: ListedTarget | null;
  /** Of a success of a removal: the target has nothing left to be removed, and is forgotten. */
  forget?: { path: string; rev: number };
  /** The context hash and parts of an attempt, for the record of a failure. */
  context?: { hash: string; parts: string };
}

export interface NewResult {
  hash: string;
  /** `ContextParts`, as JSON. */
  parts: string;
  output: KeptValue;
  artifacts: readonly NamedArtifact[];
  /** Other targets may reuse it; its hash does not name its target then. */
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
  output: KeptValue;
}

export interface StoredResult {
  key: ResultKey;
  build: string;
  stage: string;
  path: string;
  /** The target's own id, for people. */
  target: string;
  /** REUSED: made by an earlier build, or for another target, and taken over in this one. */
  state: "SUCCESS" | "FAILED" | "REUSED";
  hash: string;
  parts: string | null;
  output: KeptValue;
  /** Of all its attempts. */
  cost: Amount;
  error: JobError | null;
  at: number;
}

export type Beginning =
  | "start"
  /** Not while so much is reserved for others. */
  | "wait"
  /** The budget is used up. The build is about to pause. */
  | "pause"
  /** The lease is gone. */
  | "lost";

/** A result as it is read from whichever database; `build` is the build's id. */
export interface ResultColumns extends OutputColumns {
  key: ResultKey;
  build: string | null;
  stage: string;
  path: string;
  target: string;
  state: StoredResult["state"];
  hash: string;
  parts: string | null;
  micros: number;
  tokens: number;
  error: string | null;
  at: number;
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
    // One that was superseded in its build is of none.
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

export function toOutput(row: OutputColumns): KeptValue {
  return {
    hash: row.output_hash as ValueHash,
    text: row.output_text,
    artifact: row.output_file,
    size: row.output_size,
  };
}

/** Under this name, which no user can give, a result refers to the artifact that its output is kept in. */
export const OUTPUT = "";

/** A target as it is read from whichever database. */
export interface TargetColumns {
  segment: number;
  path: string;
  id: string;
  parent: string | null;
  hash: string;
  fingerprint: string | null;
  value_hash: string;
  value_text: string | null;
  value_file: string | null;
  value_size: number;
  seen: number;
  done: string | null;
  completed: string;
  grouping: string | null;
  member: string | null;
  failure: number | null;
  rev: number;
}

export const TARGET = `segment, path, id, parent, hash, fingerprint, value_hash, value_text, value_file, value_size, seen, done,
  completed, grouping, member, failure, rev`;

export function toTarget(row: TargetColumns): TargetRow {
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
    completed: parseCompletedStages(row.completed),
    group: row.grouping,
    member: row.member,
    failure: row.failure as ResultKey | null,
    rev: row.rev,
  };
}
