import type { JobKey } from "../../../core/text/ids.ts";
import type { JobState } from "../../../core/jobs/job.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { NewJob } from "../../store.ts";
import type { ListedBatch } from "../../work.ts";
import { type Answer, type Dialect, type Script, together, type Tx, wait } from "../script.ts";
import type { WorkBatch } from "./work-batch.ts";
import type { WorkBatches } from "./work-batches.ts";

/** What a listing uses of the parts that are written for each database. */
export interface ListingParts {
  batches: WorkBatches;
  /** Cancels jobs without an audit entry: those that had not ended, and their states before. */
  cancel: { quietly(tx: Tx, jobs: readonly JobKey[]): Answer<Map<JobKey, JobState>> };
  enqueue: { run(tx: Tx, jobs: readonly NewJob[], batch: WorkBatch): Answer<unknown> };
  notes: { saveCheckpoint(tx: Tx, lease: LeaseRef, value: string): Answer<unknown> };
  settle: { fates(tx: Tx, leases: readonly LeaseRef[]): Answer<Fate[]> };
}

/** Writes what a listing finds, batch by batch, each with the cursor to continue from: a crash repeats one batch at most. */
export class Listing {
  readonly #parts: ListingParts;
  readonly #held: string;

  constructor(dialect: Dialect, parts: ListingParts) {
    this.#parts = parts;
    this.#held = `
      select 1 as held from ${dialect.table("jobs")}
      where key = :job and fence = :fence and coalesce(state, '') = 'running'${dialect.locking}`;
  }

  /** The lock of the build's queue is held. */
  *run(tx: Tx, lease: LeaseRef, batch: ListedBatch): Script<Fate> {
    const { batches, settle, notes } = this.#parts;
    const { build, targets, retried = [], cursor } = batch;
    const artifacts = targets.flatMap((target) => target.artifacts ?? []);
    const [totals, held] = yield* together(
      batches.totals.load(tx, [build], []),
      this.#isHeld(tx, lease),
      artifacts.length > 0 ? batches.lockArtifacts(tx) : wait(undefined),
    );
    if (!held) return (yield* wait(settle.fates(tx, [lease])))[0] as Fate;
    batches.artifacts.refuseMissing(artifacts);
    const loaded = yield* batches.listing(tx, batch, totals);
    yield* this.#unchanged(tx, loaded, batch);
    yield* this.#changed(tx, loaded, batch);
    yield* batches.results.removeRetried(tx, build, retried);
    if (cursor !== undefined) yield* wait(notes.saveCheckpoint(tx, lease, cursor));
    return "held";
  }

  *#isHeld(tx: Tx, { job, fence }: LeaseRef): Script<boolean> {
    return (yield* tx.get(this.#held, { job, fence })) !== undefined;
  }

  /** One statement marks them all. */
  *#unchanged(tx: Tx, loaded: WorkBatch, { build, pipeline, segment, targets }: ListedBatch): Script<void> {
    const same = targets.filter(
      ({ flow, path, rev }) => flow === null && loaded.targets.get({ pipeline, segment, path })?.rev === rev,
    );
    if (same.length === 0) return;
    const spend = loaded.totals.of(build);
    for (const target of same) loaded.unchanged(spend, target);
    const paths = same.map(({ path }) => path);
    yield* this.#parts.batches.targets.see(tx, { pipeline, segment }, paths, build);
  }

  *#changed(tx: Tx, loaded: WorkBatch, { build, segment, targets, gone = [] }: ListedBatch): Script<void> {
    const { batches, enqueue, cancel } = this.#parts;
    const now = yield* tx.time();
    const spend = loaded.totals.of(build);
    const dropped = new Set<JobKey>();
    const drop = (job: JobKey) => void dropped.add(job);
    const jobs = [
      ...targets.filter(({ flow }) => flow !== null).flatMap((one) => loaded.changed(now, spend, segment, one, drop)),
      ...gone.flatMap((one) => loaded.gone(now, spend, segment, one, drop)),
    ];
    if (dropped.size > 0) for (const [job, was] of yield* wait(cancel.quietly(tx, [...dropped]))) loaded.dropped(job, was);
    // The place of a cancelled item is free for the item that follows it.
    yield* batches.write(tx, loaded);
    if (jobs.length > 0) yield* wait(enqueue.run(tx, jobs, loaded));
    yield* batches.close(tx, loaded);
  }
}
