import { hasEnded } from "../../core/pipelines/build.ts";
import type { JobKey, ResultKey } from "../../core/text/ids.ts";
import { NOTHING } from "../../core/pipelines/cost.ts";
import { completeTrail, type Trail, withoutArtifacts, withoutResult } from "../../core/pipelines/work.ts";
import type { Outcome } from "../../core/jobs/retry.ts";
import type { NewJob } from "../store.ts";
import type { Flow, ListedTarget, WorkEnd } from "../work.ts";
import { type ArtifactWatch, artifactsOf } from "./artifact-watch.ts";
import type { Account, Books } from "./books.ts";
import type { Items } from "./items.ts";
import type { ArtifactRows, Item, ItemRows, Place, ResultRows, Standing, TargetRef, TargetRows, WorkRows } from "./rows.ts";

const WELL = { outcome: { kind: "succeeded", output: null }, by: "holder" } as const;

/** How targets go on: by the success of a stage, or because a listing has found them. What they need to run is answered, for the caller to add. */
export class Flows {
  readonly #books: Books;
  readonly #watch: ArtifactWatch;
  readonly #items: Items;
  readonly #itemRows: ItemRows;
  readonly #artifacts: ArtifactRows;
  readonly #results: ResultRows;
  readonly #targets: TargetRows;

  constructor(parts: { books: Books; watch: ArtifactWatch; items: Items; rows: WorkRows }) {
    this.#books = parts.books;
    this.#watch = parts.watch;
    this.#items = parts.items;
    this.#itemRows = parts.rows.items;
    this.#artifacts = parts.rows.artifacts;
    this.#results = parts.rows.results;
    this.#targets = parts.rows.targets;
  }

  /** What becomes of a success that cannot be written as it is; undefined: it can. */
  untenable(job: JobKey, end: WorkEnd | undefined): Outcome | undefined {
    if (end === undefined) return this.#itemRows.get(job)?.kind === "stage" ? withoutResult() : undefined;
    const missing = this.#watch.missingOf(end);
    return missing.length === 0 ? undefined : withoutArtifacts(missing);
  }

  /** All that the success of a work item means. */
  succeeded(now: number, job: JobKey, end: WorkEnd | undefined): NewJob[] {
    const item = this.#itemRows.get(job);
    if (item === undefined) return [];
    const account = this.#books.of(item.build);
    const made = this.#made(now, account, item, end);
    this.#items.end(item);
    if (item.kind === "listing") account.listing = "done";
    if (item.kind === "remove" && end?.forget !== undefined) this.#forget(account, item, end.forget);
    if (end === undefined || end.target === null) return [];
    const ref = { pipeline: account.pipeline, segment: item.segment, path: end.target.path };
    return this.pass(now, account, ref, end.target, this.#targets.standing(ref), made) ?? [];
  }

  /** Writes down where a target goes. Undefined: it is not as it was read any more, and is left alone. */
  pass(
    now: number,
    account: Account,
    ref: TargetRef,
    target: ListedTarget,
    standing: Standing | undefined,
    made: ResultKey | null,
  ): NewJob[] | undefined {
    if ((standing?.rev ?? 0) !== target.rev) return undefined;
    const { build } = account;
    this.passed(account, target);
    this.#reused(now, account, ref, target);
    if (target.artifacts !== undefined) this.#artifacts.add(build, "", ref.path, target.artifacts);
    const { flow } = target;
    if (flow === null) this.#targets.see(ref, target, build);
    else this.#targets.put(ref, target, this.#placeOf(now, account, ref, target, flow, made), build);
    return flow?.to === "work" ? jobsOf(account, [flow.job]) : [];
  }

  /** Counts the stages that it had no need of. */
  passed(account: Account, { passed }: ListedTarget): void {
    for (const { stage, as } of passed) this.#books.count(account, stage, as, 1);
  }

  #reused(now: number, { build, pipeline }: Account, { path }: TargetRef, { id, passed }: ListedTarget): void {
    for (const { stage, result } of passed)
      if (result !== undefined) this.#results.reuse({ build, pipeline, stage, path, target: id }, result, now);
  }

  #placeOf(now: number, account: Account, ref: TargetRef, { id }: ListedTarget, flow: Flow, made: ResultKey | null): Place {
    const trail = made === null ? flow.trail : completeTrail(flow.trail, made);
    switch (flow.to) {
      case "work":
        return onItsWay(trail, null);
      case "end":
        return { trail, done: flow.done, group: flow.group, member: flow.member, failure: null };
      case "failed": {
        const { stage, hash, error } = flow;
        const record = { stage, hash, parts: null, cost: NOTHING, error };
        return onItsWay(trail, this.#items.record(now, account, { ...ref, id }, record).key);
      }
    }
  }

  /** The result's key; null: there is none. */
  #made(now: number, account: Account, item: Item, end: WorkEnd | undefined): ResultKey | null {
    const result = end?.result ?? null;
    const cost = this.#items.charge(item, WELL, end?.cost, result !== null);
    if (item.kind !== "stage") return null;
    const { stage, path } = item;
    // What it found made already, or has left to its new bytes, is counted where its target goes on.
    if (result === null) return null;
    this.#books.count(account, stage, "ran", 1);
    const { build, pipeline } = account;
    const { hash, parts, output } = result;
    const target = end?.target?.id ?? this.#targets.idOf({ pipeline, segment: item.segment, path }) ?? path;
    const { key, again } = this.#results.put(
      { build, pipeline, stage, path, target, hash, parts, output, cost, error: null },
      now,
    );
    if (again) this.#books.failed(account, stage, -1);
    this.#artifacts.add(build, stage, path, artifactsOf(result));
    return key;
  }

  /** Only when nothing of it is left to be removed, and nothing of that went wrong. */
  #forget({ pipeline }: Account, item: Item, { path, rev }: { path: string; rev: number }): void {
    const ref = { pipeline, segment: item.segment, path };
    const standing = this.#targets.standing(ref);
    if (standing?.rev !== rev || standing.failure !== null || this.#itemRows.isRemoving({ ...item, path })) return;
    this.#targets.remove(ref);
  }
}

/** The jobs of a batch need not know of which build they are. Where that has ended, nothing follows any more: the next one goes on. */
export function jobsOf({ build, state }: Account, jobs: readonly NewJob[]): NewJob[] {
  if (hasEnded(state)) return [];
  return jobs.map((job) => (job.work?.build === null ? { ...job, work: { ...job.work, build } } : job));
}

function onItsWay(trail: Trail, failure: ResultKey | null): Place {
  return { trail, done: null, group: null, member: null, failure };
}
