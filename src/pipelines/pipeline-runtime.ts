import { resolve } from "node:path";
import type { Artifacts } from "../artifacts/artifacts.ts";
import { toJobError } from "../core/jobs/job.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Fingerprint } from "../core/pipelines/context-hash.ts";
import { NOTHING } from "../core/pipelines/cost.ts";
import type { Target } from "../core/pipelines/source.ts";
import type { JobContext } from "../core/pipelines/stage.ts";
import { listingJobName, stageJobName } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { BuildKey, JobKey } from "../core/text/ids.ts";
import { type Attempt, Ending, failForGood } from "../engine/attempt.ts";
import type { Definition } from "../engine/definition.ts";
import type { Engine } from "../engine/engine.ts";
import type { BuildRow } from "../store/builds.ts";
import type { WorkView } from "../store/work.ts";
import type { ToldTarget } from "./isolated/messages.ts";
import { BuildContext, LiveTargets } from "./stage-input.ts";
import type { Model } from "./model.ts";
import { CostRecorder, BudgetReserver } from "./stage-attempt.ts";
import { type Folders, SourceScanner } from "./source-scanner.ts";
import { ClaimedFile } from "./sources/file-target.ts";
import { describeSkipped, Root } from "./sources/root.ts";
import { StageRunner } from "./stage-runner.ts";
import { TargetWriter } from "./target-writer.ts";
import { Batcher, ResultReader, Values } from "./values.ts";

/** Work items that are looked at together. */
const VIEWED = 100;

/** A worker whose code is another looks again after this. */
const OTHER_CODE = 5_000;
/** What is left of an ended build is gone by then, or is looked at again. */
const CLEARED = 1_000;

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
  #scope: BuildContext | null = null;
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

  /** Whether there is a place for them: on a server, only where somebody has said one. */
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

  /** As it is told to a process of its own. */
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
  scope(build: BuildRow): BuildContext {
    if (build.state !== "ACTIVE" && build.state !== "BUDGET_PAUSE") {
      // What is left of an ended build is about to be cleared away.
      throw new Ending({ kind: "later", delay: CLEARED, error: toJobError(new Error(`build ${build.id} is ${build.state}`)) });
    }
    if (build.hash !== this.model.hash) {
      if (!this.isResting()) this.#sayOther(build);
      this.#restsUntil = this.engine.clock.monotonic() + OTHER_CODE;
      throw new Ending({ kind: "released" });
    }
    if (this.#scope?.build.key !== build.key) this.#scope = new BuildContext(this.engine.store, this.model, build);
    return this.#scope;
  }

  /** This process leads a build; the answer is called when it is about to let go of it. */
  lead(build: BuildKey): () => void {
    this.#leaving.delete(build);
    return () => void this.#leaving.add(build);
  }

  /** Whether a listing of this build is to be left as it is, for whoever goes on with it. */
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

  targetWriter(scope: BuildContext, lease: LeaseRef & { id: string }): TargetWriter {
    return new TargetWriter(scope, lease, this.reader, this.targets);
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

/** Of a listing: it may be told by every commit that it goes on. */
const LISTING_LEASE = 30_000;

/** What work items have come to is in their results; their jobs are only of use to those who look at what happens just now. */
const KEEP = { succeeded: { age: 3_600_000 }, cancelled: { age: 3_600_000 } };

/** A pipeline's stages and its listing, as a worker runs them. */
export function definitionsOf(runtime: PipelineRuntime): Definition[] {
  const { model } = runtime;
  const runner = new StageRunner(runtime);
  const stages = [...model.places].map(({ stage, declared }) =>
    definition(runtime, {
      name: stageJobName(model.name, stage.name),
      version: stage.version,
      policy: stage.policy,
      lease: stage.lease,
      concurrency: stage.concurrency,
      declared,
      perform: (attempt, job) => runner.perform(attempt, job),
    }),
  );
  const name = listingJobName(model.name);
  const listing = definition(runtime, {
    name,
    version: 1,
    policy: model.listingPolicy,
    lease: LISTING_LEASE,
    concurrency: undefined,
    declared: {
      declaration: { queue: model.queue, name, limits: [], settings: { events: false, keep: KEEP } },
      empty: true,
      keys: [],
    },
    perform: (attempt, job) => list(runtime, attempt, job),
  });
  return [...stages, listing];
}

type Own = "name" | "version" | "policy" | "lease" | "concurrency" | "declared" | "perform";

function definition(runtime: PipelineRuntime, own: Pick<Definition, Own>): Definition {
  const made: Definition = {
    ...own,
    queue: runtime.model.queue,
    bound: true,
    isResting: () => runtime.isResting(),
    input: undefined,
    output: undefined,
    run: undefined,
    handle: () => made,
  };
  return made;
}

async function list(runtime: PipelineRuntime, attempt: Attempt, job: JobContext<unknown>): Promise<void> {
  attempt.work = { cost: NOTHING, result: null, target: null };
  await runtime.ready();
  const view = await runtime.view(attempt.job);
  if (view === null) return;
  const { round, which } = job.input as { round: number; which?: "failed" };
  const cursor = (await job.checkpoint.load()) as string | null | undefined;
  const scope = runtime.scope(view.build);
  try {
    const register = runtime.targetWriter(scope, attempt.claimed);
    const scanner = new SourceScanner({
      scope,
      register,
      targets: runtime.targets,
      values: runtime.values,
      clock: runtime.engine.clock,
      artifacts: runtime.artifacts,
      folders: runtime.folders,
      signal: attempt.signal,
      isLeaving: () => runtime.isLeaving(view.build.key),
      onSkipped: (file) => runtime.engine.log.warn(describeSkipped(file), { build: view.build.id, hint: SKIP_HINT }),
    });
    if (round > 0) await scanner.groups(round, view.build.failed);
    else if (which === undefined) return await scanner.source(cursor);
    await register.retryFailed(round, () => scanner.refuseLeaving());
  } catch (error) {
    // What the definition itself is refused for is refused again.
    if (error instanceof HoldfastError && LASTING.has(error.code)) throw new Ending(failForGood(toJobError(error)));
    throw error;
  }
}

const SKIP_HINT = "Leave it out with `ignore` of files(), or move the database to another folder.";

const LASTING = new Set(["NOT_JSON", "SOURCE_INVALID", "SOURCE_MISSING", "TARGET_ID_INVALID", "TARGET_TWICE", "TARGET_UNKNOWN"]);
