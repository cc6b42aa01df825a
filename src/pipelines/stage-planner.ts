import { toJobError } from "../core/jobs/job.ts";
import { type StoredValue, memberHash } from "../core/pipelines/context-hash.ts";
import { groupOf } from "../core/pipelines/stage.ts";
import { childrenOf, type Segment, type Step, findStep, type CompletedStages } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import type { NewJob } from "../store/store.ts";
import type { Flow, FoundResult, ListedTarget, Passed, TargetRow } from "../store/work.ts";
import { type BuildContext, type Context, contextOf, inputHash, loadInput, type LiveTarget } from "./stage-input.ts";
import type { Reader } from "./values.ts";
import type { Model, StagePosition } from "./model.ts";
import { isChildList } from "./values.ts";

/** Where a target goes next, and the stages that it passed without running them. */
export interface PlannedWay {
  flow: Flow;
  passed: Passed[];
}

/** Called when an expand's children are reused. A plan also passes `list`: children that would replace them. */
export type OnExpanded = (parent: LiveTarget, completed: CompletedStages, list?: StoredValue) => Promise<void>;

/**
 * Advances a target through its segment as far as results exist: past stages that do not match and through stages with
 * results, up to a stage that has to run or to the segment's end. Writes nothing.
 */
export class StagePlanner {
  readonly #model: Model;
  readonly #buildContext: BuildContext;
  readonly #reader: Reader;
  readonly #onExpanded: OnExpanded;
  readonly #looksOnly: boolean;

  /** `looksOnly`: for a plan, where no target waits for a removal. */
  constructor(buildContext: BuildContext, reader: Reader, onExpanded: OnExpanded, looksOnly = false) {
    this.#buildContext = buildContext;
    this.#model = buildContext.model;
    this.#reader = reader;
    this.#onExpanded = onExpanded;
    this.#looksOnly = looksOnly;
  }

  /** `old`: the stages that the target completed in earlier builds. */
  async plan(
    live: LiveTarget,
    segment: Segment,
    from: number,
    completed: CompletedStages,
    old: CompletedStages,
    reader = this.#reader,
  ): Promise<PlannedWay> {
    const planned: PlannedWay = { flow: { to: "end", completed, done: null, group: null, member: null }, passed: [] };
    const steps: Step[] = [...completed];
    for (const stage of segment.stages.slice(from)) {
      const place = this.#model.place(stage.name);
      if (!this.#buildContext.includes(place)) {
        planned.flow = { to: "end", completed: this.#withOld(steps, old, place), done: null, group: null, member: null };
        return planned;
      }
      try {
        const went = await this.#step(live, place, steps, old, planned, reader);
        if (went !== null) {
          planned.flow = went;
          return planned;
        }
      } catch (error) {
        planned.flow = {
          to: "failed",
          completed: this.#withOld(steps, old, place),
          stage: stage.name,
          hash: "",
          error: toJobError(error),
        };
        return planned;
      }
    }
    planned.flow = await this.#end(live, segment, steps, reader);
    return planned;
  }

  unchanged(row: TargetRow, segment: Segment): Passed[] {
    return segment.stages.map(({ name }) => ({
      stage: name,
      as: findStep(row.completed, name) === undefined ? "passed" : "cached",
    }));
  }

  /** Whether the target can stay at the end of its segment. */
  isUnchanged(row: TargetRow, live: LiveTarget, segment: Segment): boolean {
    if (row.done === null || row.hash !== live.hash || row.value.hash !== live.value.hash) return false;
    if (!this.#buildContext.isWhole || segment.ends === "expand") return false;
    if (segment.stages.some(({ name }) => this.#buildContext.reruns(name))) return false;
    return row.done === this.#buildContext.doneMark(segment, live.inherited);
  }

  /** Null: continue with the next stage. */
  async #step(
    live: LiveTarget,
    place: StagePosition,
    steps: Step[],
    old: CompletedStages,
    planned: PlannedWay,
    reader: Reader,
  ): Promise<Flow | null> {
    const { stage } = place;
    const needed = typeof stage.match === "function" || typeof stage.key === "function";
    let input = needed ? await loadInput(live, steps, reader) : undefined;
    if (!matches(place, live, input)) {
      const before = findStep(old, stage.name);
      // The target continues after the removal; until then its completed stages name what to remove.
      if (before !== undefined && stage.remove !== null && !this.#looksOnly)
        return { to: "work", completed: this.#withOld(steps, old, place), job: this.#removal(place, live, before) };
      planned.passed.push({ stage: stage.name, as: "passed", ...(before === undefined ? {} : { result: null }) });
      return null;
    }
    const context = contextOf(place, live, steps, input);
    // Children are written before their parent settles, so the results that they inherit must be committed.
    const waits = stage.kind === "expand" && steps.some(({ result }) => result === null);
    const isExpand = stage.kind === "expand";
    const found = waits ? null : await this.lookUp(place, context, old);
    const other = found === null && isExpand && this.#looksOnly ? await this.lookUpChildren(place, context, old) : null;
    if (found === null && other === null) {
      if (!needed && !place.declared.isEmpty) input = await loadInput(live, steps, reader);
      const work = { build: this.#buildContext.build.key, path: live.path, context: context.hash };
      const completed = this.#outdated(place, context, this.#withOld(steps, old, place));
      return { to: "work", completed, job: this.#model.stageJob(place, work, input) };
    }
    const { key, output } = (found ?? other) as FoundResult;
    planned.passed.push({ stage: stage.name, as: "cached", ...(hasResult(old, stage.name, key) ? {} : { result: key }) });
    if (isExpand) {
      await this.#onExpanded(live, [...steps], other?.output);
      steps.push({ stage: stage.name, result: key, output: childrenOf(context.hash) });
      return null;
    }
    steps.push({ stage: stage.name, result: key, output: output.hash });
    return null;
  }

  /**
   * The result to reuse, if any. An expand's result counts only if the target's current children came from it; else
   * `lookUpChildren` recreates them. The result of a stage with `remove` counts only if it was the last effect for this
   * target.
   */
  async lookUp({ stage }: StagePosition, { hash, parts }: Context, old: CompletedStages): Promise<FoundResult | null> {
    if (stage.kind === "expand" && findStep(old, stage.name)?.output !== childrenOf(hash)) return null;
    const found = await this.#buildContext.lookUp(stage, hash, parts.target.id);
    const isOutside = stage.kind !== "expand" && stage.remove !== null;
    const before = findStep(old, stage.name);
    return isOutside && (before?.result !== found?.key || before?.undone === true) ? null : found;
  }

  /**
   * The children that an expand yielded for this context, which can be recreated without running it. An expand with `remove`
   * has had another effect since, and runs again. `isOwn`: the expand ran just before.
   */
  async lookUpChildren(
    { stage }: StagePosition,
    { hash, parts }: Context,
    old: CompletedStages,
    isOwn = false,
  ): Promise<FoundResult | null> {
    const areThere = findStep(old, stage.name)?.output === childrenOf(hash);
    if (stage.remove !== null && !areThere && !isOwn) return null;
    const found = await this.#buildContext.lookUp(stage, hash, parts.target.id);
    return found !== null && isChildList(found.output) ? found : null;
  }

  async #end(live: LiveTarget, segment: Segment, steps: Step[], reader: Reader): Promise<Flow> {
    const flow: Flow = {
      to: "end",
      completed: steps,
      done: this.#buildContext.doneMark(segment, live.inherited),
      group: null,
      member: null,
    };
    if (segment.gather === null) return flow;
    try {
      if (segment.gather.by !== null) {
        flow.group = groupOf(segment.gather, live.target, await loadInput(live, steps, reader));
      }
    } catch (error) {
      return { to: "failed", completed: steps, stage: segment.gather.name, hash: "", error: toJobError(error) };
    }
    flow.member = memberHash({
      target: live.path,
      output: inputHash(live, steps),
      outputs: Object.fromEntries(steps.map(({ stage, output }) => [stage, output])),
    });
    return flow;
  }

  /** Keeps later stages of earlier builds: if the target does not reach them again, their effects have to be removed. */
  #withOld(steps: readonly Step[], old: CompletedStages, from: StagePosition): CompletedStages {
    return [...steps, ...old.filter(({ stage }) => this.#model.isFrom(stage, from))];
  }

  /** Marks the current children as outdated before the expand can create others. */
  #outdated({ stage }: StagePosition, { hash }: Context, completed: CompletedStages): CompletedStages {
    if (stage.kind !== "expand") return completed;
    const isSame = ({ output }: Step) => output === childrenOf(hash) && !this.#buildContext.reruns(stage.name);
    return completed.map((step) => (step.stage !== stage.name || isSame(step) ? step : { ...step, output: "none" }));
  }

  #removal(place: StagePosition, { path }: LiveTarget, step: Step): NewJob {
    const work = { build: this.#buildContext.build.key, path, segment: place.segment.index };
    return this.#model.removeJob(place, work, { result: step.result as ResultKey, gone: false });
  }
}

/** Whether builds up to now have this result for the target. When a target goes, its results are marked as gone (`undone`). */
export function hasResult(completed: CompletedStages, stage: string, key: ResultKey): boolean {
  const step = findStep(completed, stage);
  return step?.result === key && step.undone !== true;
}

export function listedTarget(
  { path, id, parent, hash, fingerprint, value }: LiveTarget,
  rev: number,
  { passed, flow }: Pick<ListedTarget, "passed" | "flow">,
): ListedTarget {
  return { path, id, parent, hash, fingerprint, value, rev, passed, flow };
}

function matches({ stage, glob }: StagePosition, { target, id }: LiveTarget, input: unknown): boolean {
  if (glob !== null) return glob.matches(id);
  if (typeof stage.match !== "function") return true;
  const matched: unknown = stage.match(target, input);
  if (!(matched instanceof Promise)) return Boolean(matched);
  matched.catch(() => {});
  throw new HoldfastError(
    "MATCH_INVALID",
    `\`match\` of stage "${stage.name}" returned a promise.`,
    "Return true or false synchronously.",
  );
}
