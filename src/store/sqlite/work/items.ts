import { charge, type Teller, tellerOf } from "../../../core/budget.ts";
import { type Amount, NOTHING, plus } from "../../../core/cost.ts";
import type { BuildKey, JobKey } from "../../../core/ids.ts";
import { isFinished, type JobError, type JobState } from "../../../core/job.ts";
import type { Next, Outcome } from "../../../core/retry.ts";
import { NO_VALUE } from "../../../core/value.ts";
import { cancelledItem } from "../../../core/work.ts";
import { publicId } from "../../job-row.ts";
import type { NewWork, WorkEnd } from "../../work.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Account, Accounts } from "./accounts.ts";
import type { Results } from "./results.ts";
import type { TargetRef, Targets } from "./targets.ts";

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

/** What went wrong with a target, and where. */
export interface Failure {
  stage: string;
  hash: string;
  parts: string | null;
  cost: Amount;
  error: JobError;
}

/** Jobs that are work items of builds: from their start to their end, and what they cost. */
export class Items {
  readonly #accounts: Accounts;
  readonly #results: Results;
  readonly #targets: Targets;
  readonly #any: Statement;
  readonly #row: Statement;
  readonly #twin: Statement;
  readonly #at: Statement;
  readonly #add: Statement;
  readonly #goOn: Statement;
  readonly #remove: Statement;
  readonly #removal: Statement;

  constructor(db: Connection, parts: { accounts: Accounts; results: Results; targets: Targets }) {
    this.#accounts = parts.accounts;
    this.#results = parts.results;
    this.#targets = parts.targets;
    this.#any = db.prepare("select 1 from holdfast_work limit 1");
    this.#row = db.prepare(
      `select build, kind, stage, segment, path, estimate_micros, estimate_tokens, cost_micros, cost_tokens, charged_micros, charged_tokens
       from holdfast_work where job = ?`,
    );
    // These by holdfast_work_target.
    this.#twin = db.prepare(
      `select job.key, created_at, id from holdfast_work as work join holdfast_jobs as job on job.key = work.job
       where build = ? and segment = ? and path = ? and stage = ? and kind = ?`,
    );
    this.#at = db.prepare("select job from holdfast_work where build = ? and segment = ? and path = ? and kind = 'stage'");
    this.#removal = db.prepare(
      "select 1 from holdfast_work where build = ? and segment = ? and path = ? and kind = 'remove' limit 1",
    );
    this.#add = db.prepare("insert into holdfast_work (job, build, kind, stage, segment, path) values (?, ?, ?, ?, ?, ?)");
    this.#goOn = db.prepare(
      `update holdfast_work set estimate_micros = 0, estimate_tokens = 0, cost_micros = 0, cost_tokens = 0,
         charged_micros = ?, charged_tokens = ?
       where job = ?`,
    );
    this.#remove = db.prepare("delete from holdfast_work where job = ?");
  }

  /** Whether there are any. */
  any(): boolean {
    return this.#any.row() !== undefined;
  }

  get(job: JobKey): Item | undefined {
    const row = this.#row.row(job);
    if (row === undefined) return undefined;
    const [build, kind, stage, segment, path] = row as [BuildKey, NewWork["kind"], string, number, string];
    const [, , , , , ...money] = row as unknown as number[];
    const amount = (at: number): Amount => ({ micros: money[at] as number, tokens: money[at + 1] as number });
    return { job, build, kind, stage, segment, path, estimate: amount(0), cost: amount(2), charged: amount(4) };
  }

  /** The id of the job that is this item already. */
  twin(work: NewWork): string | undefined {
    const { build, segment, path, stage, kind } = work;
    const row = this.#twin.row(build, segment, path, stage, kind) as [JobKey, number, string | null] | undefined;
    return row && publicId(row[2], row[1], row[0]);
  }

  /** The stage's jobs that a target has in this build: one at most. */
  at(build: BuildKey, segment: number, path: string): JobKey[] {
    return this.#at.rows(build, segment, path).map(([job]) => job as JobKey);
  }

  /** Whether something of this target is still to be removed. */
  isRemoving({ build, segment, path }: Pick<Item, "build" | "segment" | "path">): boolean {
    return this.#removal.row(build, segment, path) !== undefined;
  }

  add(job: JobKey, { build, kind, stage, segment, path }: NewWork): void {
    if (build === null) throw new Error(`the work item of job ${job} names no build`);
    this.#add.run(job, build, kind, stage, segment, path);
    if (kind !== "listing") this.#accounts.open(this.#accounts.of(build), stage, 1);
  }

  /** An attempt has ended, other than well. */
  left(tx: Tx, job: JobKey, end: { outcome: Outcome; next: Next; by: "holder" | "reclaimer"; work: WorkEnd | undefined }): void {
    const item = this.get(job);
    if (item === undefined) return;
    const charged = this.charge(item, tellerOf(end.outcome, end.by), end.work?.cost);
    if (!isFinished(end.next.state)) return this.#keep(item, charged);
    this.#fail(tx, item, charged, end.next.error as JobError, end.work?.context);
  }

  /** Its job was cancelled, by whoever may do so. `running`: nobody knows what the attempt has paid. */
  cancelled(tx: Tx, job: JobKey, was: JobState): void {
    const item = this.get(job);
    if (item === undefined) return;
    this.#fail(tx, item, this.#leave(item, was), cancelledItem());
  }

  /** It is not wanted any more, which is nobody's failure. */
  dropped(job: JobKey, was: JobState): void {
    const item = this.get(job);
    if (item === undefined) return;
    this.#leave(item, was);
    this.end(item);
  }

  /** What its attempt is charged is spent, and what was set aside is free. The answer is what all its attempts have cost. */
  charge(item: Item, teller: Teller, reported: Amount = item.cost, counts = true): Amount {
    const { estimate, stage, kind } = item;
    const cost = charge(teller, { reported, estimate });
    const account = this.#accounts.of(item.build);
    this.#accounts.settle(account, estimate, cost);
    if (kind === "stage" && teller !== "unstarted" && counts) this.#accounts.spend(account, stage, cost);
    return plus(item.charged, cost);
  }

  end({ job, build, kind, stage }: Item): void {
    this.#remove.run(job);
    if (kind !== "listing") this.#accounts.open(this.#accounts.of(build), stage, -1);
  }

  /** A target cannot go on. The key is that of the record. */
  record(tx: Tx, account: Account, ref: TargetRef & { id: string }, failure: Failure): ReturnType<Results["put"]> {
    const { build, pipeline } = account;
    const { stage } = failure;
    const put = this.#results.put({ build, pipeline, path: ref.path, target: ref.id, output: NO_VALUE, ...failure }, tx.now);
    if (!put.again) this.#accounts.failed(account, stage, 1);
    return put;
  }

  #leave(item: Item, was: JobState): Amount {
    return was === "running" ? this.charge(item, "reclaimer") : item.charged;
  }

  #keep({ job, estimate, cost, charged }: Item, now: Amount): void {
    if ([estimate, cost].every(isNothing) && now.micros === charged.micros && now.tokens === charged.tokens) return;
    this.#goOn.run(now.micros, now.tokens, job);
  }

  #fail(tx: Tx, item: Item, cost: Amount, error: JobError, context?: WorkEnd["context"]): void {
    this.end(item);
    const account = this.#accounts.of(item.build);
    const { stage, segment, path } = item;
    if (item.kind === "listing") {
      account.listing = "failed";
      const { build, pipeline } = account;
      const failure = { build, pipeline, stage, path, target: "", hash: "", parts: null, output: NO_VALUE, cost, error };
      return void this.#results.put(failure, tx.now);
    }
    const ref = { pipeline: account.pipeline, segment, path };
    const id = this.#targets.idOf(ref) ?? path;
    const { key } = this.record(
      tx,
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

function isNothing({ micros, tokens }: Amount): boolean {
  return micros === NOTHING.micros && tokens === NOTHING.tokens;
}
