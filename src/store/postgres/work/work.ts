import type { CostHistory } from "../../../core/budget.ts";
import type { Amount } from "../../../core/cost.ts";
import type { BuildKey, JobKey, ResultKey } from "../../../core/ids.ts";
import type { Fate, LeaseRef } from "../../../core/lease.ts";
import type {
  ArtifactRef,
  Beginning,
  Clearing,
  FoundResult,
  ListedBatch,
  MemberPage,
  NamedArtifact,
  StoredResult,
  Retry,
  TargetPage,
  TargetRow,
  WorkStore,
  WorkView,
} from "../../work.ts";
import { askedTargets, placeOf, viewOf } from "../../work/views.ts";
import type { Access } from "../access.ts";
import { Runs } from "../../sql/builds/runs.ts";
import { runAsync } from "../../sql/script.ts";
import { BUILD_GUARD } from "../guards.ts";
import { dialectOf } from "../dialect.ts";
import type { Statements } from "../scripts.ts";
import type { Cancel } from "../cancel.ts";
import type { Intake } from "../intake.ts";
import type { Limits } from "../limits.ts";
import type { Notes } from "../notes.ts";
import type { Reader } from "../reader.ts";
import type { Settle } from "../settle.ts";
import { Clear } from "./clear.ts";
import { Leftovers } from "./leftovers.ts";
import { Ledger } from "./ledger.ts";
import { Listing } from "./listing.ts";
import { Results } from "./results.ts";
import type { Sheets } from "./sheets.ts";
import { Targets } from "./targets.ts";

/** What builds work on, on a PostgreSQL server. */
export class Work implements WorkStore {
  readonly #access: Access;
  readonly #reader: Reader;
  readonly #limits: Limits;
  readonly #sheets: Sheets;
  readonly #runs: Runs;
  readonly #statements: Statements;
  readonly #targets: Targets;
  readonly #results: Results;
  readonly #listing: Listing;
  readonly #ledger: Ledger;
  readonly #clear: Clear;

  constructor(
    s: string,
    parts: { intake: Intake; settle: Settle; cancel: Cancel; notes: Notes; reader: Reader; statements: Statements },
    access: Access,
  ) {
    const { intake, settle, cancel, notes } = parts;
    const { settings, limits, enqueue, sheets } = intake;
    this.#access = access;
    this.#reader = parts.reader;
    this.#limits = limits;
    this.#sheets = sheets;
    this.#runs = new Runs(dialectOf(s), BUILD_GUARD);
    this.#statements = parts.statements;
    this.#targets = new Targets(s);
    this.#results = new Results(s);
    this.#listing = new Listing(s, { settings, limits, settle, enqueue, cancel, notes, sheets });
    this.#ledger = new Ledger({ settings, limits, settle, sheets });
    this.#clear = new Clear({ leftovers: new Leftovers(s), settings, limits, cancel, sheets });
  }

  targets(pipeline: string, segment: number, paths: readonly string[]): Promise<TargetRow[]> {
    return this.#targets.byPath(this.#access.read, pipeline, segment, paths);
  }

  targetPage(page: TargetPage): Promise<TargetRow[]> {
    return this.#targets.page(this.#access.read, page);
  }

  countTargets(pipeline: string, segment: number): Promise<number> {
    return this.#targets.count(this.#access.read, pipeline, segment);
  }

  members(page: MemberPage): Promise<TargetRow[]> {
    return this.#targets.members(this.#access.read, page);
  }

  listed(lease: LeaseRef, batch: ListedBatch): Promise<Fate> {
    return this.#access.write("listed", (tx) => this.#listing.run(tx, lease, batch), {
      wants: () => this.#limits.claimedIn([lease.job]),
    });
  }

  lookUp(pipeline: string, keys: readonly { stage: string; hash: string; build?: BuildKey }[]): Promise<(FoundResult | null)[]> {
    return this.#results.lookUp(this.#access.read, pipeline, keys);
  }

  results(keys: readonly ResultKey[]): Promise<StoredResult[]> {
    return this.#results.byKey(this.#access.read, keys);
  }

  resultOf(build: string, stage: string, path: string): Promise<StoredResult | null> {
    return this.#results.of(this.#access.read, build, stage, path);
  }

  resultBefore(build: string, stage: string, path: string): Promise<StoredResult | null> {
    return this.#results.before(this.#access.read, build, stage, path);
  }

  resultsOf(build: string, stage: string, page: { after?: string; limit: number }): Promise<StoredResult[]> {
    return this.#results.ofStage(this.#access.read, build, stage, page);
  }

  failures(build: string, limit: number): Promise<StoredResult[]> {
    return this.#results.failures(this.#access.read, build, limit);
  }

  retries(build: BuildKey, page: { after: ResultKey | 0; limit: number }): Promise<Retry[]> {
    return this.#results.retries(this.#access.read, build, page);
  }

  /** Asked again and again, mostly for nothing: then nothing is written. */
  async clearWork(clearing: Clearing): Promise<number> {
    if (!(await this.#clear.isNeeded(this.#access.read, clearing))) return 0;
    return this.#access.write("cancel", (tx) => this.#clear.run(tx, clearing));
  }

  async works(jobs: readonly JobKey[]): Promise<(WorkView | null)[]> {
    const { read } = this.#access;
    const { items } = this.#sheets;
    const [found, removing] = await Promise.all([items.byJob(read, jobs), items.removing(read, jobs)]);
    const known = new Map(found.map((item) => [item.job, item]));
    const keys = [...new Set([...known.values()].map(({ build }) => build))];
    const reads = this.#statements.reads({ rows: read, at: this.#access.at() });
    const builds = new Map(
      await Promise.all(keys.map(async (key) => [key, await runAsync(this.#runs.get(reads, key))] as const)),
    );
    const targets = new Map<string, TargetRow>();
    for (const { pipeline, segment, paths } of askedTargets([...known.values()], builds))
      for (const row of await this.#targets.byPath(read, pipeline, segment, paths))
        targets.set(placeOf(pipeline, segment, row.path), row);
    return jobs.map((job) => viewOf(known.get(job), builds, targets, removing.has(job)));
  }

  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    return this.#access.write("begin", (tx) => this.#ledger.begin(tx, starts), {
      wants: () => this.#limits.claimedIn(starts.map(({ job }) => job)),
    });
  }

  saveCosts(reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]> {
    return this.#access.write("costs", (tx) => this.#ledger.saveCosts(tx, reports));
  }

  costs(pipeline: string): Promise<Record<string, CostHistory>> {
    return this.#sheets.accounts.costs(this.#access.read, pipeline);
  }

  watchArtifacts(missing: (hashes: Iterable<string>) => readonly string[]): void {
    this.#sheets.watch.watch(missing);
  }

  /** In its turn behind what was called before, and then behind what others are at. */
  async referenced(hashes: readonly string[]): Promise<ReadonlySet<string>> {
    await this.#access.write("prune", async () => {});
    return this.#sheets.artifacts.referenced(this.#reader, hashes);
  }

  artifacts(build: string, page: { after?: string; limit: number }): Promise<ArtifactRef[]> {
    return this.#sheets.artifacts.page(this.#access.read, build, page);
  }

  artifactsOf({ build, stage, path }: Pick<StoredResult, "build" | "stage" | "path">): Promise<NamedArtifact[]> {
    return this.#sheets.artifacts.of(this.#access.read, build, stage, path);
  }
}
