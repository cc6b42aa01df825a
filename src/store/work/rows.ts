import type { Amount } from "../../core/pipelines/cost.ts";
import type { BuildKey, JobKey, ResultKey } from "../../core/text/ids.ts";
import type { JobError } from "../../core/jobs/job.ts";
import type { Trail } from "../../core/pipelines/work.ts";
import type { KeptValue } from "../../core/pipelines/context-hash.ts";
import type { ListedTarget, NamedArtifact, NewWork } from "../work.ts";

/**
 * The rows that work items change, as those see them who decide: they read and write at once. On SQLite these are the rows
 * themselves; on PostgreSQL what was read of them before, and what is to be written of them then.
 */
export interface WorkRows {
  items: ItemRows;
  targets: TargetRows;
  results: ResultRows;
  artifacts: ArtifactRows;
}

/** A work item that has not ended. */
export interface Item {
  job: JobKey;
  build: BuildKey;
  kind: NewWork["kind"];
  stage: string;
  segment: number;
  path: string;
  /** Set aside for the attempt that runs. */
  estimate: Amount;
  /** What it has reported so far. */
  cost: Amount;
  /** What those before it have cost. */
  charged: Amount;
}

export interface ItemRows {
  get(job: JobKey): Item | undefined;
  add(job: JobKey, build: BuildKey, work: NewWork): void;
  /** The next attempt starts anew; those before it have cost this. */
  goOn(item: Item, charged: Amount): void;
  remove(item: Item): void;
  /** The stage's jobs that a target has in this build: one at most. */
  at(build: BuildKey, segment: number, path: string): JobKey[];
  /** Whether something of this target is still to be removed. */
  isRemoving(at: Pick<Item, "build" | "segment" | "path">): boolean;
}

/** What names a target. */
export interface TargetRef {
  pipeline: string;
  segment: number;
  path: string;
}

/** How a target stands, for whoever compares and sets. */
export interface Standing {
  rev: number;
  failure: ResultKey | null;
}

/** Where a target is by now: at the end of its segment, or on its way. */
export interface Place {
  trail: Trail;
  done: string | null;
  group: string | null;
  member: string | null;
  failure: ResultKey | null;
}

export interface TargetRows {
  standing(ref: TargetRef): Standing | undefined;
  idOf(ref: TargetRef): string | undefined;
  /** As it is by now, whatever it was. */
  put(ref: TargetRef, target: ListedTarget, place: Place, build: BuildKey): void;
  /** It is as it was, and this build has seen it. */
  see(ref: TargetRef, target: ListedTarget, build: BuildKey): void;
  /** It goes nowhere, because of this. */
  failed(ref: TargetRef, failure: ResultKey): void;
  /** It goes on as it does, but is not forgotten. */
  blame(ref: TargetRef, failure: ResultKey | null): void;
  /** It is gone, and kept only until what was made of it is removed: of no group, and without a failure. */
  leave(ref: TargetRef): void;
  remove(ref: TargetRef): void;
}

/** What a stage has come to for a target. */
export interface MadeResult {
  build: BuildKey;
  pipeline: string;
  stage: string;
  path: string;
  target: string;
  hash: string;
  parts: string | null;
  output: KeptValue;
  cost: Amount;
  /** Null: it is a SUCCESS. */
  error: JobError | null;
}

export interface ResultRows {
  /** In place of the one that this build had for this stage and target. `again`: that one was a failure. */
  put(made: MadeResult, now: number): { key: ResultKey; again: boolean };
  /**
   * From this build on, a target has this result of a stage: one of an earlier build, or of another target. Null: it has none
   * any more. What it has besides is as it was: nothing is written of it.
   */
  reuse(by: Pick<MadeResult, "build" | "pipeline" | "stage" | "path" | "target">, result: ResultKey | null, now: number): void;
  /** Deletes the record of a target's failure in this build; answers its stage, if the failure was counted. */
  recall(build: BuildKey, failure: ResultKey): string | undefined;
}

export interface ArtifactRows {
  add(build: BuildKey, stage: string, path: string, artifacts: readonly NamedArtifact[]): void;
}
