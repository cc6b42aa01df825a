import { hash } from "node:crypto";
import { checkArtifactName } from "../artifacts/export-names.ts";
import type { ArtifactData } from "../artifacts/write.ts";
import { NO_CHURN, type FileChurn, toJobError, changeWaitMs } from "../core/jobs/job.ts";
import { type Fingerprint, type StoredValue, NO_VALUE } from "../core/pipelines/context-hash.ts";
import { NO_COST } from "../core/pipelines/cost.ts";
import type { JobContext, StageContext } from "../core/pipelines/stage.ts";
import { type Segment, checkTargetId, childrenOf, pathOf, findStep } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toJson } from "../core/text/json.ts";
import { checkName } from "../core/text/options.ts";
import { type Attempt, SettleAs, permanentFailure } from "../engine/attempt.ts";
import { describeError } from "../engine/log.ts";
import type { FoundResult, ListedTarget, NamedArtifact } from "../store/work.ts";
import type { AttemptCost } from "./budget-reserver.ts";
import { workKey } from "./model.ts";
import type { PipelineRuntime, Task } from "./pipeline-runtime.ts";
import type { ClaimedFile } from "./sources/file-target.ts";
import { fingerprintFile, statNow } from "./sources/fingerprint-file.ts";
import { type Parent, asParent } from "./stage-input.ts";
import { type PlannedWay, hasResult, listedTarget } from "./stage-planner.ts";
import { TARGET_BATCH_SIZE, type Found } from "./target-writer.ts";
import { ChildListWriter, type Values, type Yielded, readChildList } from "./values.ts";

/** The running attempt of a stage: its cost, its artifacts, and whether its file is still unchanged. */
export class StageAttempt {
  readonly cost: AttemptCost;
  readonly artifacts: NamedArtifact[] = [];
  readonly #runtime: PipelineRuntime;
  readonly #task: Task;
  readonly #names = new Set<string>();
  #spoiled = false;
  readonly #file: ClaimedFile | null;

  constructor(runtime: PipelineRuntime, task: Task) {
    this.#runtime = runtime;
    this.#task = task;
    this.cost = runtime.costs.open(task.attempt, task.place.stage.name);
    this.#file = runtime.fileOf(task.live.target);
  }

  /** Called before the artifact is stored, so that two concurrent calls cannot both store the name. */
  refuseTwice(name: string): void {
    if (this.#names.has(name)) throw artifactTwice(name, this.#task.place.stage.name);
    this.#names.add(name);
  }

  keep(artifact: NamedArtifact): NamedArtifact {
    this.artifacts.push(artifact);
    return { ...artifact };
  }

  /** The isolated child process read different bytes. */
  spoil(): void {
    this.#spoiled = true;
  }

  async isUnchanged(): Promise<boolean> {
    if (this.#spoiled) return false;
    return this.#file === null || this.#file.recheck();
  }

  isBytesChanged(error: unknown): boolean {
    return this.#file !== null && error instanceof HoldfastError && error.code === "BYTES_CHANGED";
  }

  /** Restarts the target with the bytes that its file has now. */
  async supersede(): Promise<void> {
    const target = await new RestartOnChange(this.#runtime, this.#task).during();
    // The rows would describe bytes that no longer exist.
    this.#task.attempt.commit = undefined;
    this.#task.attempt.work = { cost: this.cost.total, result: null, target };
  }

  close(): void {
    const { work } = this.#task.attempt;
    if (work !== undefined) work.cost = this.cost.total;
    this.cost.closed = true;
    void this.#file?.dispose();
  }
}

export type HandedContext = StageContext<unknown, unknown, Record<string, unknown>>;

/** Plain properties, so that handlers can spread the context. */
export async function stageContext(
  task: Task,
  stageAttempt: StageAttempt,
  job: JobContext<unknown>,
  runtime: PipelineRuntime,
): Promise<HandedContext> {
  const { place, completed, context, live } = task;
  const outputs: Record<string, unknown> = {};
  for (const name of place.stage.uses) {
    const step = findStep(completed, name);
    if (step !== undefined) outputs[name] = step.output === "none" ? undefined : await runtime.reader.output(step);
  }
  const subject = await subjectOf(task, runtime);
  return {
    ...job,
    input: context.input,
    target: live.target,
    outputs,
    idempotencyKey: workKey(runtime.engine.store.databaseId, runtime.model.name, place.stage.name, subject),
    cost: (cost) => stageAttempt.cost.add(cost),
    artifact: async (name, data) => {
      const named = checkName(name, "An artifact's name");
      // Check the name before the data is stored.
      checkArtifactName(named);
      stageAttempt.refuseTwice(named);
      const { hash, size } = await (await runtime.artifacts()).put(data as ArtifactData);
      return stageAttempt.keep({ name: named, hash, size });
    },
  };
}

/** Input of the idempotency key. A rerun gets a key of its own. */
async function subjectOf(
  { buildContext, row, place: { stage }, context: { hash } }: Task,
  runtime: PipelineRuntime,
): Promise<string> {
  if (buildContext.reruns(stage.name)) return `${hash}:${buildContext.build.id}`;
  if (stage.remove === null && stage.kind !== "expand") return hash;
  // The stage runs again because its earlier effect was replaced or removed, so it needs another key than that result.
  const [found] = await runtime.engine.store.work.lookUp(runtime.model.name, [
    { stage: stage.name, hash, ...(stage.reuse === "bytes" ? {} : { path: row.path }) },
  ]);
  return found == null ? hash : `${hash}:${found.key}`;
}

function artifactTwice(name: string, stage: string): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_TWICE",
    `Stage "${stage}" stores two artifacts named "${name}" of one target.`,
    "Give each artifact of a target another name.",
  );
}

/** Collects the children that an expand yields. They become targets when the expand has succeeded. */
export class Expansion {
  readonly #task: Task;
  readonly #seen = new Set<string>();
  readonly #list: ChildListWriter;

  constructor(runtime: PipelineRuntime, task: Task) {
    this.#task = task;
    this.#list = new ChildListWriter(runtime.hasArtifacts ? runtime.artifacts : null);
  }

  async run(yielded: unknown): Promise<void> {
    for await (const one of this.#iterate(yielded)) await this.add(one);
  }

  async add(one: unknown): Promise<void> {
    this.#task.attempt.signal.throwIfAborted();
    await this.#list.add(this.#child(one));
  }

  end(): Promise<StoredValue> {
    return this.#list.end();
  }

  drop(): void {
    this.#list.drop();
  }

  #child(one: unknown): Yielded {
    const where = `of the expand "${this.#task.place.stage.name}"`;
    if (typeof one !== "object" || one === null || !("id" in one) || !("value" in one)) {
      throw new HoldfastError(
        "TARGET_INVALID",
        `A target ${where} has no id or no value.`,
        "Yield objects such as { id, value }.",
      );
    }
    const id = checkTargetId(one.id, `The id of a target ${where}`);
    if (this.#seen.size === this.#seen.add(id).size) {
      throw new HoldfastError(
        "TARGET_TWICE",
        `Two targets ${where} have the id ${JSON.stringify(id)}.`,
        "Give each target of a parent a unique id.",
      );
    }
    return { id, text: toJson(one.value, `The value of target ${JSON.stringify(id)} ${where}`) };
  }

  #iterate(yielded: unknown): Iterable<unknown> | AsyncIterable<unknown> {
    if (typeof yielded === "object" && yielded !== null && (Symbol.asyncIterator in yielded || Symbol.iterator in yielded)) {
      return yielded as Iterable<unknown> | AsyncIterable<unknown>;
    }
    throw new HoldfastError(
      "TARGET_INVALID",
      `The expand "${this.#task.place.stage.name}" did not return an iterable.`,
      "Write it as a generator, or return an array of { id, value }.",
    );
  }
}

export async function* childrenIn(
  list: StoredValue,
  parent: Parent,
  runtime: PipelineRuntime,
  values: Values,
): AsyncIterable<Found[]> {
  const segment = runtime.model.segments[parent.segment + 1] as Segment;
  let batch: Found[] = [];
  for await (const { id, text } of readChildList(list, runtime.artifacts)) {
    const value = text === null ? NO_VALUE : await values.keepText(text);
    const path = pathOf(parent.path, id);
    const child = { segment: segment.index, path, id, hash: hash("sha256", value.hash), value };
    const found = runtime.targets.child(child, parent);
    const { artifact, size } = value;
    batch.push(artifact === null ? found : { ...found, artifacts: [{ name: "value", hash: artifact, size }] });
    if (batch.length < TARGET_BATCH_SIZE) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}

/** Errors after which an artifact cannot be read again. */
const LOST_ARTIFACT_CODES = new Set(["ARTIFACT_MISSING", "ARTIFACT_DAMAGED"]);

/**
 * Creates targets from the children of an expand. The list of children is the expand's result; a job of its own creates the
 * targets in batches after that result is committed, and can restart at any point.
 */
export class Children {
  readonly #runtime: PipelineRuntime;
  readonly #task: Task;
  /** The expand ran just before this job and is counted already. */
  readonly #isOwn: boolean;

  constructor(runtime: PipelineRuntime, task: Task) {
    this.#runtime = runtime;
    this.#task = task;
    this.#isOwn = isChildren(task.attempt);
  }

  get next(): PlannedWay {
    const { buildContext, place, row, completed } = this.#task;
    const steps = [...completed, { stage: place.stage.name, result: null, output: "none" as const }];
    const job = this.#runtime.model.childrenJob(place, { build: buildContext.build.key, path: row.path });
    return { flow: { to: "work", completed: steps, job }, passed: [] };
  }

  /** Null: the expand has to run. */
  async find(): Promise<FoundResult | null> {
    const { writer, place, context, row } = this.#task;
    const found = await writer.planner.lookUpChildren(place, context, row.completed, this.#isOwn);
    if (found === null || found.output.artifact === null) return found;
    try {
      await (await this.#runtime.artifacts()).path(found.output.artifact);
      return found;
    } catch (error) {
      if (!(error instanceof HoldfastError) || !LOST_ARTIFACT_CODES.has(error.code)) throw error;
      this.#runtime.engine.log.warn("what an expand had yielded cannot be read; it is run again", describeError(error));
      return null;
    }
  }

  async addTargets(found: FoundResult): Promise<void> {
    const { attempt, writer, place, row, live, completed, context } = this.#task;
    await this.#children(found);
    const stage = place.stage.name;
    const steps = [...completed, { stage, result: found.key, output: childrenOf(context.hash) }];
    const planned = await writer.planner.plan(live, place.segment, place.index + 1, steps, row.completed);
    const isKnown = hasResult(row.completed, stage, found.key);
    if (!this.#isOwn) planned.passed.unshift({ stage, as: "cached", ...(isKnown ? {} : { result: found.key }) });
    attempt.work = { cost: NO_COST, result: null, target: listedTarget(live, row.rev, carryOn(attempt, planned)) };
  }

  /** Children of the target that are not in the list are removed. */
  async #children({ output }: FoundResult): Promise<void> {
    const { attempt, writer, live, completed } = this.#task;
    const parent = asParent(live, completed);
    const segment = this.#runtime.model.segments[parent.segment + 1] as Segment;
    const there = new Set<string>();
    for await (const found of childrenIn(output, parent, this.#runtime, this.#runtime.values)) {
      attempt.signal.throwIfAborted();
      for (const { id } of found) there.add(id);
      const paths = found.map(({ path }) => path);
      await writer.addTargets(segment, found, await writer.rows(segment, paths));
    }
    await writer.goneBut(segment, parent.path, there);
  }
}

function isChildren({ claimed }: Attempt): boolean {
  return (JSON.parse(claimed.input as string) as { children?: boolean }).children === true;
}

export function churnOf({ claimed }: Attempt): FileChurn {
  return (JSON.parse(claimed.input as string) as { churn?: FileChurn }).churn ?? NO_CHURN;
}

export function carryOn(attempt: Attempt, planned: PlannedWay): PlannedWay {
  return withChurn(planned, { ...churnOf(attempt), waited: false });
}

function withChurn(planned: PlannedWay, churn: FileChurn, when: { delay?: number; priority?: number } = {}): PlannedWay {
  const { flow } = planned;
  if (flow.to !== "work" || churn.times === 0) return planned;
  const input = JSON.stringify({ ...(JSON.parse(flow.job.input as string) as object), churn });
  return { ...planned, flow: { ...flow, job: { ...flow.job, ...when, input } } };
}

/** Restarts a target from its first stage because its file has changed. */
export class RestartOnChange {
  readonly #runtime: PipelineRuntime;
  readonly #task: Task;

  constructor(runtime: PipelineRuntime, task: Task) {
    this.#runtime = runtime;
    this.#task = task;
  }

  /** Delays the restart longer each time, and fails after too many changes. */
  async during(): Promise<ListedTarget> {
    const { attempt, row } = this.#task;
    const times = churnOf(attempt).times + 1;
    const delay = changeWaitMs(times);
    if (delay === null) throw new SettleAs(permanentFailure(toJobError(restless(row.id, times))));
    return this.#as(await this.#fingerprint(), { times, waited: true }, { delay });
  }

  /** Restarts with the highest priority: the file changed while the restart was delayed. */
  async afterWait(): Promise<ListedTarget> {
    const { times } = churnOf(this.#task.attempt);
    const priority = 2 * this.#runtime.model.definition.stages.length;
    return this.#as(await this.#fingerprint(), { times, waited: false }, { priority });
  }

  async #as(
    fingerprint: Fingerprint | null,
    churn: FileChurn,
    when: { delay?: number; priority?: number },
  ): Promise<ListedTarget> {
    const { writer, row, place, live } = this.#task;
    if (fingerprint === null) {
      // The next listing finds that the file is gone.
      const flow = { to: "end" as const, completed: row.completed, done: null, group: null, member: null };
      return listedTarget(live, row.rev, { flow, passed: [] });
    }
    const now = this.#runtime.targets.file(row.id, fingerprint);
    const planned = await writer.planner.plan(now, place.segment, 0, [], row.completed);
    return listedTarget(now, row.rev, withChurn(planned, churn, when));
  }

  /** Null: the file is gone. */
  async #fingerprint(): Promise<Fingerprint | null> {
    const path = this.#runtime.pathOf(this.#task.row.id);
    const stat = statNow(path);
    // The path may be a link that leads out of the root now.
    if (stat === null || !this.#runtime.isInside(path)) return null;
    return fingerprintFile(path, stat, this.#runtime.engine.clock);
  }
}

function restless(id: string, times: number): HoldfastError {
  return new HoldfastError(
    "BYTES_CHANGED",
    `${id} changed during processing ${times} times; the next build processes it again.`,
    "Leave files that change all the time out of the source, or use `snapshot: true`.",
  );
}
