import type { CostHistory } from "../../../core/pipelines/budget.ts";
import type { Amount } from "../../../core/pipelines/cost.ts";
import type { BuildKey, JobKey, ResultKey } from "../../../core/text/ids.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { BuildRow } from "../../builds.ts";
import { type Flag, isYes } from "../../job-row.ts";
import {
  type ArtifactRef,
  type Beginning,
  type Clearing,
  type FoundResult,
  type ListedBatch,
  type MemberPage,
  type NamedArtifact,
  parseArtifactCursor,
  type Retry,
  type StoredResult,
  type TargetPage,
  type TargetRow,
  toArtifactRef,
  type WorkStore,
  type WorkView,
} from "../../work.ts";
import { toHistory } from "../../work/books.ts";
import { askedTargets, placeOf, type ViewedItem, viewOf } from "../../work/views.ts";
import type { Access, Reads, Tx } from "../access.ts";
import { type BuildGuard, Runs } from "../builds/runs.ts";
import type { Dialect } from "../dialect.ts";
import { type Answer, type Script, together, wait } from "../script.ts";
import { type ResultGuard, Results } from "./results.ts";
import { type TargetGuard, Targets } from "./targets.ts";
import { type UnfinishedItem, UnfinishedWork } from "./unfinished.ts";

/** Each database writes work items, results and costs in its own way. */
export interface WorkWrites extends Pick<WorkStore, "listed" | "begin" | "saveCosts" | "watchArtifacts" | "referenced"> {
  /** PostgreSQL locks the limits of queues before the rows of their jobs. */
  lockQueues(tx: Tx, queues: readonly string[]): Answer<unknown>;
  /** Cancels work items, which then count as nothing; answers how many. */
  cancelItems(tx: Tx, items: readonly UnfinishedItem[]): Answer<number>;
}

interface Parts {
  writes: WorkWrites;
  guards: { builds: BuildGuard; targets: TargetGuard; results: ResultGuard };
}

/** What builds work on, and what comes of it. */
export class Work implements WorkStore {
  readonly #access: Access;
  readonly #writes: WorkWrites;
  readonly #runs: Runs;
  readonly #targets: Targets;
  readonly #results: Results;
  readonly #unfinished: UnfinishedWork;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, { writes, guards }: Parts, access: Access) {
    this.#access = access;
    this.#writes = writes;
    this.#runs = new Runs(dialect, guards.builds);
    this.#targets = new Targets(dialect, guards.targets);
    this.#results = new Results(dialect, guards.results);
    this.#unfinished = new UnfinishedWork(dialect);
    this.#sql = statements(dialect);
  }

  targets(pipeline: string, segment: number, paths: readonly string[]): Promise<TargetRow[]> {
    return this.#access.read((db) => this.#targets.byPath(db, pipeline, segment, paths));
  }

  targetPage(page: TargetPage): Promise<TargetRow[]> {
    return this.#access.read((db) => this.#targets.page(db, page));
  }

  countTargets(pipeline: string, segment: number): Promise<number> {
    return this.#access.read((db) => this.#targets.count(db, pipeline, segment));
  }

  members(page: MemberPage): Promise<TargetRow[]> {
    return this.#access.read((db) => this.#targets.members(db, page));
  }

  listed(lease: LeaseRef, batch: ListedBatch): Promise<Fate> {
    return this.#writes.listed(lease, batch);
  }

  lookUp(pipeline: string, keys: readonly { stage: string; hash: string; build?: BuildKey }[]): Promise<(FoundResult | null)[]> {
    return this.#access.read((db) => this.#results.lookUp(db, pipeline, keys));
  }

  results(keys: readonly ResultKey[]): Promise<StoredResult[]> {
    return this.#access.read((db) => this.#results.byKey(db, keys));
  }

  resultOf(build: string, stage: string, path: string): Promise<StoredResult | null> {
    return this.#access.read((db) => this.#results.of(db, build, stage, path));
  }

  resultBefore(build: string, stage: string, path: string): Promise<StoredResult | null> {
    return this.#access.read((db) => this.#results.before(db, build, stage, path));
  }

  resultsOf(build: string, stage: string, page: { after?: string; limit: number }): Promise<StoredResult[]> {
    return this.#access.read((db) => this.#results.ofStage(db, build, stage, page));
  }

  failures(build: string, limit: number): Promise<StoredResult[]> {
    return this.#access.read((db) => this.#results.failures(db, build, limit));
  }

  retries(build: BuildKey, page: { after: ResultKey | 0; limit: number }): Promise<Retry[]> {
    return this.#access.read((db) => this.#results.retries(db, build, page));
  }

  /** Called again and again, mostly for nothing: then nothing is written. */
  async clearWork(clearing: Clearing): Promise<number> {
    if (!(await this.#access.read((db) => this.#unfinished.isAny(db, clearing)))) return 0;
    return this.#access.write("cancel", (tx) => this.#clear(tx, clearing));
  }

  *#clear(tx: Tx, clearing: Clearing): Script<number> {
    const builds = yield* this.#unfinished.builds(tx, clearing);
    if (builds.length === 0) return 0;
    const queues = builds.map(({ queue }) => queue);
    yield* wait(this.#writes.lockQueues(tx, queues));
    return yield* wait(this.#writes.cancelItems(tx, yield* this.#unfinished.items(tx, builds, clearing)));
  }

  works(jobs: readonly JobKey[]): Promise<(WorkView | null)[]> {
    return this.#access.read((db) => this.#works(db, jobs));
  }

  *#works(db: Reads, jobs: readonly JobKey[]): Script<(WorkView | null)[]> {
    type Row = ViewedItem & { job: JobKey; removing: Flag };
    const items = new Map((yield* db.all<Row>(this.#sql.items, { jobs })).map((item) => [item.job, item]));
    const keys = [...new Set(Array.from(items.values(), ({ build }) => build))];
    const rows = yield* together(...keys.map((key) => this.#runs.get(db, key)));
    const builds = new Map(keys.map((key, i) => [key, rows[i] as BuildRow]));
    const targets = new Map<string, TargetRow>();
    for (const { pipeline, segment, paths } of askedTargets([...items.values()], builds))
      for (const row of yield* this.#targets.byPath(db, pipeline, segment, paths))
        targets.set(placeOf(pipeline, segment, row.path), row);
    return jobs.map((job) => viewOf(items.get(job), builds, targets, isYes(items.get(job)?.removing ?? false)));
  }

  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    return this.#writes.begin(starts);
  }

  saveCosts(reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]> {
    return this.#writes.saveCosts(reports);
  }

  async costs(pipeline: string): Promise<Record<string, CostHistory>> {
    type Row = { stage: string; attempts: number; micros: number; tokens: number };
    const rows = await this.#access.read((db) => db.all<Row>(this.#sql.costs, { pipeline }));
    return Object.fromEntries(rows.map(({ stage, attempts, micros, tokens }) => [stage, toHistory([attempts, micros, tokens])]));
  }

  watchArtifacts(missing: (hashes: Iterable<string>) => readonly string[]): void {
    this.#writes.watchArtifacts(missing);
  }

  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>> {
    return this.#writes.referenced(hashes);
  }

  async artifacts(build: string, { after, limit }: { after?: string; limit: number }): Promise<ArtifactRef[]> {
    const [stage, path, name] = parseArtifactCursor(after);
    const params = { build, stage, path, name, limit };
    return (await this.#access.read((db) => db.all<ArtifactRef>(this.#sql.artifacts, params))).map(toArtifactRef);
  }

  async artifactsOf({ build, stage, path }: Pick<StoredResult, "build" | "stage" | "path">): Promise<NamedArtifact[]> {
    const rows = await this.#access.read((db) => db.all<NamedArtifact>(this.#sql.artifactsOf, { build, stage, path }));
    return rows.map((row) => Object.assign({}, row));
  }
}

function statements({ table, in: isIn }: Dialect) {
  const artifacts = table("artifacts");
  const build = `(select key from ${table("builds")} where id = :build)`;
  return {
    // `removing` by the index work_target.
    items: `
      select job, build, kind, stage, segment, path, (kind = 'stage' and exists (
          select 1 from ${table("work")} as other where other.build = work.build and other.segment = work.segment
            and other.path = work.path and other.kind = 'remove')) as removing
      from ${table("work")} as work where ${isIn("job", "bigint", ":jobs")}`,
    costs: `select stage, attempts, micros, tokens from ${table("stage_costs")} where pipeline = :pipeline`,
    artifacts: `
      select cast(:build as text) as build, stage, path, name, hash, size from ${artifacts}
      where build = ${build} and (stage, path, name) > (:stage, :path, :name) order by stage, path, name limit :limit`,
    // An output's own artifact has no name.
    artifactsOf: `
      select name, hash, size from ${artifacts}
      where build = ${build} and stage = :stage and path = :path and name <> '' order by name`,
  };
}
