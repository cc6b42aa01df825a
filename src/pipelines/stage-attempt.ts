import { hash } from "node:crypto";
import { promisify } from "node:util";
import { deflateRaw, inflateRaw } from "node:zlib";
import { checkArtifactName } from "../artifacts/export-names.ts";
import type { ArtifactData } from "../artifacts/write.ts";
import { type FileChurn, changeWaitMs } from "../core/jobs/job.ts";
import {
  type Member,
  type Members,
  type StoredValue,
  NO_VALUE,
  toMember,
  type CompletedStages,
  type Segment,
  checkTargetId,
  childrenOf,
  pathOf,
  findStep,
} from "../core/pipelines/work.ts";
import type { JobContext, StageContext } from "../core/pipelines/stage.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import { toJson } from "../core/text/json.ts";
import { checkName } from "../core/text/options.ts";
import { type Attempt, SettleAs, permanentFailure } from "../engine/attempt.ts";
import { describeError } from "../engine/log.ts";
import type { FoundResult, ListedTarget, NamedArtifact, TargetRow, WorkEnd, WorkView } from "../store/work.ts";
import { type StagePosition, workKey } from "./model.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";
import { ClaimedFile } from "./sources/file-target.ts";
import { fingerprintFile, statNow } from "./sources/fingerprint-file.ts";
import {
  type BuildContext,
  type Context,
  loadInput,
  type Parent,
  TARGET_BATCH_SIZE,
  targetPages,
  type PlannedWay,
  hasResult,
  listedTarget,
} from "./stage-planner.ts";
import type { Found, TargetWriter } from "./target-writer.ts";
import { ChildListWriter, type Values, readChildList } from "./values.ts";

/** What is known of a work item when its handler is about to run. */
export interface Task {
  runtime: PipelineRuntime;
  attempt: Attempt;
  job: JobContext<unknown>;
  work: WorkEnd;
  buildContext: BuildContext;
  view: WorkView;
  place: StagePosition;
  row: TargetRow;
  live: Parent;
  churn: FileChurn;
  /** True if the job only creates the children of an expand that ran just before and is counted already. */
  isChildren: boolean;
  completed: CompletedStages;
  context: Context;
  writer: TargetWriter;
  artifacts: NamedArtifact[];
  /** The isolated child process read different bytes. */
  isSpoiled: boolean;
}

export type HandedContext = StageContext<unknown, unknown, Record<string, unknown>>;

/** Returns the handler's context. Its properties are plain, so that handlers can spread it. */
export async function stageContext(task: Task): Promise<HandedContext> {
  const { runtime, attempt, place, completed, context, live } = task;
  const { stage } = place;
  const outputs: Record<string, unknown> = {};
  for (const name of stage.uses) {
    const step = findStep(completed, name);
    if (step !== undefined) outputs[name] = step.output === "none" ? undefined : await runtime.reader.output(step);
  }
  const names = new Set<string>();
  return {
    ...task.job,
    input: context.input,
    target: live.target,
    outputs,
    idempotencyKey: workKey(runtime.engine.store.databaseId, runtime.model.name, stage.name, await subjectOf(task)),
    cost: (cost) => runtime.costs.add(attempt, cost, `A cost of stage "${stage.name}"`),
    artifact: async (name, data) => {
      const named = checkName(name, "An artifact's name");
      // Check before the data is stored, so that two concurrent calls cannot both store the name.
      checkArtifactName(named);
      if (names.has(named)) {
        throw new HoldfastError(
          "ARTIFACT_TWICE",
          `Stage "${stage.name}" stores two artifacts named "${named}" of one target.`,
          "Give each artifact of a target another name.",
        );
      }
      names.add(named);
      const { hash, size } = await (await runtime.artifacts()).put(data as ArtifactData);
      task.artifacts.push({ name: named, hash, size });
      return { name: named, hash, size };
    },
  };
}

/** Returns the input of the idempotency key. A rerun gets a key of its own. */
async function subjectOf({ runtime, buildContext, row, place: { stage }, context: { hash } }: Task): Promise<string> {
  if (buildContext.reruns(stage.name)) return `${hash}:${buildContext.build.id}`;
  if (stage.remove === null && stage.kind !== "expand") return hash;
  // The stage runs again because its earlier effect was replaced or removed, so it needs another key than that result.
  const [found] = await runtime.engine.store.work.lookUp(runtime.model.name, [
    { stage: stage.name, hash, ...(stage.reuse === "bytes" ? {} : { path: row.path }) },
  ]);
  return found == null ? hash : `${hash}:${found.key}`;
}

export interface GatherInput {
  target: unknown;
  output: unknown;
  outputs: Record<string, unknown>;
}

const INPUTS_PER_PAGE = 200;

export async function* gatherInputs(task: Task): AsyncGenerator<GatherInput> {
  const { runtime } = task;
  for await (const page of memberPages(task, INPUTS_PER_PAGE)) {
    const members = await Promise.all(page.map((row) => gatherInput(runtime, row)));
    yield* members;
    for (const { target } of members) if (target instanceof ClaimedFile) await target.dispose();
  }
}

async function gatherInput({ targets, reader }: PipelineRuntime, row: TargetRow): Promise<GatherInput> {
  const live = await targets.of(row);
  const outputs: Record<string, unknown> = {};
  await Promise.all(
    row.completed.map(async (step) => {
      outputs[step.stage] = step.output === "none" ? undefined : await reader.output(step);
    }),
  );
  const last = row.completed.length > live.inherited.length ? row.completed.at(-1) : undefined;
  const output = last === undefined ? await loadInput(live, row.completed, reader) : outputs[last.stage];
  return { target: live.target, output, outputs };
}

async function* memberPages({ runtime, attempt, place, row }: Task, limit: number): AsyncGenerator<TargetRow[]> {
  const group = place.stage.by === null ? null : row.id;
  const { model, engine } = runtime;
  const query = { members: true, pipeline: model.name, segment: place.segment.index - 1, group, limit } as const;
  for await (const page of targetPages(engine.store.work, query)) {
    attempt.signal.throwIfAborted();
    yield page;
  }
}

const MEMBERS_PER_PAGE = 1_000;

/** A longer list of members is not stored. This many take a megabyte or two in the result's row. */
const MAX_STORED_MEMBERS = 50_000;

/** Returns the gather's members, compressed, for `why`; null if there are too many. */
export async function memberList(task: Task): Promise<string | null> {
  const { runtime, place, view } = task;
  const own = new Set((runtime.model.segments[place.segment.index - 1] as Segment).stages.map(({ name }) => name));
  const members: Member[] = [];
  for await (const page of memberPages(task, MEMBERS_PER_PAGE)) {
    for (const { path, completed, value, member } of page) {
      const output = completed.findLast(({ stage }) => own.has(stage))?.output ?? value.hash;
      members.push(toMember(path, output, member as string));
    }
    if (members.length > MAX_STORED_MEMBERS) return null;
  }
  const kept: Members = { failed: view.build.failed, members };
  return (await promisify(deflateRaw)(JSON.stringify(kept))).toString("base64");
}

export async function readMembers(list: string): Promise<Members> {
  return JSON.parse((await promisify(inflateRaw)(Buffer.from(list, "base64"))).toString()) as Members;
}

/** Collects the children that an expand yields. They become targets when the expand has succeeded. */
export class Expansion {
  readonly list: ChildListWriter;
  readonly #task: Task;
  readonly #seen = new Set<string>();

  constructor(task: Task) {
    this.#task = task;
    this.list = new ChildListWriter(task.runtime.hasArtifacts ? task.runtime.artifacts : null);
  }

  async addAll(yielded: unknown): Promise<void> {
    if (typeof yielded !== "object" || yielded === null || !(Symbol.asyncIterator in yielded || Symbol.iterator in yielded)) {
      throw new HoldfastError(
        "TARGET_INVALID",
        `The expand "${this.#task.place.stage.name}" did not return an iterable.`,
        "Write it as a generator, or return an array of { id, value }.",
      );
    }
    for await (const one of yielded as Iterable<unknown> | AsyncIterable<unknown>) await this.add(one);
  }

  async add(one: unknown): Promise<void> {
    this.#task.attempt.signal.throwIfAborted();
    const where = `of the expand "${this.#task.place.stage.name}"`;
    if (typeof one !== "object" || one === null || !("id" in one) || !("value" in one)) {
      throw new HoldfastError(
        "TARGET_INVALID",
        `A target ${where} has no id or no value.`,
        "Yield objects such as { id, value }.",
      );
    }
    const id = checkTargetId(one.id, `The id of a target ${where}`);
    if (this.#seen.has(id)) {
      throw new HoldfastError(
        "TARGET_TWICE",
        `Two targets ${where} have the id ${JSON.stringify(id)}.`,
        "Give each target of a parent a unique id.",
      );
    }
    this.#seen.add(id);
    await this.list.add({ id, text: toJson(one.value, `The value of target ${JSON.stringify(id)} ${where}`) });
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

/** The list is the expand's result. After its commit, a separate job creates the targets in batches, and can restart. */
export function wayToChildren({ runtime, buildContext, place, row, completed }: Task): PlannedWay {
  const steps = [...completed, { stage: place.stage.name, result: null, output: "none" as const }];
  const job = runtime.model.childrenJob(place, { build: buildContext.build.key, path: row.path });
  return { flow: { to: "work", completed: steps, job }, passed: [] };
}

const LOST_ARTIFACT_CODES = new Set(["ARTIFACT_MISSING", "ARTIFACT_DAMAGED"]);

/** Finds the list of children that an expand has yielded. Returns null if the expand has to run. */
export async function findChildren({ runtime, writer, place, context, row, isChildren }: Task): Promise<FoundResult | null> {
  const found = await writer.planner.lookUpChildren(place, context, row.completed, isChildren);
  if (found === null || found.output.artifact === null) return found;
  try {
    await (await runtime.artifacts()).path(found.output.artifact);
    return found;
  } catch (error) {
    if (!(error instanceof HoldfastError) || !LOST_ARTIFACT_CODES.has(error.code)) throw error;
    runtime.engine.log.warn("what an expand had yielded cannot be read; it is run again", describeError(error));
    return null;
  }
}

/** Creates targets from the children of an expand. Children of the target that are not in the list are removed. */
export async function addChildren(task: Task, { key, output }: FoundResult): Promise<void> {
  const { runtime, attempt, writer, place, row, live, completed, context } = task;
  const parent = { ...live, completed };
  const segment = runtime.model.segments[parent.segment + 1] as Segment;
  const there = new Set<string>();
  for await (const found of childrenIn(output, parent, runtime, runtime.values)) {
    attempt.signal.throwIfAborted();
    for (const { id } of found) there.add(id);
    await writer.addTargets(segment, found);
  }
  await writer.goneBut(segment, parent.path, there);
  const stage = place.stage.name;
  const steps = [...completed, { stage, result: key as ResultKey, output: childrenOf(context.hash) }];
  const planned = await writer.planner.plan(live, place.segment, place.index + 1, steps, row.completed);
  const isKnown = hasResult(row.completed, stage, key);
  if (!task.isChildren) planned.passed.unshift({ stage, as: "cached", ...(isKnown ? {} : { result: key }) });
  task.work.target = advanced(task, planned);
}

export function advanced({ live, row, churn }: Pick<Task, "live" | "row" | "churn">, planned: PlannedWay): ListedTarget {
  return listedTarget(live, row, withChurn(planned, { ...churn, waited: false }));
}

function withChurn(planned: PlannedWay, churn: FileChurn, when: { delay?: number; priority?: number } = {}): PlannedWay {
  const { flow } = planned;
  if (flow.to !== "work" || churn.times === 0) return planned;
  const input = JSON.stringify({ ...(JSON.parse(flow.job.input as string) as object), churn });
  return { ...planned, flow: { ...flow, job: { ...flow.job, ...when, input } } };
}

/** Restarts the target later, longer each time, because its file changed during the attempt; fails after too many changes. */
export async function restartLater(task: Task): Promise<void> {
  const times = task.churn.times + 1;
  const delay = changeWaitMs(times);
  if (delay === null) {
    const error = new HoldfastError(
      "BYTES_CHANGED",
      `${task.row.id} changed during processing ${times} times; the next build processes it again.`,
      "Leave files that change all the time out of the source, or use `snapshot: true`.",
    );
    throw new SettleAs(permanentFailure(error));
  }
  const target = await restarted(task, { times, waited: true }, { delay });
  // Drop the callbacks, whose rows would describe bytes that no longer exist.
  task.attempt.commit = undefined;
  Object.assign(task.work, { result: null, target });
}

/** Restarts the target with the highest priority, because the file changed while the restart was delayed. */
export async function restartNow(task: Task): Promise<void> {
  const priority = 2 * task.runtime.model.definition.stages.length;
  task.work.target = await restarted(task, { ...task.churn, waited: false }, { priority });
}

/** Returns the target at its first stage, with the bytes that its file has now. */
async function restarted(
  { runtime, writer, row, place, live }: Task,
  churn: FileChurn,
  when: { delay?: number; priority?: number },
): Promise<ListedTarget> {
  const path = runtime.pathOf(row.id);
  const stat = statNow(path);
  // By now, the path may be a link that leads out of the root.
  const isThere = stat !== null && runtime.isInside(path);
  const fingerprint = isThere ? await fingerprintFile(path, stat, runtime.engine.clock) : null;
  if (fingerprint === null) {
    // The next listing finds that the file is gone.
    const flow = { to: "end" as const, completed: row.completed, done: null, group: null, member: null };
    return listedTarget(live, row, { flow, passed: [] });
  }
  const now = runtime.targets.file(row.id, fingerprint);
  const planned = await writer.planner.plan(now, place.segment, 0, [], row.completed);
  return listedTarget(now, row, withChurn(planned, churn, when));
}
