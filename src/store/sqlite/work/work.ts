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
import type { Access } from "../access.ts";
import { Runs } from "../../sql/builds/runs.ts";
import { runSync } from "../../sql/script.ts";
import { BUILD_GUARD } from "../build-guard.ts";
import { DIALECT } from "../dialect.ts";
import { readsAt, type Statements } from "../scripts.ts";
import type { Cancel } from "../cancel.ts";
import type { Connection } from "../driver.ts";
import type { Intake } from "../intake.ts";
import type { Notes } from "../notes.ts";
import type { Settle } from "../settle.ts";
import type { Item } from "../../work/rows.ts";
import { askedTargets, placeOf, viewOf } from "../../work/views.ts";
import { Clear } from "./clear.ts";
import { Leftovers } from "./leftovers.ts";
import { Ledger } from "./ledger.ts";
import { Listing } from "./listing.ts";

/** What builds work on, on one SQLite file. */
export class Work implements WorkStore {
  readonly #access: Access;
  readonly #intake: Intake;
  readonly #runs: Runs;
  readonly #statements: Statements;
  readonly #listing: Listing;
  readonly #ledger: Ledger;
  readonly #clear: Clear;

  constructor(
    db: Connection,
    parts: { intake: Intake; settle: Settle; cancel: Cancel; notes: Notes; statements: Statements },
    access: Access,
  ) {
    const { intake, settle, cancel, notes } = parts;
    const { enqueue, endings, settings } = intake;
    this.#access = access;
    this.#intake = intake;
    this.#runs = new Runs(DIALECT, BUILD_GUARD);
    this.#statements = parts.statements;
    this.#listing = new Listing({ ...intake.work, settle, enqueue, endings, cancel, notes });
    this.#ledger = new Ledger(db, { ...intake.work, settings, settle });
    this.#clear = new Clear({ leftovers: new Leftovers(db), cancel, endings });
  }

  targets(pipeline: string, segment: number, paths: readonly string[]): Promise<TargetRow[]> {
    return this.#access.read(() => this.#intake.work.targets.byPath(pipeline, segment, paths));
  }

  targetPage(page: TargetPage): Promise<TargetRow[]> {
    return this.#access.read(() => this.#intake.work.targets.page(page));
  }

  countTargets(pipeline: string, segment: number): Promise<number> {
    return this.#access.read(() => this.#intake.work.targets.count(pipeline, segment));
  }

  members(page: MemberPage): Promise<TargetRow[]> {
    return this.#access.read(() => this.#intake.work.targets.members(page));
  }

  listed(lease: LeaseRef, batch: ListedBatch): Promise<Fate> {
    return this.#access.write("listed", (tx) => this.#listing.run(tx, lease, batch));
  }

  lookUp(pipeline: string, keys: readonly { stage: string; hash: string; build?: BuildKey }[]): Promise<(FoundResult | null)[]> {
    return this.#access.read(() => this.#intake.work.results.lookUp(pipeline, keys));
  }

  results(keys: readonly ResultKey[]): Promise<StoredResult[]> {
    return this.#access.read(() => this.#intake.work.results.byKey(keys));
  }

  resultOf(build: string, stage: string, path: string): Promise<StoredResult | null> {
    return this.#access.read(() => this.#intake.work.results.of(build, stage, path));
  }

  resultBefore(build: string, stage: string, path: string): Promise<StoredResult | null> {
    return this.#access.read(() => this.#intake.work.results.before(build, stage, path));
  }

  resultsOf(build: string, stage: string, page: { after?: string; limit: number }): Promise<StoredResult[]> {
    return this.#access.read(() => this.#intake.work.results.ofStage(build, stage, page));
  }

  failures(build: string, limit: number): Promise<StoredResult[]> {
    return this.#access.read(() => this.#intake.work.results.failures(build, limit));
  }

  retries(build: BuildKey, page: { after: ResultKey | 0; limit: number }): Promise<Retry[]> {
    return this.#access.read(() => this.#intake.work.results.retries(build, page));
  }

  /** Asked again and again, mostly for nothing: then it takes no write lock. */
  async clearWork(clearing: Clearing): Promise<number> {
    if (!(await this.#access.read(() => this.#clear.isNeeded(clearing)))) return 0;
    return this.#access.write("cancel", (tx) => this.#clear.run(tx, clearing));
  }

  works(jobs: readonly JobKey[]): Promise<(WorkView | null)[]> {
    return this.#access.read(() => {
      const items = jobs.map((job) => this.#intake.work.table.get(job));
      const known = items.filter((item) => item !== undefined);
      const builds = new Map(
        [...new Set(known.map(({ build }) => build))].map((key) => [
          key,
          runSync(this.#runs.get(readsAt(this.#statements, this.#access.now()), key)),
        ]),
      );
      const targets = new Map<string, TargetRow>();
      for (const { pipeline, segment, paths } of askedTargets(known, builds))
        for (const row of this.#intake.work.targets.byPath(pipeline, segment, paths))
          targets.set(placeOf(pipeline, segment, row.path), row);
      const isRemoving = (item: Item | undefined) => item?.kind === "stage" && this.#intake.work.table.isRemoving(item);
      return items.map((item) => viewOf(item, builds, targets, isRemoving(item)));
    });
  }

  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    return this.#access.write("begin", (tx) => this.#ledger.begin(tx, starts));
  }

  saveCosts(reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]> {
    return this.#access.write("costs", (tx) => this.#ledger.saveCosts(tx, reports));
  }

  costs(pipeline: string): Promise<Record<string, CostHistory>> {
    return this.#access.read(() => this.#intake.work.accounts.costs(pipeline));
  }

  watchArtifacts(missing: (hashes: Iterable<string>) => readonly string[]): void {
    this.#intake.work.watch.watch(missing);
  }

  /** With the write lock: what is under way has been committed, or undone, by then. */
  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>> {
    return this.#access.write("prune", () => this.#intake.work.artifacts.referenced(hashes));
  }

  artifacts(build: string, page: { after?: string; limit: number }): Promise<ArtifactRef[]> {
    return this.#access.read(() => this.#intake.work.artifacts.page(build, page));
  }

  artifactsOf({ build, stage, path }: Pick<StoredResult, "build" | "stage" | "path">): Promise<NamedArtifact[]> {
    return this.#access.read(() => this.#intake.work.artifacts.of(build, stage, path));
  }
}
