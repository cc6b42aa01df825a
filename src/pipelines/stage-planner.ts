import { toJobError } from "../core/jobs/job.ts";
import {
  type StoredValue,
  memberHash,
  type ContextParts,
  type Fingerprint,
  NO_VALUE,
  type ValueHash,
  contextHash,
  childrenOf,
  type Segment,
  type Step,
  findStep,
  type CompletedStages,
  doneMark,
} from "../core/pipelines/work.ts";
import { groupOf, type StageDefinition, stageKey } from "../core/pipelines/stage.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import type { Flow, FoundResult, ListedTarget, Passed, TargetRow, ResultContext, MemberPage, TargetPage } from "../store/work.ts";
import { type Reader, isChildList, Batcher } from "./values.ts";
import type { Model, StagePosition, BuildSettings } from "./model.ts";
import type { Target } from "../core/pipelines/source.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store, WorkStore } from "../store/store.ts";

/** Where a target goes next, and the stages that it passed without running them. */
export interface PlannedWay {
  flow: Flow;
  passed: Passed[];
}

/** Called when an expand's children are reused. A plan also passes `list`: children that would replace them. */
type OnExpanded = (parent: LiveTarget, completed: CompletedStages, list?: StoredValue) => Promise<void>;

/** Advances a target past stages without a match and through stages with results, to one that has to run. Writes nothing. */
export class StagePlanner {
  readonly #model: Model;
  readonly #buildContext: BuildContext;
  readonly #reader: Reader;
  readonly #onExpanded: OnExpanded;
  readonly #looksOnly: boolean;

  /** `looksOnly` is set for a plan, where no target waits for a removal. */
  constructor(buildContext: BuildContext, reader: Reader, onExpanded: OnExpanded, looksOnly = false) {
    this.#buildContext = buildContext;
    this.#model = buildContext.model;
    this.#reader = reader;
    this.#onExpanded = onExpanded;
    this.#looksOnly = looksOnly;
  }

  /** Plans the way of a target. `old` has the stages that the target completed in earlier builds. */
  async plan(
    live: LiveTarget,
    segment: Segment,
    from: number,
    completed: CompletedStages,
    old: CompletedStages,
    reader = this.#reader,
  ): Promise<PlannedWay> {
    const steps: Step[] = [...completed];
    const passed: Passed[] = [];
    for (const stage of segment.stages.slice(from)) {
      const place = this.#model.place(stage.name);
      if (!this.#buildContext.includes(place)) {
        const flow: Flow = { to: "end", completed: this.#withOld(steps, old, place), done: null, group: null, member: null };
        return { flow, passed };
      }
      try {
        const flow = await this.#step(live, place, steps, old, passed, reader);
        if (flow !== null) return { flow, passed };
      } catch (error) {
        const reached = this.#withOld(steps, old, place);
        return { flow: { to: "failed", completed: reached, stage: stage.name, hash: "", error: toJobError(error) }, passed };
      }
    }
    return { flow: await this.#end(live, segment, steps, reader), passed };
  }

  /** Returns the stages passed by a target for which `isUnchanged` holds: then no stage has a function as its `match`. */
  unchanged({ id }: TargetRow, segment: Segment): Passed[] {
    return segment.stages.map(({ name }) => {
      const { glob } = this.#model.place(name);
      return { stage: name, as: glob === null || glob.matches(id) ? "cached" : "passed" };
    });
  }

  isUnchanged(row: TargetRow, live: LiveTarget, segment: Segment): boolean {
    if (row.done === null || row.hash !== live.hash || row.value.hash !== live.value.hash) return false;
    if (!this.#buildContext.isWhole || segment.ends === "expand") return false;
    if (segment.stages.some(({ name }) => this.#buildContext.reruns(name))) return false;
    return row.done === this.#buildContext.doneMark(segment, live.inherited);
  }

  async #step(
    live: LiveTarget,
    place: StagePosition,
    steps: Step[],
    old: CompletedStages,
    passed: Passed[],
    reader: Reader,
  ): Promise<Flow | null> {
    const { stage } = place;
    const needed = typeof stage.match === "function" || typeof stage.key === "function";
    let input = needed ? await loadInput(live, steps, reader) : undefined;
    if (!matches(place, live, input)) {
      const before = findStep(old, stage.name);
      // The target continues after the removal; until then its completed stages name what to remove.
      if (before !== undefined && stage.remove !== null && !this.#looksOnly) {
        const work = { build: this.#buildContext.build.key, path: live.path, segment: place.segment.index };
        const job = this.#model.removeJob(place, work, { result: before.result as ResultKey, gone: false });
        return { to: "work", completed: this.#withOld(steps, old, place), job };
      }
      passed.push({ stage: stage.name, as: "passed", ...(before === undefined ? {} : { result: null }) });
      return null;
    }
    const context = contextOf(place, live, steps, input);
    const isExpand = stage.kind === "expand";
    // Children are written before their parent settles, so the results that they inherit must be committed.
    const waits = isExpand && steps.some(({ result }) => result === null);
    const found = waits ? null : await this.lookUp(place, context, old);
    const other = found === null && isExpand && this.#looksOnly ? await this.lookUpChildren(place, context, old) : null;
    if (found === null && other === null) {
      if (!needed && !place.declared.isEmpty) input = await loadInput(live, steps, reader);
      const work = { build: this.#buildContext.build.key, path: live.path, context: context.hash };
      const completed = this.#outdated(place, context, this.#withOld(steps, old, place));
      return { to: "work", completed, job: this.#model.stageJob(place, work, input) };
    }
    const { key, output } = (found ?? other) as FoundResult;
    passed.push({ stage: stage.name, as: "cached", ...(hasResult(old, stage.name, key) ? {} : { result: key }) });
    if (isExpand) await this.#onExpanded(live, [...steps], other?.output);
    steps.push({ stage: stage.name, result: key, output: isExpand ? childrenOf(context.hash) : output.hash });
    return null;
  }

  /** Finds a result. The current children of an expand must come from it; with `remove`, it must be this target's last effect. */
  async lookUp({ stage }: StagePosition, { hash, parts }: Context, old: CompletedStages): Promise<FoundResult | null> {
    if (stage.kind === "expand" && !hasChildrenOf(old, stage.name, hash)) return null;
    const found = await this.#buildContext.lookUp(stage, hash, parts.target.id);
    const isOutside = stage.kind !== "expand" && stage.remove !== null;
    const before = findStep(old, stage.name);
    return isOutside && (before?.result !== found?.key || before?.undone === true) ? null : found;
  }

  /** Finds children to recreate without a run: with `remove` only those of the last effect, or of this attempt (`isOwn`). */
  async lookUpChildren(
    { stage }: StagePosition,
    { hash, parts }: Context,
    old: CompletedStages,
    isOwn = false,
  ): Promise<FoundResult | null> {
    if (stage.remove !== null && !hasChildrenOf(old, stage.name, hash) && !isOwn) return null;
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

  /** Keeps later stages of earlier builds, whose effects are removed if the target does not reach them again. */
  #withOld(steps: readonly Step[], old: CompletedStages, from: StagePosition): CompletedStages {
    return [...steps, ...old.filter(({ stage }) => this.#model.isFrom(stage, from))];
  }

  /** Marks the current children as outdated before the expand can create others. */
  #outdated({ stage }: StagePosition, { hash }: Context, completed: CompletedStages): CompletedStages {
    if (stage.kind !== "expand") return completed;
    const isSame = ({ output }: Step) => output === childrenOf(hash) && !this.#buildContext.reruns(stage.name);
    return completed.map((step) => (step.stage !== stage.name || isSame(step) ? step : { ...step, output: "none" }));
  }
}

/** Whether builds up to now have this result for the target. If the target goes, its results are marked as gone (`undone`). */
export function hasResult(completed: CompletedStages, stage: string, key: ResultKey): boolean {
  const step = findStep(completed, stage);
  return step?.result === key && step.undone !== true;
}

function hasChildrenOf(completed: CompletedStages, expand: string, hash: string): boolean {
  const step = findStep(completed, expand);
  return step?.output === childrenOf(hash) && step.undone !== true;
}

/** Returns a target as it is written. `row` is the target as it was read, or undefined if it is new. */
export function listedTarget(
  { path, id, parent, hash, fingerprint, value }: LiveTarget,
  row: TargetRow | undefined,
  { passed, flow }: Pick<ListedTarget, "passed" | "flow">,
): ListedTarget {
  const isStored = row?.hash === hash && row.fingerprint === fingerprint && row.value.hash === value.hash;
  return { path, id, parent, hash, fingerprint, value, rev: row?.rev ?? 0, isStored, passed, flow };
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

const LOOKUP_BATCH_SIZE = 500;
export const TARGET_BATCH_SIZE = 500;

export interface LiveTarget {
  readonly segment: number;
  readonly path: string;
  readonly id: string;
  readonly parent: string | null;
  readonly hash: string;
  readonly fingerprint: string | null;
  readonly value: StoredValue;
  /** The stages that its parents completed. */
  readonly inherited: CompletedStages;
  /** What the pipeline's functions receive. */
  readonly target: Target;
}

export interface Parent extends LiveTarget {
  readonly completed: CompletedStages;
}

export class LiveTargets {
  readonly #model: Model;
  readonly #store: WorkStore;
  readonly #claimFile: (id: string, fingerprint: Fingerprint) => Target;

  constructor(model: Model, store: WorkStore, claimFile: (id: string, fingerprint: Fingerprint) => Target) {
    this.#model = model;
    this.#store = store;
    this.#claimFile = claimFile;
  }

  file(id: string, fingerprint: Fingerprint, text = JSON.stringify(fingerprint)): LiveTarget {
    const { hash } = fingerprint;
    const target = this.#claimFile(id, fingerprint);
    return { segment: 0, path: id, id, parent: null, hash, fingerprint: text, value: NO_VALUE, inherited: [], target };
  }

  plain({ index }: Segment, id: string, hash: string, value: StoredValue): LiveTarget {
    const target = Object.freeze({ id, hash });
    return { segment: index, path: id, id, parent: null, hash, fingerprint: null, value, inherited: [], target };
  }

  child(
    { segment, path, id, hash, value }: Pick<TargetRow, "segment" | "path" | "id" | "hash" | "value">,
    parent: Parent,
  ): LiveTarget {
    const target = Object.freeze({ id, hash, parent: parent.target });
    // Children do not inherit the expand itself.
    const inherited = parent.completed.filter(({ stage }) => !this.#model.isExpand(stage));
    return { segment, path, id, parent: parent.path, hash, fingerprint: null, value, inherited, target };
  }

  async of(row: TargetRow): Promise<Parent> {
    return { ...(await this.#live(row)), completed: row.completed };
  }

  async #live(row: TargetRow): Promise<LiveTarget> {
    if (row.parent !== null) {
      const [above] = await this.#store.targets({ pipeline: this.#model.name, segment: row.segment - 1, paths: [row.parent] });
      if (above !== undefined) return this.child(row, await this.of(above));
    }
    if (row.fingerprint !== null) return this.file(row.id, JSON.parse(row.fingerprint) as Fingerprint, row.fingerprint);
    return this.plain(this.#model.segments[row.segment] as Segment, row.id, row.hash, row.value);
  }
}

export async function* targetPages(store: WorkStore, query: TargetPage | MemberPage): AsyncGenerator<TargetRow[]> {
  for (let page = query; ;) {
    const rows = await store.targets(page);
    const last = rows.at(-1);
    if (last === undefined) return;
    yield rows;
    page = "members" in page ? { ...page, after: { group: last.group, path: last.path } } : { ...page, after: last.path };
  }
}

/** A stage's input, and the hash that decides whether a result can be reused. */
export interface Context {
  hash: string;
  parts: ContextParts;
  input: unknown;
}

function inputHash({ value, inherited }: LiveTarget, completed: CompletedStages): ValueHash {
  return lastStep(completed, inherited)?.output ?? value.hash;
}

export async function loadInput(live: LiveTarget, completed: CompletedStages, reader: Reader): Promise<unknown> {
  const step = lastStep(completed, live.inherited);
  if (step === undefined) return reader.value(live.value);
  return step.output === "none" ? undefined : reader.output(step);
}

export function contextOf({ stage }: StagePosition, live: LiveTarget, completed: CompletedStages, input: unknown): Context {
  const parts: ContextParts = {
    stage: stage.name,
    version: stage.version,
    key: stageKey(stage, { target: live.target, input }),
    input: inputHash(live, completed),
    uses: Object.fromEntries(stage.uses.map((name) => [name, findStep(completed, name)?.output ?? null])),
    target: { id: live.path, hash: live.hash },
    reuse: stage.reuse,
  };
  return { parts, hash: contextHash(parts), input };
}

function lastStep(completed: CompletedStages, inherited: CompletedStages): Step | undefined {
  return completed.length > inherited.length ? completed.at(-1) : undefined;
}

export class BuildContext {
  readonly store: Store;
  readonly model: Model;
  readonly build: Pick<BuildRow, "key" | "id" | "budget">;
  readonly settings: BuildSettings;
  readonly #last: number;
  readonly #rerun: ReadonlySet<string>;
  readonly #found: Batcher<ResultContext, FoundResult | null>;
  readonly #marks = new Map<number, string | null>();

  constructor(store: Store, model: Model, build: BuildRow) {
    this.store = store;
    this.model = model;
    this.build = build;
    this.settings = JSON.parse(build.options) as BuildSettings;
    const { stages } = this.settings.only;
    this.#last = stages.length === 0 ? Number.POSITIVE_INFINITY : Math.max(...stages.map((name) => model.place(name).position));
    this.#rerun = new Set(this.settings.rerun);
    this.#found = new Batcher(LOOKUP_BATCH_SIZE, (keys) => store.work.lookUp(model.name, keys));
  }

  /** Finds the newest success: a rerun stage needs one of this build, a stage with `remove` one of this target. */
  lookUp({ name: stage, reuse, remove }: StageDefinition, hash: string, path: string): Promise<FoundResult | null> {
    const context = reuse === "bytes" && remove === null ? { stage, hash } : { stage, hash, path };
    return this.#found.get(this.reruns(stage) ? { ...context, build: this.build.key } : context);
  }

  async rows({ index }: Segment, paths: readonly string[]): Promise<Map<string, TargetRow>> {
    const rows = await this.store.work.targets({ pipeline: this.model.name, segment: index, paths });
    return new Map(rows.map((row) => [row.path, row]));
  }

  pages({ index }: Segment, which: Pick<TargetPage, "parent" | "unseen" | "after">): AsyncIterable<TargetRow[]> {
    return targetPages(this.store.work, { ...which, pipeline: this.model.name, segment: index, limit: TARGET_BATCH_SIZE });
  }

  /** Caches marks of targets that inherit nothing, which are nearly all. */
  doneMark(segment: Segment, inherited: CompletedStages): string | null {
    if (inherited.length > 0) return doneMark(segment, inherited);
    let mark = this.#marks.get(segment.index);
    if (mark === undefined) this.#marks.set(segment.index, (mark = doneMark(segment, inherited)));
    return mark;
  }

  get isWhole(): boolean {
    return this.#last === Number.POSITIVE_INFINITY;
  }

  includes({ position }: StagePosition): boolean {
    return position <= this.#last;
  }

  reruns(stage: string): boolean {
    return this.#rerun.has(stage);
  }
}
