import { promisify } from "node:util";
import { deflateRaw, inflateRaw } from "node:zlib";
import type { JobContext } from "../core/pipelines/stage.ts";
import { NOTHING } from "../core/pipelines/cost.ts";
import { HoldfastError, isPassing } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import { toJobError } from "../core/jobs/job.ts";
import { type KeptValue, type Member, type Members, toMember } from "../core/pipelines/context-hash.ts";
import { GONE, type Segment, type CompletedStages } from "../core/pipelines/work.ts";
import type { Target } from "../core/pipelines/source.ts";
import { type Attempt, Ending, failForGood } from "../engine/attempt.ts";
import { callIsolated } from "./isolated/host.ts";
import { outputOf } from "./values.ts";
import { listedTarget, type PlannedWay } from "./stage-planner.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";
import type { NewResult, TargetRow, WorkView } from "../store/work.ts";
import { type TargetWriter, hasChildren, segmentBelow } from "./target-writer.ts";
import { carryOn, Expansion, Children, RestartOnChange, churnOf } from "./expansion.ts";
import { type BuildContext, type Context, contextOf, loadInput, type Parent, type Reader } from "./stage-input.ts";
import type { StagePosition } from "./model.ts";
import { type HandedContext, StageAttempt, stageContext } from "./stage-attempt.ts";

/** A removal that is in the way is waited for, and looked for again after this. */
const REMOVING = 100;

/** All that is known of a work item when its handler is about to run. */
export interface Task {
  attempt: Attempt;
  scope: BuildContext;
  view: WorkView;
  place: StagePosition;
  row: TargetRow;
  live: Parent;
  /** What the target has gone through before this stage. */
  trail: CompletedStages;
  context: Context;
  /** Writes what the attempt finds of other targets. */
  writer: TargetWriter;
}

/** Runs one stage for one target, and says what follows from it. */
export class StageRunner {
  readonly #runtime: PipelineRuntime;

  constructor(runtime: PipelineRuntime) {
    this.#runtime = runtime;
  }

  async perform(attempt: Attempt, job: JobContext<unknown>): Promise<void> {
    attempt.work = { cost: NOTHING, result: null, target: null };
    await this.#runtime.ready();
    const view = await this.#runtime.view(attempt.job);
    if (view?.target == null) throw new Ending(failForGood(toJobError(noTarget(attempt.claimed.id))));
    const scope = this.#runtime.scope(view.build);
    const removes = unwanted(attempt);
    if (removes !== undefined)
      return new Removal(this.#runtime, scope, this.#runtime.model.place(view.stage)).run(attempt, job, view.target, removes);
    this.#refuseRemoving(view);
    const task = await this.#task(attempt, scope, view, view.target);
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

  /** What it does outside would be undone by what is still being removed there. */
  #refuseRemoving({ stage, removing, target }: WorkView): void {
    if (!removing || this.#runtime.model.place(stage).stage.remove === null) return;
    const error = new Error(`what stage "${stage}" once made of ${JSON.stringify(target?.id)} is still being removed`);
    throw new Ending({ kind: "later", delay: REMOVING, error: toJobError(error) });
  }

  async #task(attempt: Attempt, scope: BuildContext, view: WorkView, row: TargetRow): Promise<Task> {
    const place = this.#runtime.model.place(view.stage);
    const live = await this.#runtime.targets.of(row);
    const trail = row.trail.filter(({ stage }) => !this.#runtime.model.isFrom(stage, place));
    const input = await loadInput(live, trail, this.#runtime.reader);
    try {
      const context = contextOf(place, live, trail, input);
      if (attempt.work !== undefined) attempt.work.context = { hash: context.hash, parts: JSON.stringify(context.parts) };
      const writer = this.#runtime.targetWriter(scope, attempt.claimed);
      return { attempt, scope, view, place, row, live, trail, context, writer };
    } catch (error) {
      throw new Ending(failForGood(toJobError(error)));
    }
  }

  /** Whether somebody else has made it since it was enqueued. Only where that can be: the same bytes. */
  async #isMade({ writer, place, context, row }: Task): Promise<boolean> {
    if (place.stage.reuse !== "bytes" || place.stage.kind === "expand") return false;
    return (await writer.planner.lookUp(place, context, row.trail)) !== null;
  }

  async #reuse({ attempt, writer, place, row, live, trail }: Task): Promise<void> {
    const planned = await writer.planner.plan(live, place.segment, place.index, trail, row.trail);
    const target = listedTarget(live, row.rev, carryOn(attempt, planned));
    attempt.work = { cost: NOTHING, result: null, target };
  }

  /** Whether its file has changed again while it waited for it to hold still. */
  async #hasChangedSince({ attempt, live }: Task): Promise<boolean> {
    const file = churnOf(attempt).waited ? this.#runtime.fileOf(live.target) : null;
    return file !== null && !(await file.recheck());
  }

  async #supersede(task: Task): Promise<void> {
    const target = await new RestartOnChange(this.#runtime, task).afterWait();
    task.attempt.work = { cost: NOTHING, result: null, target };
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
    };
    const target = listedTarget(live, row.rev, carryOn(attempt, planned));
    attempt.work = { cost: stageAttempt.cost.total, result, target };
  }

  /** What its result is made of, as it is kept: of a gather also which members there are, also should it fail. */
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
  ): Promise<[unknown, KeptValue]> {
    const returned = await this.#call(task, handed, job, stageAttempt, null);
    return [returned, await this.#keep(returned, outputOf(task.place.stage.name, task.row.path))];
  }

  /** What it yields is its output. */
  async #expand(
    task: Task,
    handed: HandedContext,
    job: JobContext<unknown>,
    stageAttempt: StageAttempt,
  ): Promise<[unknown, KeptValue]> {
    const expansion = new Expansion(this.#runtime, task);
    try {
      await this.#call(task, handed, job, stageAttempt, expansion);
      return [undefined, await expansion.end()];
    } catch (error) {
      expansion.drop();
      throw error;
    }
  }

  /** Behind the stage, with what it has just made. */
  #walkOn({ writer, place, row, live, trail }: Task, returned: unknown, output: KeptValue): Promise<PlannedWay> {
    // What `match`, `key` and `by` see of it is what they would see of it later.
    const made = () => (returned instanceof Uint8Array ? returned : this.#runtime.values.load(output));
    const reader: Reader = {
      value: (value) => this.#runtime.reader.value(value),
      output: async (step) => (step.result === null ? made() : this.#runtime.reader.output(step)),
    };
    const steps = [...trail, { stage: place.stage.name, result: null, output: output.hash }];
    return writer.planner.plan(live, place.segment, place.index + 1, steps, row.trail, reader);
  }

  /** The handler, here or in a process of its own; what an expand yields is in its list then. */
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

  /** What cannot be kept the first time cannot be kept the next time either. */
  async #keep(returned: unknown, what: string) {
    try {
      return await this.#runtime.values.keep(returned, what);
    } catch (error) {
      throw isPassing(error) ? error : new Ending(failForGood(toJobError(error)));
    }
  }
}

function noTarget(id: string): HoldfastError {
  return new HoldfastError(
    "TARGET_GONE",
    `The work item ${id} is about a target that is not there any more.`,
    "Nothing needs to be done: the next build lists what there is.",
  );
}

/** Read at a time. */
const PAGE = 200;

/** What a gather reads: the members of its group in the order of their paths, however many there are. */
export class Inputs implements AsyncIterable<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
  readonly #runtime: PipelineRuntime;
  readonly #task: Task;

  constructor(runtime: PipelineRuntime, task: Task) {
    this.#runtime = runtime;
    this.#task = task;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
    const { place, row, attempt } = this.#task;
    const group = place.stage.by === null ? null : row.id;
    for (let last: TargetRow | undefined; ;) {
      attempt.signal.throwIfAborted();
      const page = await this.#runtime.engine.store.work.targets({
        members: true,
        pipeline: this.#runtime.model.name,
        segment: place.segment.index - 1,
        group,
        limit: PAGE,
        ...(last === undefined ? {} : { after: { group, path: last.path } }),
      });
      const members = await Promise.all(page.map((member) => this.#member(member)));
      yield* members;
      // Copies of files that were asked for.
      for (const { target } of members) await this.#runtime.fileOf(target as Target)?.dispose();
      last = page.at(-1);
      if (last === undefined) return;
    }
  }

  async #member(row: TargetRow): Promise<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
    const live = await this.#runtime.targets.of(row);
    const outputs: Record<string, unknown> = {};
    await Promise.all(
      row.trail.map(async ({ stage, result, output }) => {
        outputs[stage] = output === "none" ? undefined : await this.#runtime.reader.output({ result, output });
      }),
    );
    const last = row.trail.length > live.inherited.length ? row.trail.at(-1) : undefined;
    const output = last === undefined ? await loadInput(live, row.trail, this.#runtime.reader) : outputs[last.stage];
    return { target: live.target, output, outputs };
  }
}

const MEMBERS_PAGE = 1_000;

/** Of more, no list is kept: this many are a megabyte or two in the result's row, and nobody would read it. */
const MOST = 50_000;

/** What a gather is made of, as it is kept beside the parts of its context; null: there are too many. */
async function memberList(runtime: PipelineRuntime, task: Task): Promise<string | null> {
  const members: Member[] = [];
  for await (const member of membersOf(runtime, task)) if (members.push(member) > MOST) return null;
  const kept: Members = { failed: task.view.build.failed, members };
  return (await promisify(deflateRaw)(JSON.stringify(kept))).toString("base64");
}

export async function readMembers(list: string): Promise<Members> {
  return JSON.parse((await promisify(inflateRaw)(Buffer.from(list, "base64"))).toString()) as Members;
}

async function* membersOf({ engine, model }: PipelineRuntime, { place, row, attempt }: Task): AsyncIterable<Member> {
  const { index } = place.segment;
  const own = new Set((model.segments[index - 1] as Segment).stages.map(({ name }) => name));
  const group = place.stage.by === null ? null : row.id;
  for (let last: TargetRow | undefined; ;) {
    attempt.signal.throwIfAborted();
    const after = last === undefined ? {} : { after: { group, path: last.path } };
    const page = await engine.store.work.targets({
      members: true,
      pipeline: model.name,
      segment: index - 1,
      group,
      limit: MEMBERS_PAGE,
      ...after,
    });
    for (const { path, trail, value, member } of page) {
      const output = trail.findLast(({ stage }) => own.has(stage))?.output ?? value.hash;
      yield toMember(path, output, member as string);
    }
    last = page.at(-1);
    if (last === undefined) return;
  }
}

/** What is to be removed. `gone`: with its target; else the stage does not match that any more. */
interface Unwanted {
  result: ResultKey;
  gone: boolean;
}

/** What a job's input says of it; undefined: the stage is to be run. */
function unwanted({ claimed }: Attempt): Unwanted | undefined {
  return (JSON.parse(claimed.input as string) as { remove?: Unwanted }).remove;
}

/** Has a stage remove what it once made of a target, which then is forgotten, or goes on without. */
class Removal {
  readonly #runtime: PipelineRuntime;
  readonly #scope: BuildContext;
  readonly #place: StagePosition;

  constructor(runtime: PipelineRuntime, scope: BuildContext, place: StagePosition) {
    this.#runtime = runtime;
    this.#scope = scope;
    this.#place = place;
  }

  async run(attempt: Attempt, job: JobContext<unknown>, row: TargetRow, { result, gone }: Unwanted): Promise<void> {
    attempt.work = { cost: NOTHING, result: null, target: null };
    // It has come back meanwhile.
    if (gone && row.done !== GONE) return;
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

  /** From here on, as one of which this stage has made nothing. */
  async #plan(attempt: Attempt, live: Parent, row: TargetRow): Promise<PlannedWay> {
    const { stage, segment, index } = this.#place;
    const { planner } = this.#runtime.targetWriter(this.#scope, attempt.claimed);
    const trail = row.trail.filter((step) => !this.#runtime.model.isFrom(step.stage, this.#place));
    const planned = await planner.plan(live, segment, index, trail, this.#without(row));
    const [here, ...behind] = planned.passed;
    // What it had of this stage it has no more.
    const isPassed = here?.stage === stage.name && here.as === "passed";
    return isPassed ? { ...planned, passed: [{ ...here, result: null }, ...behind] } : planned;
  }

  /** Its children need it. The next listing finds it gone again, and this stage has nothing more to remove then. */
  #waits(row: TargetRow): PlannedWay {
    return { flow: { to: "end", trail: this.#without(row), done: GONE, group: null, member: null }, passed: [] };
  }

  #without({ trail }: TargetRow): TargetRow["trail"] {
    return trail.filter(({ stage }) => stage !== this.#place.stage.name);
  }

  async #hasChildren({ path }: TargetRow): Promise<boolean> {
    const below = segmentBelow(this.#runtime.model, this.#place.segment);
    return below !== null && hasChildren(this.#scope, path, below);
  }
}
