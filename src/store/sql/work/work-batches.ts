import type { BuildKey, JobKey, ResultKey } from "../../../core/text/ids.ts";
import type { JobState } from "../../../core/jobs/job.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import type { NewJob } from "../../store.ts";
import type { ListedBatch, ListedTarget, WorkEnd } from "../../work.ts";
import { type Answer, type Dialect, type Script, type Settings, together, type Tx, wait } from "../script.ts";
import { type BuildTotals, BuildTotalsTable } from "./build-totals.ts";
import { type ExistingItems, ItemBatch, ItemTable, type WorkItem } from "./items.ts";
import { ResultBatch, type ResultOrigin, ResultTable } from "./results.ts";
import { TargetBatch, type TargetRef, TargetTable } from "./targets.ts";
import { ArtifactCheck, namedIn, WorkBatch } from "./work-batch.ts";

export interface EndingJob {
  job: JobKey;
  lane: number;
  work?: WorkEnd | undefined;
}

export interface WorkDatabase {
  queueOf(lane: number): string;
  lockEnding?(tx: Tx, jobs: readonly JobKey[], queues: readonly string[]): Answer<unknown>;
  lockArtifacts?(tx: Tx): Answer<unknown>;
  resultKeys(tx: Tx, count: number): Answer<ResultKey[]>;
  /** The error that makes the transaction run again, because another one has added the same target. */
  overtaken(): Error;
}

// Takes a handful of statements, however many items there are. Order of locks on PostgreSQL: the items' queue; builds, by key;
// jobs, work items, targets, results. A transaction that moves a build from state to state locks none of its work after that.
export class WorkBatches {
  readonly artifacts: ArtifactCheck;
  readonly totals: BuildTotalsTable;
  readonly items: ItemTable;
  readonly targets: TargetTable;
  readonly results: ResultTable;
  readonly #database: WorkDatabase;

  constructor(
    dialect: Dialect,
    parts: {
      settings: Settings;
      database: WorkDatabase;
      artifacts?: ArtifactCheck;
    },
  ) {
    this.artifacts = parts.artifacts ?? new ArtifactCheck();
    const { settings, database } = parts;
    this.#database = database;
    this.totals = new BuildTotalsTable(dialect, settings);
    this.items = new ItemTable(dialect);
    this.targets = new TargetTable(dialect);
    this.results = new ResultTable(dialect, (tx, count) => database.resultKeys(tx, count));
  }

  isPipelines(lane: number): boolean {
    return isPipelineQueue(this.#database.queueOf(lane));
  }

  *lockArtifacts(tx: Tx): Script<void> {
    yield* wait(this.#database.lockArtifacts?.(tx));
  }

  /** Loads a batch for attempts that end. Returns null if none of the jobs is a work item. */
  *ending(tx: Tx, ends: readonly EndingJob[]): Script<WorkBatch | null> {
    const ending = ends.filter(({ lane }) => this.isPipelines(lane));
    if (ending.length === 0) return null;
    const jobs = ending.map(({ job }) => job);
    yield* wait(this.#database.lockEnding?.(tx, jobs, [...new Set(ending.map(({ lane }) => this.#database.queueOf(lane)))]));
    const works = new Map(ending.flatMap(({ job, work }) => (work === undefined ? [] : [[job, work]])));
    const namesAny = [...works.values()].some((end) => namedIn(end).length > 0);
    const [totals, found] = yield* together(
      this.totals.load(tx, [], jobs),
      this.items.byJob(tx, jobs),
      namesAny ? this.lockArtifacts(tx) : wait(undefined),
    );
    const forgotten = found.flatMap(({ job, build, segment }) => {
      const forget = works.get(job)?.forget;
      return forget === undefined ? [] : [{ build, segment, path: forget.path }];
    });
    const wanted = found.map((item) => wantedBy(item, works.get(item.job), totals));
    const refs = wanted.flatMap((one) => one.refs);
    const origins = wanted.flatMap((one) => one.origins);
    const [besides, targets, results] = yield* together(
      this.items.at(tx, forgotten),
      this.targets.load(tx, refs),
      this.results.load(tx, origins, keysOf(origins)),
    );
    return this.#batch(totals, [...found, ...besides], targets, results);
  }

  /** Loads a batch for a listing. The caller holds the lock of its queue. */
  *listing(tx: Tx, batch: ListedBatch, totals: BuildTotals): Script<WorkBatch> {
    const { build, pipeline, segment, gone = [] } = batch;
    const changed = batch.targets.filter(({ flow }) => flow !== null);
    const paths = [...new Set([...changed, ...gone].map(({ path }) => path))];
    const inBuild = paths.map((path) => ({ build, segment, path }));
    const refs = paths.map((path) => ({ pipeline, segment, path }));
    const [items, targets] = yield* together(this.items.at(tx, inBuild), this.targets.load(tx, refs));
    const origins = [
      ...changed.flatMap((target) => originsOf({ build, pipeline }, target)),
      ...gone.flatMap(({ path, had = [] }) => had.map((stage) => ({ build, pipeline, stage, path, result: null }))),
    ];
    const failures = paths.flatMap((path) => targets.get({ pipeline, segment, path })?.failure ?? []);
    const results = yield* this.results.load(tx, origins, [...failures, ...keysOf(origins)]);
    return this.#batch(totals, items, targets, results);
  }

  *adding(tx: Tx, builds: readonly BuildKey[]): Script<WorkBatch> {
    return this.#batch(yield* this.totals.load(tx, builds, []), [], new TargetBatch(), new ResultBatch());
  }

  existing(tx: Tx, jobs: readonly NewJob[], batch: WorkBatch | undefined): Script<ExistingItems> {
    return this.items.existing(tx, jobs, batch !== undefined);
  }

  *cancelled(tx: Tx, now: number, jobs: readonly (EndingJob & { was: JobState })[]): Script<void> {
    const batch = yield* this.ending(tx, jobs);
    if (batch === null) return;
    for (const { job, was } of jobs) batch.cancelled(now, job, was);
    yield* this.close(tx, batch);
  }

  *write(tx: Tx, batch: WorkBatch): Script<void> {
    const [, , areWritten] = yield* together(
      this.items.write(tx, batch.items.changes()),
      this.results.write(tx, batch.results),
      this.targets.write(tx, batch.targets),
    );
    if (!areWritten) throw this.#database.overtaken();
  }

  *close(tx: Tx, batch: WorkBatch): Script<void> {
    yield* together(this.write(tx, batch), this.totals.write(tx, batch.totals));
  }

  #batch(totals: BuildTotals, items: readonly WorkItem[], targets: TargetBatch, results: ResultBatch): WorkBatch {
    return new WorkBatch({ totals, items: new ItemBatch(items), targets, results }, this.artifacts);
  }
}

interface WantedResult extends ResultOrigin {
  pipeline: string;
  result: ResultKey | null;
}

function keysOf(origins: readonly WantedResult[]): ResultKey[] {
  return origins.flatMap(({ result }) => result ?? []);
}

function wantedBy(item: WorkItem, end: WorkEnd | undefined, totals: BuildTotals): { refs: TargetRef[]; origins: WantedResult[] } {
  const { build, segment, stage, path, kind } = item;
  const { pipeline } = totals.of(build);
  const target = end?.target ?? null;
  const paths = new Set(kind === "listing" ? [] : [path]);
  if (target !== null) paths.add(target.path);
  if (end?.forget !== undefined) paths.add(end.forget.path);
  const own = { build, pipeline, stage, path, result: null };
  return {
    refs: Array.from(paths, (one) => ({ pipeline, segment, path: one })),
    origins: target === null ? [own] : [own, ...originsOf({ build, pipeline }, target)],
  };
}

/** Returns the failure of a target that cannot continue, and the results that it has from now on without having run a stage. */
function originsOf(of: { build: BuildKey; pipeline: string }, { path, flow, passed }: ListedTarget): WantedResult[] {
  const origins: WantedResult[] = flow?.to === "failed" ? [{ ...of, stage: flow.stage, path, result: null }] : [];
  for (const { stage, result } of passed) if (result !== undefined) origins.push({ ...of, stage, path, result });
  return origins;
}
