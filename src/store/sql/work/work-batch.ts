import { chargeOf, countsForMean, costReporterOf, type Amount, NO_COST, plus } from "../../../core/pipelines/budget.ts";
import { hasEnded } from "../../../core/pipelines/build.ts";
import {
  NO_VALUE,
  artifactMissing,
  cancelledItemError,
  withResult,
  missingArtifactsOutcome,
  missingResultOutcome,
} from "../../../core/pipelines/work.ts";
import { isFinished, type JobError, type JobState } from "../../../core/jobs/job.ts";
import type { Next, Outcome } from "../../../core/jobs/retry.ts";
import type { JobKey, ResultKey } from "../../../core/text/ids.ts";
import { type Continued, newHooks, type NewJob, type StoreHooks } from "../../store.ts";
import {
  type Flow,
  type ListedBatch,
  type ListedTarget,
  type NamedArtifact,
  type NewResult,
  type NewWork,
  OUTPUT,
  type WorkEnd,
} from "../../work.ts";
import { type BuildSpend, type BuildTotals, isSame, settleSpend } from "./build-totals.ts";
import type { ItemBatch, WorkItem } from "./items.ts";
import type { ResultBatch } from "./results.ts";
import type { TargetPosition, TargetBatch, TargetRef, TargetState } from "./targets.ts";

export interface AttemptEnd {
  outcome: Outcome;
  by: "holder" | "reclaimer";
}

/** The job of a target's next stage, and what its attempt needs to know of the stage before. */
export interface FollowingJob extends Omit<Continued, "claimed"> {
  job: NewJob;
}

interface Failure {
  stage: string;
  hash: string;
  parts: string | null;
  cost: Amount;
  error: JobError;
}

type GoneTarget = NonNullable<ListedBatch["gone"]>[number];

const SUCCEEDED: AttemptEnd = { outcome: { kind: "succeeded", output: null }, by: "holder" };
/** The holder of a cancelled attempt cannot report its cost. */
const CANCELLED: AttemptEnd = { outcome: { kind: "stalled" }, by: "reclaimer" };

/** The rows that one operation on work items has loaded. The caller enqueues the jobs that its methods return. */
export class WorkBatch {
  readonly totals: BuildTotals;
  readonly items: ItemBatch;
  readonly targets: TargetBatch;
  readonly results: ResultBatch;
  readonly #artifacts: ArtifactCheck;

  constructor(rows: Pick<WorkBatch, "totals" | "items" | "targets" | "results">, artifacts: ArtifactCheck) {
    this.totals = rows.totals;
    this.items = rows.items;
    this.targets = rows.targets;
    this.results = rows.results;
    this.#artifacts = artifacts;
  }

  add(job: JobKey, work: NewWork): void {
    const { build, kind, stage } = work;
    if (build === null) throw new Error(`The work item of job ${job} names no build.`);
    this.items.add(job, build, work);
    if (kind !== "listing") this.totals.open(this.totals.of(build), stage, 1);
  }

  /** Returns the outcome of a success that cannot be written, or undefined if it can be. */
  refusal(job: JobKey, end: WorkEnd | undefined): Outcome | undefined {
    if (end === undefined) return this.items.get(job)?.kind === "stage" ? missingResultOutcome() : undefined;
    const missing = this.#artifacts.missing(namedIn(end));
    return missing.length === 0 ? undefined : missingArtifactsOutcome(missing);
  }

  succeeded(now: number, job: JobKey, end: WorkEnd | undefined): FollowingJob | null {
    const item = this.items.get(job);
    if (item === undefined) return null;
    const spend = this.totals.of(item.build);
    const made = this.#record(now, spend, item, end);
    this.#remove(item);
    if (item.kind === "listing") spend.listing = "done";
    if (item.kind === "remove" && end?.forget !== undefined) this.#forget(spend, item, end.forget);
    if (end === undefined || end.target === null) return null;
    const ref = { ...refOf(spend, item), path: end.target.path };
    const [following] = this.#continue(now, spend, ref, end.target, made);
    return following === undefined ? null : { job: following, result: made, budget: spend.ledger.budget };
  }

  ended(now: number, job: JobKey, end: AttemptEnd & { next: Next; work: WorkEnd | undefined }): void {
    const item = this.items.get(job);
    if (item === undefined) return;
    const charged = this.#charge(item, end, end.work?.cost);
    if (isFinished(end.next.state)) this.#fail(now, item, charged, end.next.error as JobError, end.work?.context);
    else if (![item.estimate, item.cost].every((amount) => isSame(amount, NO_COST)) || !isSame(charged, item.charged))
      this.items.keep(item, charged);
  }

  /** Fails the target, because an operator has cancelled the job, or its upstream has ended. */
  cancelled(now: number, job: JobKey, was: JobState): void {
    const item = this.items.get(job);
    if (item !== undefined) this.#fail(now, item, this.#chargeCancelled(item, was), cancelledItemError());
  }

  /** Removes a job that the build does not need any more. The target does not fail. */
  dropped(job: JobKey, was: JobState): void {
    const item = this.items.get(job);
    if (item === undefined) return;
    this.#chargeCancelled(item, was);
    this.#remove(item);
  }

  changed(now: number, spend: BuildSpend, segment: number, target: ListedTarget, drop: (job: JobKey) => void): NewJob[] {
    const ref = refOf(spend, { segment, path: target.path });
    const state = this.targets.get(ref);
    if ((state?.rev ?? 0) !== target.rev) return [];
    if (state !== undefined) this.#restart(spend, ref, state, drop);
    return this.#continue(now, spend, ref, target, null);
  }

  gone(now: number, spend: BuildSpend, segment: number, target: GoneTarget, drop: (job: JobKey) => void): NewJob[] {
    const { path, rev, removals, had = [], keep = false } = target;
    const ref = refOf(spend, { segment, path });
    const state = this.targets.get(ref);
    if (state?.rev !== rev) return [];
    const { build, pipeline } = spend;
    this.#restart(spend, ref, state, drop);
    for (const stage of had) this.results.reuse({ build, pipeline, stage, path, target: path }, null, now);
    if (removals.length === 0 && !keep) this.targets.remove(ref);
    else this.targets.leave(ref);
    return jobsOf(spend, removals);
  }

  /** Counts a target that a listing has found unchanged, at the end of its segment. */
  unchanged(spend: BuildSpend, target: ListedTarget): void {
    for (const { stage, as } of target.passed) this.totals.count(spend, stage, as, 1);
    if (target.artifacts !== undefined)
      this.results.addArtifacts({ build: spend.build, stage: "", path: target.path }, target.artifacts);
  }

  #restart(spend: BuildSpend, { segment, path }: TargetRef, { failure }: TargetState, drop: (job: JobKey) => void): void {
    for (const { job } of this.items.of({ build: spend.build, segment, path }, "stage")) drop(job);
    const stage = failure === null ? undefined : this.results.recall(spend.build, failure);
    if (stage !== undefined) this.totals.failed(spend, stage, -1);
  }

  #continue(now: number, spend: BuildSpend, ref: TargetRef, target: ListedTarget, made: ResultKey | null): NewJob[] {
    if ((this.targets.get(ref)?.rev ?? 0) !== target.rev) return [];
    const { build, pipeline } = spend;
    const { id, passed, flow } = target;
    this.unchanged(spend, target);
    for (const { stage, result } of passed)
      if (result !== undefined) this.results.reuse({ build, pipeline, stage, path: ref.path, target: id }, result, now);
    if (flow === null) this.targets.see(ref, build);
    else this.targets.put(ref, target, this.#positionOf(now, spend, ref, target, flow, made), build);
    return flow?.to === "work" ? jobsOf(spend, [flow.job]) : [];
  }

  #positionOf(
    now: number,
    spend: BuildSpend,
    ref: TargetRef,
    { id }: ListedTarget,
    flow: Flow,
    made: ResultKey | null,
  ): TargetPosition {
    const completed = made === null ? flow.completed : withResult(flow.completed, made);
    const position = { completed, done: null, group: null, member: null, failure: null };
    if (flow.to === "end") return { ...position, done: flow.done, group: flow.group, member: flow.member };
    if (flow.to === "work") return position;
    const { stage, hash, error } = flow;
    return {
      ...position,
      failure: this.#recordFailure(now, spend, ref.path, id, { stage, hash, parts: null, cost: NO_COST, error }),
    };
  }

  #record(now: number, spend: BuildSpend, item: WorkItem, end: WorkEnd | undefined): ResultKey | null {
    const result = end?.result ?? null;
    const cost = this.#charge(item, SUCCEEDED, end?.cost, result !== null);
    // A stage whose result existed already is counted where its target continues.
    if (item.kind !== "stage" || result === null) return null;
    const { build, pipeline } = spend;
    const { stage, path } = item;
    const { hash, parts, output, shared = false } = result;
    this.totals.count(spend, stage, "ran", 1);
    const target = end?.target?.id ?? this.targets.get(refOf(spend, item))?.id ?? path;
    const made = { build, pipeline, stage, path, target, hash, parts, output, cost, error: null, shared };
    const { key, again } = this.results.put(made, now);
    if (again) this.totals.failed(spend, stage, -1);
    this.results.addArtifacts({ build, stage, path }, artifactsOf(result));
    return key;
  }

  /** Deletes a target of which nothing is left to be removed, unless a removal has failed. */
  #forget(spend: BuildSpend, item: WorkItem, { path, rev }: { path: string; rev: number }): void {
    const ref = { ...refOf(spend, item), path };
    const state = this.targets.get(ref);
    if (state?.rev !== rev || state.failure !== null || this.items.of({ ...item, path }, "remove").length > 0) return;
    this.targets.remove(ref);
  }

  #fail(now: number, item: WorkItem, cost: Amount, error: JobError, context?: WorkEnd["context"]): void {
    this.#remove(item);
    const spend = this.totals.of(item.build);
    const { build, pipeline } = spend;
    const { stage, path } = item;
    if (item.kind === "listing") {
      spend.listing = "failed";
      const failed = { build, pipeline, stage, path, target: "", hash: "", parts: null, output: NO_VALUE, cost, error };
      return void this.results.put(failed, now);
    }
    const ref = refOf(spend, item);
    const id = this.targets.get(ref)?.id ?? path;
    const failure = { stage, hash: context?.hash ?? "", parts: context?.parts ?? null, cost, error };
    const key = this.#recordFailure(now, spend, path, id, failure);
    if (item.kind === "stage") this.targets.fail(ref, key);
    else this.targets.blame(ref, key);
  }

  #recordFailure(now: number, spend: BuildSpend, path: string, target: string, failure: Failure): ResultKey {
    const { build, pipeline } = spend;
    const { key, again } = this.results.put({ build, pipeline, path, target, output: NO_VALUE, ...failure }, now);
    if (!again) this.totals.failed(spend, failure.stage, 1);
    return key;
  }

  /** Spends an attempt's charge and frees its reservation. Returns the cost of all attempts. `makes`: it counts for estimates. */
  #charge(item: WorkItem, { outcome, by }: AttemptEnd, reported: Amount = item.cost, makes = true): Amount {
    const { estimate, stage, kind } = item;
    const teller = costReporterOf(outcome, by);
    const cost = chargeOf(teller, { reported, estimate });
    const spend = this.totals.of(item.build);
    settleSpend(spend, estimate, cost);
    if (kind === "stage" && makes && countsForMean(outcome, teller, reported)) this.totals.addCost(spend, stage, cost);
    return plus(item.charged, cost);
  }

  #chargeCancelled(item: WorkItem, was: JobState): Amount {
    return was === "running" ? this.#charge(item, CANCELLED) : item.charged;
  }

  #remove(item: WorkItem): void {
    this.items.remove(item);
    if (item.kind !== "listing") this.totals.open(this.totals.of(item.build), item.stage, -1);
  }
}

/** Checks, inside transactions, that artifacts exist before rows refer to them. */
export class ArtifactCheck {
  readonly #hooks: StoreHooks;

  constructor(hooks = newHooks()) {
    this.#hooks = hooks;
  }

  missing(named: readonly NamedArtifact[]): readonly string[] {
    return named.length === 0 ? [] : this.#hooks.missingArtifacts(new Set(named.map(({ hash }) => hash)));
  }

  refuseMissing(named: readonly NamedArtifact[]): void {
    const missing = this.missing(named);
    if (missing.length > 0) throw artifactMissing(missing);
  }
}

export function namedIn({ result, target }: WorkEnd): NamedArtifact[] {
  return [...(result === null ? [] : artifactsOf(result)), ...(target?.artifacts ?? [])];
}

function artifactsOf({ output, artifacts }: NewResult): readonly NamedArtifact[] {
  if (output.artifact === null) return artifacts;
  return [{ name: OUTPUT, hash: output.artifact, size: output.size }, ...artifacts];
}

/** Gives jobs the key of a build that was made in the same commit. A build that has ended gets no more jobs. */
function jobsOf({ build, state }: BuildSpend, jobs: readonly NewJob[]): NewJob[] {
  if (hasEnded(state)) return [];
  return jobs.map((job) => (job.work?.build === null ? { ...job, work: { ...job.work, build } } : job));
}

function refOf({ pipeline }: BuildSpend, { segment, path }: Omit<TargetRef, "pipeline">): TargetRef {
  return { pipeline, segment, path };
}
