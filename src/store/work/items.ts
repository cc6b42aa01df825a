import { charge, isTelling, tellerOf } from "../../core/pipelines/budget.ts";
import { type Amount, NOTHING, plus } from "../../core/pipelines/cost.ts";
import type { JobKey } from "../../core/text/ids.ts";
import { isFinished, type JobError, type JobState } from "../../core/jobs/job.ts";
import type { Next, Outcome } from "../../core/jobs/retry.ts";
import { NO_VALUE } from "../../core/pipelines/context-hash.ts";
import { cancelledItem } from "../../core/pipelines/work.ts";
import type { NewWork, WorkEnd } from "../work.ts";
import { type Account, type Books, isSame } from "./books.ts";
import type { Item, ItemRows, ResultRows, TargetRef, TargetRows, WorkRows } from "./rows.ts";

/** What went wrong with a target, and where. */
export interface Failure {
  stage: string;
  hash: string;
  parts: string | null;
  cost: Amount;
  error: JobError;
}

/** How an attempt ended, and who says so. */
export interface HowEnded {
  outcome: Outcome;
  by: "holder" | "reclaimer";
}

/** Nobody asked whoever holds it. */
const TAKEN: HowEnded = { outcome: { kind: "stalled" }, by: "reclaimer" };

/** Jobs that are work items of builds: from their start to their end, and what they cost. */
export class Items {
  readonly #books: Books;
  readonly #rows: ItemRows;
  readonly #results: ResultRows;
  readonly #targets: TargetRows;

  constructor(parts: { books: Books; rows: Pick<WorkRows, "items" | "results" | "targets"> }) {
    this.#books = parts.books;
    this.#rows = parts.rows.items;
    this.#results = parts.rows.results;
    this.#targets = parts.rows.targets;
  }

  add(job: JobKey, work: NewWork): void {
    const { build, kind, stage } = work;
    if (build === null) throw new Error(`the work item of job ${job} names no build`);
    this.#rows.add(job, build, work);
    if (kind !== "listing") this.#books.open(this.#books.of(build), stage, 1);
  }

  /** An attempt has ended, other than well. */
  left(now: number, job: JobKey, end: HowEnded & { next: Next; work: WorkEnd | undefined }): void {
    const item = this.#rows.get(job);
    if (item === undefined) return;
    const charged = this.charge(item, end, end.work?.cost);
    if (!isFinished(end.next.state)) return this.#keep(item, charged);
    this.#fail(now, item, charged, end.next.error as JobError, end.work?.context);
  }

  /** Its job was cancelled, by whoever may do so. `running`: nobody knows what the attempt has paid. */
  cancelled(now: number, job: JobKey, was: JobState): void {
    const item = this.#rows.get(job);
    if (item === undefined) return;
    this.#fail(now, item, this.#leave(item, was), cancelledItem());
  }

  /** It is not wanted any more, which is nobody's failure. */
  dropped(job: JobKey, was: JobState): void {
    const item = this.#rows.get(job);
    if (item === undefined) return;
    this.#leave(item, was);
    this.end(item);
  }

  /**
   * What its attempt is charged is spent, and what was set aside is free. The answer is what all its attempts have cost.
   * `isMade`: it was about to make something, so that its cost tells what that costs.
   */
  charge(item: Item, { outcome, by }: HowEnded, reported: Amount = item.cost, isMade = true): Amount {
    const { estimate, stage, kind } = item;
    const teller = tellerOf(outcome, by);
    const cost = charge(teller, { reported, estimate });
    const account = this.#books.of(item.build);
    this.#books.settle(account, estimate, cost);
    if (kind === "stage" && isMade && isTelling(outcome, teller, reported)) this.#books.spend(account, stage, cost);
    return plus(item.charged, cost);
  }

  end(item: Item): void {
    const { build, kind, stage } = item;
    this.#rows.remove(item);
    if (kind !== "listing") this.#books.open(this.#books.of(build), stage, -1);
  }

  /** A target cannot go on. The key is that of the record. */
  record(now: number, account: Account, ref: TargetRef & { id: string }, failure: Failure): ReturnType<ResultRows["put"]> {
    const { build, pipeline } = account;
    const { stage } = failure;
    const put = this.#results.put({ build, pipeline, path: ref.path, target: ref.id, output: NO_VALUE, ...failure }, now);
    if (!put.again) this.#books.failed(account, stage, 1);
    return put;
  }

  #leave(item: Item, was: JobState): Amount {
    return was === "running" ? this.charge(item, TAKEN) : item.charged;
  }

  #keep(item: Item, charged: Amount): void {
    if ([item.estimate, item.cost].every((amount) => isSame(amount, NOTHING)) && isSame(charged, item.charged)) return;
    this.#rows.goOn(item, charged);
  }

  #fail(now: number, item: Item, cost: Amount, error: JobError, context?: WorkEnd["context"]): void {
    this.end(item);
    const account = this.#books.of(item.build);
    const { stage, segment, path } = item;
    if (item.kind === "listing") {
      account.listing = "failed";
      const { build, pipeline } = account;
      const failure = { build, pipeline, stage, path, target: "", hash: "", parts: null, output: NO_VALUE, cost, error };
      return void this.#results.put(failure, now);
    }
    const ref = { pipeline: account.pipeline, segment, path };
    const id = this.#targets.idOf(ref) ?? path;
    const { key } = this.record(
      now,
      account,
      { ...ref, id },
      {
        stage,
        hash: context?.hash ?? "",
        parts: context?.parts ?? null,
        cost,
        error,
      },
    );
    if (item.kind === "stage") this.#targets.failed(ref, key);
    else this.#targets.blame(ref, key);
  }
}
