import { type Amount, type Cost, NO_COST, plus, toCost } from "../core/pipelines/budget.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { editedStages, type PipelineDescription } from "../core/pipelines/pipeline.ts";
import { gatherSegment, GONE_MARK, type Segment, inlineValue, type StoredValue } from "../core/pipelines/work.ts";
import { fixedEstimate } from "../core/pipelines/stage.ts";
import { BudgetReserver, type PipelineRuntime } from "./pipeline-runtime.ts";
import { Values } from "./values.ts";
import { StagePlanner, BuildContext, loadInput, type Parent, type LiveTarget } from "./stage-planner.ts";
import { describeSkipped, type SkippedFile } from "./sources/root.ts";
import { type BuildRow, newestBuild } from "../store/builds.ts";
import type { TargetRow } from "../store/work.ts";
import { type Found, pathsOf, type StoredTargets, type TargetRegister } from "./target-writer.ts";
import { childrenIn } from "./stage-attempt.ts";
import { SourceScanner } from "./source-scanner.ts";
import type { CheckedOptions, Model, StagePosition } from "./model.ts";

/** What a build would run, reuse and cost now. */
export interface Plan {
  /** `unknown` counts targets behind a stage that has to run first. */
  stages: Record<string, { run: number; cached: number; unknown: number } & Estimated>;
  removed: number;
  estimate: Cost;
  upperBound?: true;
  incomplete?: true;
  warnings: string[];
}

export interface Estimated {
  /** Empty if the cost is unknown. */
  estimate: Cost;
  /** The cost is at most the estimate: a constant for each target that may run. */
  upperBound?: true;
  /** Part of the work has an unknown cost, which the estimate leaves out. */
  incomplete?: true;
}

interface Counted {
  run: number;
  cached: number;
  unknown: number;
  estimate: Amount;
  priced: number;
  unpriced: number;
}

const FIRST = 10;

/** Lists targets as a build would, and writes nothing. */
export async function plan(runtime: PipelineRuntime, options: CheckedOptions, signal: AbortSignal): Promise<Plan> {
  for (const { stage } of runtime.model.places) fixedEstimate(stage);
  const newest = await newestBuild(runtime.engine.store.builds, runtime.model.name);
  const skipped: string[] = [];
  const { buildContext, counter, scanner } = dryRun(runtime, options, signal, (file) => skipped.push(describeSkipped(file)));
  await scanner.source(undefined);
  for (let round = 1; ; round++) {
    const segment = gatherSegment(runtime.model.segments, round);
    const gather = segment?.stages[0];
    if (segment === undefined || gather === undefined || !buildContext.includes(runtime.model.place(gather.name))) break;
    // The members of a group are known only if nothing has to run before.
    if (counter.isSettled) await scanner.groups(round, 0);
    else await counter.unknownGroups(segment);
  }
  return counter.plan([...warningsOf(runtime.model, newest), ...skipped]);
}

/** Asks for the estimates of the first targets, so that an invalid estimate is rejected before a build exists. */
export async function askFirst(runtime: PipelineRuntime, options: CheckedOptions, signal: AbortSignal): Promise<void> {
  for (const { stage } of runtime.model.places) fixedEstimate(stage);
  if ((runtime.model.segments[0] as Segment).stages.every(({ estimate }) => estimate === null)) return;
  try {
    await dryRun(runtime, options, signal).scanner.first(FIRST);
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof HoldfastError && error.code === "COST_INVALID") throw error;
  }
}

function dryRun(
  runtime: PipelineRuntime,
  options: CheckedOptions,
  signal: AbortSignal,
  onSkipped: (file: SkippedFile) => void = () => {},
) {
  const { model, engine } = runtime;
  const { settings, budget } = options;
  const row = { key: 0, id: "", hash: model.hash, options: JSON.stringify(settings), budget } as unknown as BuildRow;
  const buildContext = new BuildContext(engine.store, model, row);
  const counter = new Counter(runtime, buildContext);
  const values = new DryValues(runtime.artifacts);
  const scanner = new SourceScanner({ runtime, buildContext, register: counter, values, signal, dry: true, onSkipped });
  return { buildContext, counter, scanner };
}

/** Keeps large values in memory, since a plan stores nothing. */
class DryValues extends Values {
  override async keepText(text: string): Promise<StoredValue> {
    return inlineValue(text);
  }
}

class Counter implements TargetRegister {
  readonly #runtime: PipelineRuntime;
  readonly #buildContext: BuildContext;
  readonly #planner: StagePlanner;
  /** A separate reserver, so that it reads current costs. */
  readonly #budget: BudgetReserver;
  readonly #stages: Map<string, Counted>;
  readonly #fixed: Map<string, Amount>;
  #known = 0;
  #removed = 0;

  constructor(runtime: PipelineRuntime, buildContext: BuildContext) {
    this.#runtime = runtime;
    this.#buildContext = buildContext;
    this.#planner = new StagePlanner(
      buildContext,
      runtime.reader,
      (parent, completed, list) => this.#children({ ...parent, completed }, list),
      true,
    );
    this.#budget = new BudgetReserver(runtime.engine, runtime.model.name);
    this.#stages = new Map(
      [...runtime.model.places].map(({ stage }) => [
        stage.name,
        { run: 0, cached: 0, unknown: 0, estimate: NO_COST, priced: 0, unpriced: 0 },
      ]),
    );
    this.#fixed = new Map(
      [...runtime.model.places].flatMap(({ stage }) => {
        const fixed = fixedEstimate(stage);
        return fixed === null ? [] : [[stage.name, fixed] as const];
      }),
    );
  }

  get isSettled(): boolean {
    return (
      this.#known === this.#found &&
      [...this.#stages.values()].every(({ run, unknown }) => run + unknown === 0) &&
      this.#removed === 0
    );
  }

  #found = 0;

  async addTargets(segment: Segment, found: readonly Found[], { rows }: { rows?: StoredTargets } = {}): Promise<void> {
    const stored = rows ?? (await this.#buildContext.rows(segment, pathsOf(found)));
    if (segment.from === "source") {
      this.#found += found.length;
      this.#known += found.filter(({ path }) => stored.has(path)).length;
    }
    await Promise.all(found.map((live) => this.#count(segment, live, stored.get(live.path))));
  }

  async gone(segment: Segment): Promise<void> {
    if (segment.from !== "source") return;
    this.#removed = (await this.#runtime.engine.store.work.countTargets(this.#runtime.model.name, segment.index)) - this.#known;
  }

  async goneSince(): Promise<void> {}

  /** Counts unknown groups. A gather without `by` has one group; how many groups another gather will have is unknown. */
  async unknownGroups(segment: Segment): Promise<void> {
    await this.#unknown(segment.stages, 1, segment.stages[0]?.by === null);
    await this.#unknownChildren(segment, null);
  }

  plan(warnings: string[]): Plan {
    const total = { estimate: NO_COST, priced: 0, unpriced: 0 };
    let isBound = false;
    const stages: Plan["stages"] = {};
    for (const [name, counted] of this.#stages) {
      const { run, cached, unknown, estimate, priced, unpriced } = counted;
      const isFixed = this.#fixed.has(name) && priced > 0;
      stages[name] = { run, cached, unknown, ...estimated(counted, isFixed) };
      total.estimate = plus(total.estimate, estimate);
      total.priced += priced;
      total.unpriced += unpriced;
      isBound ||= isFixed;
    }
    return { stages, removed: this.#removed, ...estimated(total, isBound), warnings };
  }

  async #count(segment: Segment, live: LiveTarget, row: TargetRow | undefined): Promise<void> {
    if (row !== undefined && this.#planner.isUnchanged(row, live, segment)) {
      for (const { stage, as } of this.#planner.unchanged(row, segment)) if (as === "cached") this.#of(stage).cached++;
      return;
    }
    const { flow, passed } = await this.#planner.plan(live, segment, 0, live.inherited, row?.completed ?? []);
    for (const { stage, as } of passed) if (as === "cached") this.#of(stage).cached++;
    if (flow.to === "end") return;
    const name = flow.to === "work" ? flow.job.work?.stage : flow.stage;
    const place = this.#runtime.model.place(name as string);
    const counted = this.#of(place.stage.name);
    counted.run++;
    // Await before the addition, because other targets are counted concurrently.
    const amount = flow.to === "work" ? await this.#estimate(place, live, flow.completed) : NO_COST;
    price(counted, amount, 1);
    await this.#unknown(segment.stages.slice(place.index + 1), 1);
    await this.#unknownChildren(segment, live.path);
  }

  async #estimate(place: StagePosition, live: LiveTarget, completed: Parent["completed"]): Promise<Amount | null> {
    const before = completed.filter(({ stage }) => !this.#runtime.model.isFrom(stage, place));
    const input = place.stage.estimate === null ? undefined : await loadInput(live, before, this.#runtime.reader);
    return this.#budget.knownEstimate(place, { target: live.target, input });
  }

  /** Prices targets by fixed estimates, else by the mean of past attempts. `isCounted`: there are at most `many` targets. */
  async #unknown(stages: Segment["stages"], many: number, isCounted = true): Promise<void> {
    for (const stage of stages) {
      if (!this.#buildContext.includes(this.#runtime.model.place(stage.name))) return;
      const counted = this.#of(stage.name);
      const amount = isCounted ? (this.#fixed.get(stage.name) ?? (await this.#budget.mean(stage.name))) : null;
      counted.unknown += many;
      price(counted, amount, many);
    }
  }

  /** Assumes as many children as in the last build, or one. */
  async #unknownChildren(segment: Segment, parent: string | null): Promise<void> {
    if (segment.ends !== "expand") return;
    const below = this.#runtime.model.segments[segment.index + 1] as Segment;
    let known = 0;
    for await (const rows of parent === null ? [] : this.#below(below, parent)) {
      known += rows.length;
      for (const { path } of rows) await this.#unknownChildren(below, path);
    }
    await this.#unknown(below.stages, Math.max(1, known), known > 0);
    if (known === 0) await this.#unknownChildren(below, parent);
  }

  async #children(parent: Parent, list: StoredValue | undefined): Promise<void> {
    const segment = this.#runtime.model.segments[parent.segment + 1] as Segment;
    if (list !== undefined) {
      const values = new DryValues(this.#runtime.artifacts);
      for await (const found of childrenIn(list, parent, this.#runtime, values)) await this.addTargets(segment, found);
      return;
    }
    for await (const rows of this.#below(segment, parent.path)) {
      const found = rows.map((row) => this.#runtime.targets.child(row, parent));
      await this.addTargets(segment, found, { rows: new Map(rows.map((row) => [row.path, row])) });
    }
  }

  async *#below(segment: Segment, parent: string): AsyncIterable<TargetRow[]> {
    for await (const rows of this.#buildContext.pages(segment, { parent })) yield rows.filter(({ done }) => done !== GONE_MARK);
  }

  #of(stage: string): Counted {
    return this.#stages.get(stage) as Counted;
  }
}

function price(counted: Counted, amount: Amount | null, many: number): void {
  if (amount === null) return void (counted.unpriced += many);
  counted.priced += many;
  counted.estimate = plus(counted.estimate, { micros: amount.micros * many, tokens: amount.tokens * many });
}

function estimated({ estimate, priced, unpriced }: Omit<Counted, "run" | "cached" | "unknown">, isBound: boolean): Estimated {
  const isUnknown = priced === 0 && unpriced > 0;
  return {
    estimate: isUnknown ? {} : toCost(estimate),
    ...(isBound && unpriced === 0 ? { upperBound: true } : {}),
    ...(unpriced > 0 ? { incomplete: true } : {}),
  };
}

export function warningsOf({ description }: Model, newest: BuildRow | null): string[] {
  const warnings: string[] = [];
  if (newest !== null) {
    const before = JSON.parse(newest.description) as PipelineDescription;
    for (const stage of editedStages(before, description)) {
      warnings.push(
        `The code of stage "${stage}" was edited, and its version was not raised: what it has made so far is reused.`,
      );
    }
  }
  return warnings;
}
