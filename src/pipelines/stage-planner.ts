import { toJobError } from "../core/jobs/job.ts";
import { type KeptValue, memberHash } from "../core/pipelines/context-hash.ts";
import { groupOf } from "../core/pipelines/stage.ts";
import { childrenOf, type Segment, type Step, stepOf, type CompletedStages } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import type { NewJob } from "../store/store.ts";
import type { Flow, FoundResult, ListedTarget, Passed, TargetRow } from "../store/work.ts";
import { type BuildContext, type Context, contextOf, inputHash, loadInput, type LiveTarget } from "./stage-input.ts";
import type { Reader } from "./values.ts";
import type { Model, StagePosition } from "./model.ts";
import { isChildList } from "./values.ts";

/** How far a target came, and what that means for it. */
export interface PlannedWay {
  flow: Flow;
  passed: Passed[];
}

/**
 * Called for targets whose children are as they were when their parent was last expanded; by a plan, for those that have
 * others now (`list`).
 */
export type OnExpanded = (parent: LiveTarget, completed: CompletedStages, list?: KeptValue) => Promise<void>;

/**
 * Takes targets from stage to stage, as far as there are results for them: past those that do not match, through those
 * that are there already, up to one that has to be run, or to the end of the segment. It writes nothing.
 */
export class StagePlanner {
  readonly #model: Model;
  readonly #buildContext: BuildContext;
  readonly #reader: Reader;
  readonly #onExpanded: OnExpanded;
  readonly #looksOnly: boolean;

  /** `looksOnly`: nothing will run, so no target waits for a removal. */
  constructor(buildContext: BuildContext, reader: Reader, onExpanded: OnExpanded, looksOnly = false) {
    this.#buildContext = buildContext;
    this.#model = buildContext.model;
    this.#reader = reader;
    this.#onExpanded = onExpanded;
    this.#looksOnly = looksOnly;
  }

  /** From the stage of this index on. `old`: what it went through the last time. */
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

  /** What a target that is all as it was has to say: nothing, but how often something was reused. */
  unchanged(row: TargetRow, segment: Segment): Passed[] {
    return segment.stages.map(({ name }) => ({
      stage: name,
      as: stepOf(row.completed, name) === undefined ? "passed" : "cached",
    }));
  }

  /** Whether its last way is still the one it would go. */
  isUnchanged(row: TargetRow, live: LiveTarget, segment: Segment): boolean {
    if (row.done === null || row.hash !== live.hash || row.value.hash !== live.value.hash) return false;
    if (!this.#buildContext.isWhole || segment.ends === "expand") return false;
    if (segment.stages.some(({ name }) => this.#buildContext.reruns(name))) return false;
    return row.done === this.#buildContext.doneMark(segment, live.inherited);
  }

  /** Null: on to the next. */
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
      const before = stepOf(old, stage.name);
      // The target continues when the removal is done; until then its completed stages say what to remove.
      if (before !== undefined && stage.remove !== null && !this.#looksOnly)
        return { to: "work", completed: this.#withOld(steps, old, place), job: this.#removal(place, live, before) };
      planned.passed.push({ stage: stage.name, as: "passed", ...(before === undefined ? {} : { result: null }) });
      return null;
    }
    const context = contextOf(place, live, steps, input);
    // Children are written before their parent's end, so what they inherit must be there by then.
    const waits = stage.kind === "expand" && steps.some(({ result }) => result === null);
    const isExpand = stage.kind === "expand";
    const found = waits ? null : await this.lookUp(place, context, old);
    const other = found === null && isExpand && this.#looksOnly ? await this.lookUpChildren(place, context, old) : null;
    if (found === null && other === null) {
      if (!needed && !place.declared.empty) input = await loadInput(live, steps, reader);
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
   * What there is for this context; of a stage that is to be run anew, only what this build has made. Of an expand there is
   * something only if the target's children are those: others may have been made since, or only those of its copy; they are
   * made by a job of their own then (`lookUpChildren`). And what a stage with `remove` does outside is there for this target only if that was the last that it did for it.
   */
  async lookUp({ stage }: StagePosition, { hash, parts }: Context, old: CompletedStages): Promise<FoundResult | null> {
    if (stage.kind === "expand" && stepOf(old, stage.name)?.output !== childrenOf(hash)) return null;
    const found = await this.#buildContext.lookUp(stage, hash, parts.target.id);
    const isOutside = stage.kind !== "expand" && stage.remove !== null;
    const before = stepOf(old, stage.name);
    return isOutside && (before?.result !== found?.key || before?.undone === true) ? null : found;
  }

  /**
   * What an expand has yielded in this context, whichever children its target has by now: they can be made of that without
   * running it. One with `remove` has done something else outside since, and is run again. `isOwn`: it was just run.
   */
  async lookUpChildren(
    { stage }: StagePosition,
    { hash, parts }: Context,
    old: CompletedStages,
    isOwn = false,
  ): Promise<FoundResult | null> {
    const areThere = stepOf(old, stage.name)?.output === childrenOf(hash);
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

  /** With what it went through the last time from here on: if it does not come there again, that has to be removed. */
  #withOld(steps: readonly Step[], old: CompletedStages, from: StagePosition): CompletedStages {
    return [...steps, ...old.filter(({ stage }) => this.#model.isFrom(stage, from))];
  }

  /** From the moment when others may be made, children are not known to be those of their context any more. */
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
  const step = stepOf(completed, stage);
  return step?.result === key && step.undone !== true;
}

/** As the store writes it. */
export function listedTarget(live: LiveTarget, rev: number, planned: PlannedWay): ListedTarget {
  const { path, id, parent, hash, fingerprint, value } = live;
  const { passed, flow } = planned;
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
