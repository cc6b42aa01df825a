import { NO_CHURN, type FileChurn, toJobError } from "../core/jobs/job.ts";
import { type StoredValue, GONE_MARK, listingJobName, stageJobName, withResult } from "../core/pipelines/work.ts";
import { NO_COST } from "../core/pipelines/budget.ts";
import type { JobContext } from "../core/pipelines/stage.ts";
import { HoldfastError, isTransient } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import { type Attempt, SettleAs, permanentFailure } from "../engine/attempt.ts";
import type { Definition } from "../engine/definition.ts";
import type { Continued } from "../store/store.ts";
import type { Flow, ListedTarget, NewWork, TargetRow, WorkEnd, WorkView } from "../store/work.ts";
import { callIsolated } from "./isolated/parent.ts";
import type { StagePosition } from "./model.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";
import { SourceScanner } from "./source-scanner.ts";
import { ClaimedFile } from "./sources/file-target.ts";
import { describeSkipped } from "./sources/root.ts";
import {
  addChildren,
  advanced,
  Expansion,
  findChildren,
  gatherInputs,
  memberList,
  restartLater,
  restartNow,
  stageContext,
  type Task,
  wayToChildren,
} from "./stage-attempt.ts";
import { contextOf, loadInput, type PlannedWay } from "./stage-planner.ts";
import { hasChildren, segmentBelow, TargetWriter } from "./target-writer.ts";
import { outputOf, type Reader } from "./values.ts";

/** Retry interval while an earlier effect of the stage is still being removed. */
const REMOVAL_RETRY_MS = 100;

interface StageJobInput {
  children?: boolean;
  churn?: FileChurn;
  /** An effect to remove. `gone` says that the target is gone, too; otherwise the stage no longer matches it. */
  remove?: { result: ResultKey; gone: boolean };
}

type Prepared = Omit<Task, "context">;

async function perform(runtime: PipelineRuntime, attempt: Attempt, job: JobContext<unknown>): Promise<void> {
  const work: WorkEnd = (attempt.work = { cost: NO_COST, result: null, target: null });
  await runtime.ready();
  const view = await runtime.view(attempt.claimed);
  if (view?.target == null) {
    const error = new HoldfastError(
      "TARGET_GONE",
      `The work item ${attempt.claimed.id} belongs to a target that no longer exists.`,
      "Do nothing: the next build lists the targets again.",
    );
    throw new SettleAs(permanentFailure(error));
  }
  const buildContext = runtime.buildContext(view.build);
  const place = runtime.model.place(view.stage);
  const { children = false, churn = NO_CHURN, remove } = JSON.parse(attempt.claimed.input as string) as StageJobInput;
  const row = view.target;
  // The target has come back since.
  if (remove?.gone && row.done !== GONE_MARK) return;
  if (remove === undefined) refuseRemoving(view, place);
  if (!view.removing) attempt.onContinued = (continued) => runtime.know(continued.claimed, viewAfter(view, work, continued));
  const prepared: Prepared = {
    runtime,
    attempt,
    job,
    work,
    buildContext,
    view,
    place,
    row,
    live: await runtime.targets.of(row),
    churn,
    isChildren: children,
    completed: row.completed.filter(({ stage }) => !runtime.model.isFrom(stage, place)),
    writer: new TargetWriter(runtime, buildContext, attempt.claimed),
    artifacts: [],
    isSpoiled: false,
  };
  return remove === undefined ? runOrReuse(await taskOf(prepared)) : removeEffect(prepared, remove);
}

/** Returns what the next stage's attempt would read: the target as this attempt has written it. */
function viewAfter({ build, segment }: WorkView, { target }: WorkEnd, { result, budget }: Continued): WorkView {
  const { path, id, parent, hash, fingerprint, value, rev, flow } = target as ListedTarget;
  const { completed, job } = flow as Flow & { to: "work" };
  const { kind, stage } = job.work as NewWork;
  const position = { seen: build.key, done: null, group: null, member: null, failure: null, rev: rev + 1 };
  const steps = result === null ? completed : withResult(completed, result);
  const row: TargetRow = { segment, path, id, parent, hash, fingerprint, value, completed: steps, ...position };
  return { kind, stage, build: { ...build, budget }, segment, target: row, removing: false };
}

async function taskOf(prepared: Prepared): Promise<Task> {
  const { runtime, place, live, completed, work } = prepared;
  const input = await loadInput(live, completed, runtime.reader);
  try {
    const context = contextOf(place, live, completed, input);
    work.context = { hash: context.hash, parts: JSON.stringify(context.parts) };
    return { ...prepared, context };
  } catch (error) {
    throw new SettleAs(permanentFailure(error));
  }
}

async function runOrReuse(task: Task): Promise<void> {
  const { runtime, attempt, view, place, row, live, completed, context, writer } = task;
  if (place.stage.kind === "expand") {
    const found = await findChildren(task);
    if (found !== null) return addChildren(task, found);
  } else if (place.stage.reuse === "bytes" && (await writer.planner.lookUp(place, context, row.completed)) !== null) {
    // A target with the same bytes has got this result since the job was planned.
    const planned = await writer.planner.plan(live, place.segment, place.index, completed, row.completed);
    task.work.target = advanced(task, planned);
    return;
  }
  const file = live.target instanceof ClaimedFile ? live.target : null;
  if (task.churn.waited && file !== null && !(await file.recheck())) return restartNow(task);
  await runtime.budget.begin(attempt, view.build, place, { target: live.target, input: context.input });
  try {
    await run(task, file);
  } catch (error) {
    if (file === null || !(error instanceof HoldfastError) || error.code !== "BYTES_CHANGED") throw error;
    await restartLater(task);
  } finally {
    void file?.dispose();
  }
}

async function run(task: Task, file: ClaimedFile | null): Promise<void> {
  const { work, place, context } = task;
  const { stage } = place;
  // The members of a gather are stored, too, even if it fails.
  const members = stage.kind === "gather" ? await memberList(task) : null;
  const parts = JSON.stringify(members === null ? context.parts : { ...context.parts, members });
  work.context = { hash: context.hash, parts };
  const expansion = stage.kind === "expand" ? new Expansion(task) : null;
  let returned: unknown;
  let output: StoredValue;
  try {
    returned = await call(task, expansion);
    output = expansion === null ? await keep(task, returned) : await expansion.list.end();
  } catch (error) {
    expansion?.list.drop();
    throw error;
  }
  if (task.isSpoiled || (file !== null && !(await file.recheck()))) return restartLater(task);
  const planned = expansion === null ? await planAfter(task, returned, output) : wayToChildren(task);
  const shared = stage.reuse === "bytes";
  work.result = { hash: context.hash, parts, output, artifacts: task.artifacts, shared };
  work.target = advanced(task, planned);
}

async function call(task: Task, expansion: Expansion | null): Promise<unknown> {
  const { stage } = task.place;
  const handed = await stageContext(task);
  if (stage.isolate === "process") return callIsolated(task, handed, expansion);
  if (stage.kind === "gather") {
    const inputs = { [Symbol.asyncIterator]: () => gatherInputs(task) };
    Object.assign(handed, { inputs, failed: task.view.build.failed });
  }
  const returned: unknown = await (stage.run as (context: unknown) => unknown)(handed);
  await expansion?.addAll(returned);
  return returned;
}

/** Stores an output. A value that cannot be stored now cannot be stored by a retry either. */
async function keep({ runtime, place, row }: Task, returned: unknown): Promise<StoredValue> {
  try {
    return await runtime.values.keep(returned, outputOf(place.stage.name, row.path));
  } catch (error) {
    throw isTransient(error) ? error : new SettleAs(permanentFailure(error));
  }
}

function planAfter(task: Task, returned: unknown, output: StoredValue): Promise<PlannedWay> {
  const { runtime, writer, place, row, live, completed } = task;
  // `match`, `key` and `by` see the value as it will be read later.
  const made = () => (returned instanceof Uint8Array ? returned : runtime.values.load(output));
  const reader: Reader = {
    value: (value) => runtime.reader.value(value),
    output: async (step) => (step.result === null ? made() : runtime.reader.output(step)),
  };
  const steps = [...completed, { stage: place.stage.name, result: null, output: output.hash }];
  return writer.planner.plan(live, place.segment, place.index + 1, steps, row.completed, reader);
}

/** Rejects an attempt while a removal is pending: the removal would undo what the attempt does outside. */
function refuseRemoving({ removing, target }: WorkView, { stage }: StagePosition): void {
  if (!removing || stage.remove === null) return;
  const error = new Error(`what stage "${stage.name}" once made of ${JSON.stringify(target?.id)} is still being removed`);
  throw new SettleAs({ kind: "later", delay: REMOVAL_RETRY_MS, error: toJobError(error) });
}

/** Runs a stage's `remove`. Afterwards the target is deleted, or continues without the result. */
async function removeEffect(prepared: Prepared, { result, gone }: NonNullable<StageJobInput["remove"]>): Promise<void> {
  const { runtime, job, work, buildContext, place, row, live } = prepared;
  const { id, hash, parent } = live.target;
  const [made] = await runtime.engine.store.work.results({ keys: [result] });
  await place.stage.remove?.({
    target: { id, hash, ...(parent === undefined ? {} : { parent }) },
    output: made === undefined ? undefined : await runtime.values.load(made.output),
    idempotencyKey: `${job.idempotencyKey}:remove`,
    signal: job.signal,
  });
  if (!gone) {
    work.target = advanced(prepared, await planWithout(prepared));
    return;
  }
  const below = segmentBelow(runtime.model, place.segment);
  if (below === null || !(await hasChildren(buildContext, row.path, below))) {
    work.forget = { path: row.path, rev: row.rev };
    return;
  }
  // The children need their parent until they are removed. The next listing finds again that the parent is gone.
  const flow = { to: "end", completed: withoutStage(row, place), done: GONE_MARK, group: null, member: null } as const;
  work.target = advanced(prepared, { flow, passed: [] });
}

async function planWithout({ writer, place, row, live, completed }: Prepared): Promise<PlannedWay> {
  const planned = await writer.planner.plan(live, place.segment, place.index, completed, withoutStage(row, place));
  const [here, ...behind] = planned.passed;
  const isPassed = here?.stage === place.stage.name && here.as === "passed";
  return isPassed ? { ...planned, passed: [{ ...here, result: null }, ...behind] } : planned;
}

function withoutStage({ completed }: TargetRow, { stage: { name } }: StagePosition): TargetRow["completed"] {
  return completed.filter(({ stage }) => stage !== name);
}

/** Every commit of a listing renews its lease. */
const LISTING_LEASE_MS = 30_000;

/** The results record what work items did; the jobs themselves only show current activity. */
const JOB_RETENTION = { succeeded: { age: 3_600_000 }, cancelled: { age: 3_600_000 } };

export function definitionsOf(runtime: PipelineRuntime): Definition[] {
  const { model } = runtime;
  const stages = [...model.places].map(({ stage, declared }) =>
    definition(runtime, {
      name: stageJobName(model.name, stage.name),
      version: stage.version,
      policy: stage.policy,
      lease: stage.lease,
      concurrency: stage.concurrency,
      declared,
      perform: (attempt, job) => perform(runtime, attempt, job),
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
    const writer = new TargetWriter(runtime, buildContext, attempt.claimed);
    const scanner = new SourceScanner({
      runtime,
      buildContext,
      register: writer,
      values: runtime.values,
      signal: attempt.signal,
      isLeaving: () => runtime.isLeaving(view.build.key),
      onSkipped: (file) => runtime.engine.log.warn(describeSkipped(file), { build: view.build.id, hint: SKIP_HINT }),
    });
    if (round > 0) await scanner.groups(round, view.build.failed);
    else if (which === undefined) return await scanner.source(cursor);
    await writer.retryFailed(round, () => scanner.refuseLeaving());
  } catch (error) {
    // An invalid definition stays invalid.
    const isLasting = error instanceof HoldfastError && DEFINITION_ERRORS.has(error.code);
    throw isLasting ? new SettleAs(permanentFailure(error)) : error;
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
