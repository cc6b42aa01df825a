import type { LeaseState, LeaseRef } from "../../../core/jobs/lease.ts";
import type { CostHistory, Amount } from "../../../core/pipelines/budget.ts";
import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import type { BuildRow } from "../../builds.ts";
import { type Flag, isYes } from "../../job-row.ts";
import type { NewJob, WorkStore } from "../../store.ts";
import type {
  ArtifactRef,
  Beginning,
  Clearing,
  FoundResult,
  ListedBatch,
  MemberPage,
  NewWork,
  ResultContext,
  ResultQuery,
  SpendSlice,
  StoredResult,
  TargetPage,
  TargetPaths,
  TargetRow,
  WorkView,
} from "../../work.ts";
import { endedWithWork, Runs } from "../builds/build-rows.ts";
import { LeaseStates, type Notes } from "../notes.ts";
import type { Cancel } from "../operate.ts";
import {
  type Access,
  type Answer,
  type Dialect,
  type Reads,
  type Script,
  type Settings,
  together,
  type Tx,
  wait,
} from "../script.ts";
import { CostLedger, type TargetInBuild } from "./items.ts";
import { Results } from "./results.ts";
import { Spend } from "./spend.ts";
import { Targets } from "./targets.ts";
import type { WorkBatch } from "./work-batch.ts";
import type { WorkBatches } from "./work-batches.ts";

export interface WorkHooks extends Pick<WorkStore, "referenced">, Pick<ListingParts, "cancel" | "enqueue" | "notes"> {
  settings: Settings;
  prepare?(tx: Tx): Answer<unknown>;
  knowLanes?(tx: Tx, lanes: readonly number[]): Answer<unknown>;
  /** Returns the queues of jobs that this process has claimed, as far as it knows. Absent if queues are not locked. */
  claimedQueues?(jobs: readonly JobKey[]): string[];
  lockQueues?(tx: Tx, queues: readonly string[]): Answer<unknown>;
}

type EndedBuild = { key: BuildKey; queue: string };

interface Parts {
  batches: WorkBatches;
  hooks: WorkHooks;
}

export class Work implements WorkStore {
  readonly #access: Access;
  readonly #batches: WorkBatches;
  readonly #hooks: WorkHooks;
  readonly #listing: Listing;
  readonly #ledger: CostLedger;
  readonly #runs: Runs;
  readonly #targets: Targets;
  readonly #results: Results;
  readonly #spend: Spend;
  readonly #sql: ReturnType<typeof workSql>;

  constructor(dialect: Dialect, { batches, hooks }: Parts, access: Access) {
    this.#access = access;
    this.#batches = batches;
    this.#hooks = hooks;
    this.#listing = new Listing(dialect, { ...hooks, batches, states: new LeaseStates(dialect) });
    this.#ledger = new CostLedger({ ...hooks, batches });
    this.#runs = new Runs(dialect);
    this.#targets = new Targets(dialect);
    this.#results = new Results(dialect);
    this.#spend = new Spend(dialect);
    this.#sql = workSql(dialect);
  }

  targets(query: TargetPaths | TargetPage | MemberPage): Promise<TargetRow[]> {
    return this.#access.read((db) => this.#targets.read(db, query));
  }

  countTargets(pipeline: string, segment: number): Promise<number> {
    return this.#access.read((db) => this.#targets.count(db, pipeline, segment));
  }

  listed(lease: LeaseRef, batch: ListedBatch): Promise<LeaseState> {
    return this.#access.write("listed", (tx) => this.#listed(tx, lease, batch));
  }

  *#listed(tx: Tx, lease: LeaseRef, batch: ListedBatch): Script<LeaseState> {
    const { build } = batch;
    yield* wait(this.#hooks.prepare?.(tx));
    const claimed = this.#hooks.claimedQueues?.([lease.job]);
    if (claimed !== undefined) {
      const queues =
        claimed.length > 0 ? claimed : (yield* tx.all<{ queue: string }>(this.#sql.queue, { build })).map(({ queue }) => queue);
      yield* wait(this.#hooks.lockQueues?.(tx, queues));
    }
    return yield* this.#listing.run(tx, lease, batch);
  }

  lookUp(pipeline: string, contexts: readonly ResultContext[]): Promise<(FoundResult | null)[]> {
    return this.#access.read((db) => this.#results.lookUp(db, pipeline, contexts));
  }

  results(query: ResultQuery): Promise<StoredResult[]> {
    return this.#access.read((db) => this.#results.read(db, query));
  }

  /** Reads before it writes, because it is called often, and mostly there is nothing to do. */
  async clearWork(clearing: Clearing): Promise<number> {
    if (!(await this.#access.read((db) => this.#isWorkLeft(db, clearing)))) return 0;
    return this.#access.write("cancel", (tx) => this.#clear(tx, clearing));
  }

  *#clear(tx: Tx, clearing: Clearing): Script<number> {
    const builds = yield* this.#endedBuilds(tx, clearing);
    if (builds.length === 0) return 0;
    yield* wait(this.#hooks.prepare?.(tx));
    const queues = builds.map(({ queue }) => queue);
    yield* wait(this.#hooks.lockQueues?.(tx, queues));
    const items = yield* this.#itemsOf(tx, builds, clearing);
    const lanes = items.map(({ lane }) => lane);
    yield* wait(this.#hooks.knowLanes?.(tx, lanes));
    const batch = yield* this.#batches.ending(tx, items);
    if (batch === null) return 0;
    const jobs = items.map(({ job }) => job);
    const dropped = yield* this.#hooks.cancel.quietly(tx, jobs);
    for (const [job, was] of dropped) batch.dropped(job, was);
    yield* this.#batches.close(tx, batch);
    return dropped.size;
  }

  *#isWorkLeft(db: Reads, clearing: Clearing): Script<boolean> {
    const builds = yield* this.#endedBuilds(db, clearing);
    return (yield* this.#itemsOf(db, builds, { ...clearing, limit: 1 })).length > 0;
  }

  *#endedBuilds(db: Reads, { pipeline }: Clearing): Script<EndedBuild[]> {
    return yield* db.all<EndedBuild>(this.#sql.ended, { pipeline: pipeline ?? null });
  }

  *#itemsOf(db: Reads, builds: readonly EndedBuild[], { which, limit }: Clearing): Script<{ job: JobKey; lane: number }[]> {
    if (builds.length === 0) return [];
    return yield* db.all(this.#sql[which], { builds: builds.map(({ key }) => key), limit });
  }

  works(jobs: readonly JobKey[]): Promise<(WorkView | null)[]> {
    return this.#access.read((db) => this.#works(db, jobs));
  }

  *#works(db: Reads, jobs: readonly JobKey[]): Script<(WorkView | null)[]> {
    type Row = Omit<NewWork, "build"> & { job: JobKey; build: BuildKey; removing: Flag };
    const items = new Map((yield* db.all<Row>(this.#sql.items, { jobs })).map((item) => [item.job, item]));
    const keys = [...new Set(Array.from(items.values(), ({ build }) => build))];
    const rows = yield* together(...keys.map((key) => this.#runs.get(db, key)));
    const builds = new Map(keys.map((key, i) => [key, rows[i] as BuildRow]));
    const targets = new Map<string, TargetRow>();
    const nameOf = ({ build, segment, path }: TargetInBuild) => `${segment}\n${builds.get(build)?.pipeline}\n${path}`;
    const withTargets = [...items.values()].filter(({ kind }) => kind !== "listing");
    for (const group of Map.groupBy(withTargets, ({ build, segment }) => `${build} ${segment}`).values()) {
      const [{ build, segment }] = group as [Row];
      const paths = group.map(({ path }) => path);
      for (const row of yield* this.#targets.byPath(db, (builds.get(build) as BuildRow).pipeline, segment, paths))
        targets.set(nameOf({ build, segment, path: row.path }), row);
    }
    return jobs.map((job) => {
      const item = items.get(job);
      if (item === undefined) return null;
      const { kind, stage, segment } = item;
      const build = builds.get(item.build) as BuildRow;
      const target = kind === "listing" ? null : (targets.get(nameOf(item)) ?? null);
      return { kind, stage, build, segment, target, removing: isYes(item.removing) };
    });
  }

  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    const claimed = starts.map(({ job }) => job);
    return this.#access.write("begin", (tx) => this.#begin(tx, starts, claimed));
  }

  *#begin(tx: Tx, starts: readonly (LeaseRef & { estimate: Amount })[], claimed: readonly JobKey[]): Script<Beginning[]> {
    if (starts.length === 0) return [];
    yield* wait(this.#hooks.prepare?.(tx));
    // Pipelined, so that the lock is sent ahead of the statements that lock rows.
    const queues = this.#hooks.claimedQueues?.(claimed) ?? [];
    return (yield* together(wait(this.#hooks.lockQueues?.(tx, queues)), this.#ledger.begin(tx, starts)))[1];
  }

  async costs(pipeline: string): Promise<Record<string, CostHistory>> {
    type Row = { stage: string; attempts: number; micros: number; tokens: number };
    const rows = await this.#access.read((db) => db.all<Row>(this.#sql.costs, { pipeline }));
    return Object.fromEntries(
      rows.map(({ stage, attempts, micros, tokens }) => [stage, { attempts, spent: { micros, tokens } }]),
    );
  }

  spend(build: Pick<BuildRow, "key" | "createdAt">, until: number): Promise<SpendSlice[]> {
    return this.#access.read((db) => this.#spend.read(db, build, until));
  }

  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>> {
    return this.#hooks.referenced(hashes);
  }

  async artifacts({ build, stage, path }: { build: string; stage?: string; path?: string }): Promise<ArtifactRef[]> {
    const params = { build, stage: stage ?? null, path: path ?? null };
    const sql = stage === undefined || path === undefined ? this.#sql.artifacts : this.#sql.artifactsOfOne;
    const rows = await this.#access.read((db) => db.all<ArtifactRef>(sql, params));
    return rows.map((row) => Object.assign({}, row));
  }
}

function workSql(dialect: Dialect) {
  const { table, in: isIn } = dialect;
  const left = (which: string) => `
    select work.job, job.lane from ${table("work")} as work join ${table("jobs")} as job on job.key = work.job
    where ${isIn("work.build", "bigint", ":builds")} ${which} limit :limit`;
  const artifacts = (of: string) => `
    select cast(:build as text) as build, stage, path, name, hash, size from ${table("artifacts")}
    where build = (select key from ${table("builds")} where id = :build) and ${of}
    order by stage, path, name`;
  return {
    items: `
      select job, build, kind, stage, segment, path, (kind = 'stage' and exists (
          select 1 from ${table("work")} as other where other.build = work.build and other.segment = work.segment
            and other.path = work.path and other.kind = 'remove')) as removing
      from ${table("work")} as work where ${isIn("job", "bigint", ":jobs")}`,
    ended: `
      select key, queue from (${endedWithWork(dialect)}) as ended
      where cast(:pipeline as text) is null or pipeline = :pipeline order by key`,
    all: left(""),
    idle: left("and (job.state <> 'running' or work.kind = 'listing')"),
    queue: `select queue from ${table("builds")} where key = :build`,
    costs: `select stage, attempts, micros, tokens from ${table("stage_costs")} where pipeline = :pipeline`,
    artifacts: artifacts("(cast(:stage as text) is null or stage = :stage) and (cast(:path as text) is null or path = :path)"),
    // Searches by the whole key: an export asks for each result, and would otherwise read all artifacts of the build each time.
    artifactsOfOne: artifacts("stage = :stage and path = :path"),
  };
}

export interface ListingParts {
  batches: WorkBatches;
  cancel: Pick<Cancel, "quietly">;
  enqueue: { run(tx: Tx, jobs: readonly NewJob[], batch: WorkBatch): Answer<unknown> };
  notes: Notes;
  states: LeaseStates;
}

/** Writes what a listing finds in batches, each with the cursor to continue from, so that a crash repeats one batch at most. */
export class Listing {
  readonly #parts: ListingParts;
  readonly #held: string;

  constructor(dialect: Dialect, parts: ListingParts) {
    this.#parts = parts;
    this.#held = `
      select 1 as held from ${dialect.table("jobs")}
      where key = :job and fence = :fence and coalesce(state, '') = 'running'${dialect.locking}`;
  }

  *run(tx: Tx, lease: LeaseRef, batch: ListedBatch): Script<LeaseState> {
    const { batches, states, notes } = this.#parts;
    const { build, targets, retried = [], cursor } = batch;
    const artifacts = targets.flatMap((target) => target.artifacts ?? []);
    const [totals, held] = yield* together(
      batches.totals.load(tx, [build], []),
      this.#isHeld(tx, lease),
      artifacts.length > 0 ? batches.lockArtifacts(tx) : wait(undefined),
    );
    if (!held) return (yield* states.of(tx, [lease]))[0] as LeaseState;
    batches.artifacts.refuseMissing(artifacts);
    const loaded = yield* batches.listing(tx, batch, totals);
    yield* this.#unchanged(tx, loaded, batch);
    yield* this.#changed(tx, loaded, batch);
    yield* batches.results.removeRetried(tx, build, retried);
    if (cursor !== undefined) yield* notes.save(tx, [{ ...lease, checkpoint: cursor }]);
    return "held";
  }

  *#isHeld(tx: Tx, { job, fence }: LeaseRef): Script<boolean> {
    return (yield* tx.get(this.#held, { job, fence })) !== undefined;
  }

  *#unchanged(tx: Tx, loaded: WorkBatch, { build, pipeline, segment, targets }: ListedBatch): Script<void> {
    const unchanged = targets.filter(({ flow }) => flow === null);
    if (unchanged.length === 0) return;
    const spend = loaded.totals.of(build);
    const same = yield* this.#parts.batches.targets.see(tx, { pipeline, segment, build }, unchanged);
    for (const target of same) loaded.unchanged(spend, target);
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
    if (dropped.size > 0) for (const [job, was] of yield* cancel.quietly(tx, [...dropped])) loaded.dropped(job, was);
    // Write first, so that the place of a cancelled item is free for the item that follows it.
    yield* batches.write(tx, loaded);
    if (jobs.length > 0) yield* wait(enqueue.run(tx, jobs, loaded));
    yield* batches.close(tx, loaded);
  }
}
