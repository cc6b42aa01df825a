import type { JobKey } from "../../core/text/ids.ts";
import type { NewJob } from "../store.ts";
import type { ListedBatch, ListedTarget } from "../work.ts";
import type { Account, Books } from "./books.ts";
import { type Flows, jobsOf } from "./flows.ts";
import type { ItemRows, ResultRows, Standing, TargetRows, WorkRows } from "./rows.ts";

/** What a listing finds changed or gone. What there is to run then is answered, for the caller to add. */
export class Arrivals {
  readonly #books: Books;
  readonly #flows: Flows;
  readonly #items: ItemRows;
  readonly #results: ResultRows;
  readonly #targets: TargetRows;
  readonly #drop: (job: JobKey) => void;

  /** `drop`: this work item is not wanted any more. */
  constructor(parts: { books: Books; flows: Flows; rows: WorkRows; drop: (job: JobKey) => void }) {
    this.#books = parts.books;
    this.#flows = parts.flows;
    this.#items = parts.rows.items;
    this.#results = parts.rows.results;
    this.#targets = parts.rows.targets;
    this.#drop = parts.drop;
  }

  changed(now: number, account: Account, batch: ListedBatch, target: ListedTarget, standing: Standing | undefined): NewJob[] {
    const ref = { pipeline: batch.pipeline, segment: batch.segment, path: target.path };
    if ((standing?.rev ?? 0) !== target.rev) return [];
    if (standing !== undefined) this.#supersede(account, batch.segment, target.path, standing);
    return this.#flows.pass(now, account, ref, target, standing, null) ?? [];
  }

  gone(now: number, account: Account, batch: ListedBatch, one: Gone, standing: Standing | undefined): NewJob[] {
    const { path, rev, removals, had = [], keep = false } = one;
    if (standing?.rev !== rev) return [];
    const { build, pipeline } = account;
    const ref = { pipeline, segment: batch.segment, path };
    this.#supersede(account, batch.segment, path, standing);
    for (const stage of had) this.#results.reuse({ build, pipeline, stage, path, target: path }, null, now);
    if (removals.length === 0 && !keep) this.#targets.remove(ref);
    else this.#targets.leave(ref);
    return jobsOf(account, removals);
  }

  /** What this build does, or did in vain, for what the target was before. */
  #supersede(account: Account, segment: number, path: string, { failure }: Standing): void {
    for (const job of this.#items.at(account.build, segment, path)) this.#drop(job);
    if (failure === null) return;
    const stage = this.#results.recall(account.build, failure);
    if (stage !== undefined) this.#books.failed(account, stage, -1);
  }
}

type Gone = NonNullable<ListedBatch["gone"]>[number];
