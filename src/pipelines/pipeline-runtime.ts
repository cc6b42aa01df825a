import { resolve } from "node:path";
import type { Artifacts } from "../artifacts/artifacts.ts";
import { toJobError } from "../core/jobs/job.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Fingerprint } from "../core/pipelines/context-hash.ts";
import type { Target } from "../core/pipelines/source.ts";
import type { CompletedStages } from "../core/pipelines/work.ts";
import type { BuildKey, JobKey } from "../core/text/ids.ts";
import { type Attempt, SettleAs } from "../engine/attempt.ts";
import type { Engine } from "../engine/engine.ts";
import type { BuildRow } from "../store/builds.ts";
import type { TargetRow, WorkView } from "../store/work.ts";
import { BudgetReserver, CostRecorder } from "./budget-reserver.ts";
import type { ToldTarget } from "./isolated/messages.ts";
import type { Model, StagePosition } from "./model.ts";
import type { Folders } from "./source-scanner.ts";
import { ClaimedFile } from "./sources/file-target.ts";
import { Root } from "./sources/root.ts";
import { BuildContext, type Context, LiveTargets, type Parent } from "./stage-input.ts";
import { TargetWriter } from "./target-writer.ts";
import { Batcher, ResultReader, Values } from "./values.ts";

/** Work items that are looked at together. */
const VIEWED = 100;

/** A worker whose code is another looks again after this. */
const OTHER_CODE = 5_000;
/** What is left of an ended build is gone by then, or is looked at again. */
const CLEARED = 1_000;

/** All that is known of a work item when its handler is about to run. */
export interface Task {
  attempt: Attempt;
  buildContext: BuildContext;
  view: WorkView;
  place: StagePosition;
  row: TargetRow;
  live: Parent;
  /** What the target has gone through before this stage. */
  completed: CompletedStages;
  context: Context;
  /** Writes what the attempt finds of other targets. */
  writer: TargetWriter;
}

/** What it takes to work on the builds of one pipeline in this process. */
export class PipelineRuntime {
  readonly engine: Engine;
  readonly model: Model;
  readonly artifacts: () => Promise<Artifacts>;
  readonly values: Values;
  readonly reader: ResultReader;
  readonly costs: CostRecorder;
  readonly budget: BudgetReserver;
  readonly targets: LiveTargets;
  readonly folders: Folders;
  readonly #files = new WeakMap<Target, ClaimedFile>();
  readonly #told = new WeakMap<Target, NonNullable<ToldTarget["file"]>>();
  readonly #views: Batcher<JobKey, WorkView | null>;
  #buildContext: BuildContext | null = null;
  /** Builds that this process has led. */
  readonly #leaving = new Set<BuildKey>();
  /** On the monotonic clock. */
  #restsUntil = Number.NEGATIVE_INFINITY;

  constructor(engine: Engine, model: Model) {
    this.engine = engine;
    this.model = model;
    this.artifacts = () => engine.artifacts();
    this.values = new Values(this.artifacts);
    this.reader = new ResultReader(engine.store.work, this.values);
    this.costs = new CostRecorder(engine);
    this.budget = new BudgetReserver(engine, model.name);
    this.#views = new Batcher(VIEWED, (jobs) => engine.store.work.works(jobs));
    this.folders = { cwd: process.cwd(), skip: ownFiles(engine) };
    this.targets = new LiveTargets(model, engine.store.work, (id, fingerprint) => this.#claim(id, fingerprint));
  }

  /** Whether artifacts can be stored: on a server, only if their folder was named. */
  get hasArtifacts(): boolean {
    return this.engine.location.kind === "sqlite" || this.engine.artifactFolder.path !== null;
  }

  /** Before a build, and before the first attempt: copies of files, and snapshots, are in the folder of artifacts. */
  async ready(): Promise<void> {
    if (this.model.definition.source.kind === "files") await this.artifacts();
  }

  /** What a work item is about; null: it is none any more. */
  view(job: JobKey): Promise<WorkView | null> {
    return this.#views.get(job);
  }

  /** The file that a target is. */
  fileOf(target: Target): ClaimedFile | null {
    return this.#files.get(target) ?? null;
  }

  /** Whether what it leads to is in the source's root. */
  isInside(path: string): boolean {
    return new Root(this.pathOf("."), this.folders.skip).holds(path);
  }

  /** The target as it is sent to an isolated child process. */
  tell(target: Target): ToldTarget {
    const { id, hash, parent } = target;
    const file = this.#told.get(target);
    return {
      id,
      hash,
      ...(parent === undefined ? {} : { parent: this.tell(parent) }),
      ...(file === undefined ? {} : { file }),
    };
  }

  pathOf(id: string): string {
    const { source } = this.model.definition;
    return resolve(this.folders.cwd, (source.kind === "files" ? source.root : null) ?? ".", id);
  }

  #claim(id: string, fingerprint: Fingerprint): Target {
    const { source } = this.model.definition;
    const snapshot = source.kind === "files" && source.snapshot;
    const { artifactFolder } = this.engine;
    const file = new ClaimedFile({
      id,
      path: this.pathOf(id),
      fingerprint,
      snapshot,
      get artifacts() {
        return artifactFolder.opened;
      },
    });
    this.#files.set(file.target, file);
    this.#told.set(file.target, { path: this.pathOf(id), fingerprint, snapshot });
    return file.target;
  }

  /** The build, if this process knows its pipeline as it was when the build was started; else its work is for others. */
  buildContext(build: BuildRow): BuildContext {
    if (build.state !== "ACTIVE" && build.state !== "BUDGET_PAUSE") {
      // What is left of an ended build is about to be cleared away.
      throw new SettleAs({ kind: "later", delay: CLEARED, error: toJobError(new Error(`build ${build.id} is ${build.state}`)) });
    }
    if (build.hash !== this.model.hash) {
      if (!this.isResting()) this.#sayOther(build);
      this.#restsUntil = this.engine.clock.monotonic() + OTHER_CODE;
      throw new SettleAs({ kind: "released" });
    }
    if (this.#buildContext?.build.key !== build.key) this.#buildContext = new BuildContext(this.engine.store, this.model, build);
    return this.#buildContext;
  }

  /** This process leads a build; the answer is called when it is about to let go of it. */
  lead(build: BuildKey): () => void {
    this.#leaving.delete(build);
    return () => void this.#leaving.add(build);
  }

  /** Whether a listing of this build stops here, for the next orchestrator to continue. */
  isLeaving(build: BuildKey): boolean {
    return this.#leaving.has(build);
  }

  /** While another definition is built, this process leaves the pipeline alone, and looks again now and then. */
  isResting(): boolean {
    return this.engine.clock.monotonic() < this.#restsUntil;
  }

  #sayOther({ id, pipeline }: BuildRow): void {
    this.engine.log.warn("a build was started with another definition of its pipeline than this process has; others work on it", {
      build: id,
      pipeline,
      hint: "Run the same code here as where the build was started, or let it end there first.",
    });
  }

  targetWriter(buildContext: BuildContext, lease: LeaseRef & { id: string }): TargetWriter {
    return new TargetWriter(buildContext, lease, this.reader, this.targets);
  }
}

/** A database is no document of itself. */
function ownFiles({ location, artifactFolder }: Engine): string[] {
  const { path } = artifactFolder;
  const own =
    location.kind === "sqlite" && location.path !== ":memory:"
      ? ["", "-wal", "-shm", "-journal", "-alive", "-findings", "-witness"]
      : [];
  const database = location.kind === "sqlite" ? location.path : "";
  return [...own.map((suffix) => database + suffix), ...(path === null ? [] : [path])];
}
