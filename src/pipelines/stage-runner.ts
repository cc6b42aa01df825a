import { toJobError } from "../core/jobs/job.ts";
import type { StoredValue } from "../core/pipelines/context-hash.ts";
import { NO_COST } from "../core/pipelines/cost.ts";
import type { JobContext } from "../core/pipelines/stage.ts";
import { GONE_MARK, listingJobName, stageJobName } from "../core/pipelines/work.ts";
import { HoldfastError, isTransient } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import { type Attempt, SettleAs, permanentFailure } from "../engine/attempt.ts";
import type { Definition } from "../engine/definition.ts";
import type { NewResult, TargetRow, WorkView } from "../store/work.ts";
import { callIsolated } from "./isolated/parent.ts";
import type { StagePosition } from "./model.ts";
import type { PipelineRuntime, Task } from "./pipeline-runtime.ts";
import { SourceScanner } from "./source-scanner.ts";
import { describeSkipped } from "./sources/root.ts";
import {
  carryOn,
  Children,
  churnOf,
  Expansion,
  type HandedContext,
  RestartOnChange,
  StageAttempt,
  stageContext,
} from "./stage-attempt.ts";
import { type BuildContext, contextOf, Inputs, loadInput, memberList, type Parent } from "./stage-input.ts";
import { listedTarget, type PlannedWay } from "./stage-planner.ts";
import { hasChildren, segmentBelow } from "./target-writer.ts";
import { outputOf, type Reader } from "./values.ts";

/** Retry interval while an earlier effect of the stage is still being removed. */
const REMOVAL_RETRY_MS = 100;

/** Runs one stage for one target and determines what follows. */
class StageRunner {
  readonly #runtime: PipelineRuntime;

  constructor(runtime: PipelineRuntime) {
    this.#runtime = runtime;
  }

  async perform(attempt: Attempt, job: JobContext<unknown>): Promise<void> {
    attempt.work = { cost: NO_COST, result: null, target: null };
    await this.#runtime.ready();
    const view = await this.#runtime.view(attempt.claimed);
    if (view?.target == null) throw new SettleAs(permanentFailure(toJobError(noTarget(attempt.claimed.id))));
    const buildContext = this.#runtime.buildContext(view.build);
    const removes = unwanted(attempt);
    if (removes !== undefined)
      return new Removal(this.#runtime, buildContext, this.#runtime.model.place(view.stage)).run(
        attempt,
        job,
        view.target,
        removes,
      );
    this.#refuseRemoving(view);
    const task = await this.#task(attempt, buildContext, view, view.target);
    if (task.place.stage.kind === "expand") {
      const children = new Children(this.#runtime, task);
      const found = await children.find();
      if (found !== null) return children.addTargets(found);
    }
    if (await this.#isMade(task)) return this.#reuse(task);
    if (await this.#hasChangedSince(task)) return this.#supersede(task);
    await this.#runtime.budget.begin(attempt, view.build, task.place, { target: task.live.target, input: task.context.input });
    const stageAttempt = new StageAttempt(this.#runtime, task);
    try {
      await this.#run(task, stageAttempt, job);
    } catch (error) {
      if (!stageAttempt.isBytesChanged(error)) throw error;
      await stageAttempt.supersede();
    } finally {
      stageAttempt.close();
    }
  }

  /** The pending removal would undo what the stage does outside. */
  #refuseRemoving({ stage, removing, target }: WorkView): void {
    if (!removing || this.#runtime.model.place(stage).stage.remove === null) return;
    const error = new Error(`what stage "${stage}" once made of ${JSON.stringify(target?.id)} is still being removed`);
    throw new SettleAs({ kind: "later", delay: REMOVAL_RETRY_MS, error: toJobError(error) });
  }

  async #task(attempt: Attempt, buildContext: BuildContext, view: WorkView, row: TargetRow): Promise<Task> {
    const place = this.#runtime.model.place(view.stage);
    const live = await this.#runtime.targets.of(row);
    const completed = row.completed.filter(({ stage }) => !this.#runtime.model.isFrom(stage, place));
    const input = await loadInput(live, completed, this.#runtime.reader);
    try {
      const context = contextOf(place, live, completed, input);
      if (attempt.work !== undefined) attempt.work.context = { hash: context.hash, parts: JSON.stringify(context.parts) };
      const writer = this.#runtime.targetWriter(buildContext, attempt.claimed);
      return { attempt, buildContext, view, place, row, live, completed, context, writer };
    } catch (error) {
      throw new SettleAs(permanentFailure(toJobError(error)));
    }
  }

  /** Only targets with the same bytes can get a result from another attempt. */
  async #isMade({ writer, place, context, row }: Task): Promise<boolean> {
    if (place.stage.reuse !== "bytes" || place.stage.kind === "expand") return false;
    return (await writer.planner.lookUp(place, context, row.completed)) !== null;
  }

  async #reuse({ attempt, writer, place, row, live, completed }: Task): Promise<void> {
    const planned = await writer.planner.plan(live, place.segment, place.index, completed, row.completed);
    const target = listedTarget(live, row.rev, carryOn(attempt, planned));
    attempt.work = { cost: NO_COST, result: null, target };
  }

  async #hasChangedSince({ attempt, live }: Task): Promise<boolean> {
    const file = churnOf(attempt).waited ? this.#runtime.fileOf(live.target) : null;
    return file !== null && !(await file.recheck());
  }

  async #supersede(task: Task): Promise<void> {
    const target = await new RestartOnChange(this.#runtime, task).afterWait();
    task.attempt.work = { cost: NO_COST, result: null, target };
  }

  async #run(task: Task, stageAttempt: StageAttempt, job: JobContext<unknown>): Promise<void> {
    const { attempt, place, row, live, context } = task;
    const parts = await this.#parts(task);
    const handed = await stageContext(task, stageAttempt, job, this.#runtime);
    const isExpand = place.stage.kind === "expand";
    const [returned, output] = isExpand
      ? await this.#expand(task, handed, job, stageAttempt)
      : await this.#make(task, handed, job, stageAttempt);
    if (!(await stageAttempt.isUnchanged())) return stageAttempt.supersede();
    const planned = isExpand ? new Children(this.#runtime, task).next : await this.#walkOn(task, returned, output);
    const result: NewResult = {
      hash: context.hash,
      parts,
      output,
      artifacts: stageAttempt.artifacts,
      shared: place.stage.reuse === "bytes",
    };
    const target = listedTarget(live, row.rev, carryOn(attempt, planned));
    attempt.work = { cost: stageAttempt.cost.total, result, target };
  }

  /** The parts of the context that are stored; of a gather also its members, even if the gather fails. */
  async #parts(task: Task): Promise<string> {
    const { attempt, place, context } = task;
    const members = place.stage.kind === "gather" ? await memberList(this.#runtime, task) : null;
    const parts = JSON.stringify(members === null ? context.parts : { ...context.parts, members });
    if (attempt.work !== undefined) attempt.work.context = { hash: context.hash, parts };
    return parts;
  }

  async #make(
    task: Task,
    handed: HandedContext,
    job: JobContext<unknown>,
    stageAttempt: StageAttempt,
  ): Promise<[unknown, StoredValue]> {
    const returned = await this.#call(task, handed, job, stageAttempt, null);
    return [returned, await this.#keep(returned, outputOf(task.place.stage.name, task.row.path))];
  }

  async #expand(
    task: Task,
    handed: HandedContext,
    job: JobContext<unknown>,
    stageAttempt: StageAttempt,
  ): Promise<[unknown, StoredValue]> {
    const expansion = new Expansion(this.#runtime, task);
    try {
      await this.#call(task, handed, job, stageAttempt, expansion);
      return [undefined, await expansion.end()];
    } catch (error) {
      expansion.drop();
      throw error;
    }
  }

  #walkOn({ writer, place, row, live, completed }: Task, returned: unknown, output: StoredValue): Promise<PlannedWay> {
    // `match`, `key` and `by` see the value as it will be read later.
    const made = () => (returned instanceof Uint8Array ? returned : this.#runtime.values.load(output));
    const reader: Reader = {
      value: (value) => this.#runtime.reader.value(value),
      output: async (step) => (step.result === null ? made() : this.#runtime.reader.output(step)),
    };
    const steps = [...completed, { stage: place.stage.name, result: null, output: output.hash }];
    return writer.planner.plan(live, place.segment, place.index + 1, steps, row.completed, reader);
  }

  async #call(
    task: Task,
    handed: HandedContext,
    job: JobContext<unknown>,
    stageAttempt: StageAttempt,
    expansion: Expansion | null,
  ): Promise<unknown> {
    const { stage } = task.place;
    const inputs = new Inputs(this.#runtime, task);
    if (stage.isolate === "process")
      return callIsolated({ runtime: this.#runtime, task, handed, job, stageAttempt, inputs, expansion });
    if (stage.kind === "gather") Object.assign(handed, { inputs, failed: task.view.build.failed });
    const returned: unknown = await (stage.run as (context: unknown) => unknown)(handed);
    await expansion?.run(returned);
    return returned;
  }

  /** A value that cannot be stored now cannot be stored by a retry either. */
  async #keep(returned: unknown, what: string) {
    try {
      return await this.#runtime.values.keep(returned, what);
    } catch (error) {
      throw isTransient(error) ? error : new SettleAs(permanentFailure(toJobError(error)));
    }
  }
}

function noTarget(id: string): HoldfastError {
  return new HoldfastError(
    "TARGET_GONE",
    `The work item ${id} belongs to a target that no longer exists.`,
    "Do nothing: the next build lists the targets again.",
  );
}

/** `gone`: the target is gone, too; otherwise the stage no longer matches it. */
interface Unwanted {
  result: ResultKey;
  gone: boolean;
}

function unwanted({ claimed }: Attempt): Unwanted | undefined {
  return (JSON.parse(claimed.input as string) as { remove?: Unwanted }).remove;
}

/** Runs a stage's `remove`. Afterwards the target is deleted, or continues without the result. */
class Removal {
  readonly #runtime: PipelineRuntime;
  readonly #buildContext: BuildContext;
  readonly #place: StagePosition;

  constructor(runtime: PipelineRuntime, buildContext: BuildContext, place: StagePosition) {
    this.#runtime = runtime;
    this.#buildContext = buildContext;
    this.#place = place;
  }

  async run(attempt: Attempt, job: JobContext<unknown>, row: TargetRow, { result, gone }: Unwanted): Promise<void> {
    attempt.work = { cost: NO_COST, result: null, target: null };
    // The target has come back since.
    if (gone && row.done !== GONE_MARK) return;
    const live = await this.#runtime.targets.of(row);
    const { id, hash, parent } = live.target;
    const [made] = await this.#runtime.engine.store.work.results({ keys: [result] });
    await this.#place.stage.remove?.({
      target: { id, hash, ...(parent === undefined ? {} : { parent }) },
      output: made === undefined ? undefined : await this.#runtime.values.load(made.output),
      idempotencyKey: `${job.idempotencyKey}:remove`,
      signal: job.signal,
    });
    if (!gone) attempt.work.target = listedTarget(live, row.rev, carryOn(attempt, await this.#plan(attempt, live, row)));
    else if (await this.#hasChildren(row)) attempt.work.target = listedTarget(live, row.rev, this.#waits(row));
    else attempt.work.forget = { path: row.path, rev: row.rev };
  }

  async #plan(attempt: Attempt, live: Parent, row: TargetRow): Promise<PlannedWay> {
    const { stage, segment, index } = this.#place;
    const { planner } = this.#runtime.targetWriter(this.#buildContext, attempt.claimed);
    const completed = row.completed.filter((step) => !this.#runtime.model.isFrom(step.stage, this.#place));
    const planned = await planner.plan(live, segment, index, completed, this.#without(row));
    const [here, ...behind] = planned.passed;
    const isPassed = here?.stage === stage.name && here.as === "passed";
    return isPassed ? { ...planned, passed: [{ ...here, result: null }, ...behind] } : planned;
  }

  /** The children need their parent until they are removed. The next listing finds the parent gone again. */
  #waits(row: TargetRow): PlannedWay {
    return { flow: { to: "end", completed: this.#without(row), done: GONE_MARK, group: null, member: null }, passed: [] };
  }

  #without({ completed }: TargetRow): TargetRow["completed"] {
    return completed.filter(({ stage }) => stage !== this.#place.stage.name);
  }

  async #hasChildren({ path }: TargetRow): Promise<boolean> {
    const below = segmentBelow(this.#runtime.model, this.#place.segment);
    return below !== null && hasChildren(this.#buildContext, path, below);
  }
}

/** Every commit of a listing renews its lease. */
const LISTING_LEASE_MS = 30_000;

/** The results record what work items did; the jobs themselves only show current activity. */
const JOB_RETENTION = { succeeded: { age: 3_600_000 }, cancelled: { age: 3_600_000 } };

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
    lease: LISTING_LEASE_MS,
    concurrency: undefined,
    declared: {
      declaration: { queue: model.queue, name, limits: [], settings: { events: false, keep: JOB_RETENTION } },
      isEmpty: true,
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
    isBoundToQueue: true,
    prefetch: (claimed) => runtime.prefetch(claimed),
    isResting: () => runtime.isResting(),
    input: undefined,
    output: undefined,
    run: undefined,
    handle: () => made,
  };
  return made;
}

async function list(runtime: PipelineRuntime, attempt: Attempt, job: JobContext<unknown>): Promise<void> {
  attempt.work = { cost: NO_COST, result: null, target: null };
  await runtime.ready();
  const view = await runtime.view(attempt.claimed);
  if (view === null) return;
  const { round, which } = job.input as { round: number; which?: "failed" };
  const cursor = (await job.checkpoint.load()) as string | null | undefined;
  const buildContext = runtime.buildContext(view.build);
  try {
    const register = runtime.targetWriter(buildContext, attempt.claimed);
    const scanner = new SourceScanner({
      buildContext,
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
    // An invalid definition stays invalid.
    if (error instanceof HoldfastError && DEFINITION_ERRORS.has(error.code))
      throw new SettleAs(permanentFailure(toJobError(error)));
    throw error;
  }
}

const SKIP_HINT = "Leave it out with `ignore` of files(), or move the database to another folder.";

const DEFINITION_ERRORS = new Set([
  "NOT_JSON",
  "SOURCE_INVALID",
  "SOURCE_MISSING",
  "TARGET_ID_INVALID",
  "TARGET_TWICE",
  "TARGET_UNKNOWN",
]);
