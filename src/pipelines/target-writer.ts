import { GONE_MARK, type Segment, type Step, type CompletedStages } from "../core/pipelines/work.ts";
import { LeaseLostError } from "../core/text/errors.ts";
import { compareIds, type ResultKey } from "../core/text/ids.ts";
import type { Claimed, NewJob } from "../store/store.ts";
import type { ListedBatch, ListedTarget, NamedArtifact, StoredResult, TargetRow } from "../store/work.ts";
import { type BuildContext, type LiveTarget, TARGET_BATCH_SIZE, listedTarget, StagePlanner } from "./stage-planner.ts";
import type { Model } from "./model.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";

const NO_TARGETS: ReadonlySet<string> = new Set();

export type Found = LiveTarget & { artifacts?: readonly NamedArtifact[] };

/** Receives the targets of a listing: a build writes them, a plan counts them. */
export interface TargetRegister {
  /** `rows` has the stored targets; without it they are read. `cursor` says where the listing continues after them. */
  addTargets(
    segment: Segment,
    found: readonly Found[],
    how?: { rows?: StoredTargets; cursor?: string | undefined },
  ): Promise<void>;
  /** Called when the listing is complete: targets that it did not find are gone. */
  gone(segment: Segment): Promise<void>;
  /** Called when a range was listed again: targets that this build found there earlier and that are not in `there` are gone. */
  goneSince(segment: Segment, there: ReadonlySet<string>, range?: PathRange): Promise<void>;
}

export type StoredTargets = ReadonlyMap<string, TargetRow>;

export interface PathRange {
  after?: string | undefined;
  upTo: string;
}

/** Writes targets in batches, under the lease of the listing or expand. All writes can be repeated after a crash. */
export class TargetWriter implements TargetRegister {
  readonly planner: StagePlanner;
  readonly #buildContext: BuildContext;
  readonly #runtime: PipelineRuntime;
  readonly #lease: Claimed;

  constructor(runtime: PipelineRuntime, buildContext: BuildContext, lease: Claimed) {
    this.#runtime = runtime;
    this.#buildContext = buildContext;
    this.#lease = lease;
    this.planner = new StagePlanner(buildContext, runtime.reader, (parent, completed) => this.#expanded(parent, completed));
  }

  async addTargets(
    segment: Segment,
    found: readonly Found[],
    { rows, cursor }: { rows?: StoredTargets; cursor?: string | undefined } = {},
  ): Promise<void> {
    const stored = rows ?? (await this.#buildContext.rows(segment, pathsOf(found)));
    const listed = await Promise.all(found.map((live) => this.#look(segment, live, stored.get(live.path))));
    const targets = listed.filter((target) => target !== null);
    await this.#write({ segment: segment.index, targets, ...(cursor === undefined ? {} : { cursor }) });
  }

  async gone(segment: Segment): Promise<void> {
    for await (const rows of this.#buildContext.pages(segment, { unseen: this.#buildContext.build.key }))
      await this.#forget(segment, rows);
  }

  async goneSince(segment: Segment, there: ReadonlySet<string>, range?: PathRange): Promise<void> {
    for await (const rows of this.#buildContext.pages(segment, range?.after === undefined ? {} : { after: range.after })) {
      const within = range === undefined ? rows : rows.filter(({ path }) => compareIds(path, range.upTo) <= 0);
      const others = within.filter((row) => this.#isSeen(row) && !there.has(row.path));
      if (others.length > 0) await this.#forget(segment, others);
      if (within.length < rows.length) return;
    }
  }

  async goneBut(segment: Segment, parent: string, there: ReadonlySet<string>): Promise<void> {
    for await (const rows of this.#buildContext.pages(segment, { parent })) {
      const others = rows.filter(({ id }) => !there.has(id));
      if (others.length > 0) await this.#forget(segment, others);
    }
  }

  async retryFailed(round: number, proceed: () => void): Promise<void> {
    const { store, build, model } = this.#buildContext;
    for (let after: ResultKey | 0 = 0; ;) {
      proceed();
      const retries: StoredResult[] = await store.work.results({ retried: build.key, after, limit: TARGET_BATCH_SIZE });
      if (retries.length === 0) return;
      after = (retries.at(-1) as StoredResult).key;
      for (const segment of model.segments) if (segment.round === round) await this.#retry(segment, retries);
    }
  }

  async #retry(segment: Segment, retries: readonly StoredResult[]): Promise<void> {
    // A gather's `by` fails for targets of the segment before it.
    const stages = new Set([...segment.stages, ...(segment.gather === null ? [] : [segment.gather])].map(({ name }) => name));
    const own = retries.filter(({ stage }) => stages.has(stage));
    const paths = [...new Set(own.map(({ path }) => path))];
    const rows: StoredTargets = paths.length === 0 ? new Map() : await this.#buildContext.rows(segment, paths);
    const isNamed = ({ key, path }: StoredResult) => rows.get(path)?.failure === key;
    const failed = own.filter(isNamed).map(({ stage, path }) => ({ stage, row: rows.get(path) as TargetRow }));
    const gone = failed.filter(({ row }) => row.done === GONE_MARK).map(({ row }) => row);
    if (gone.length > 0) await this.#forget(segment, gone);
    const stopped = failed.filter(({ row }) => row.done === null);
    const targets = await Promise.all(stopped.map(({ stage, row }) => this.#from(segment, stage, row)));
    // A failure that its target no longer names is outdated. A failure of the gather may belong to the gather's own segment.
    const retried = own.filter((retry) => retry.stage !== segment.gather?.name || isNamed(retry)).map(({ key }) => key);
    if (retried.length > 0) await this.#write({ segment: segment.index, targets, retried });
  }

  /** Returns the target at the stage that failed, because earlier stages are counted already. */
  async #from(segment: Segment, failed: string, row: TargetRow): Promise<ListedTarget> {
    const live = await this.#runtime.targets.of(row);
    const index = segment.stages.findIndex(({ name }) => name === failed);
    const from = index < 0 ? segment.stages.length : index;
    const open = new Set(segment.stages.slice(from).map(({ name }) => name));
    const completed = row.completed.filter(({ stage }) => !open.has(stage));
    return listedTarget(live, row, await this.planner.plan(live, segment, from, completed, row.completed));
  }

  async #forget(segment: Segment, found: readonly TargetRow[]): Promise<void> {
    const below = segmentBelow(this.#buildContext.model, segment);
    const rows = await this.#withdrawn(segment, found, below !== null);
    // Remove children first: while their parent exists, the next listing repeats this after a crash. The parent is marked as gone
    // by then, so its children are created again if it comes back.
    const parents = new Set<string>();
    for (const { path } of below === null ? [] : rows) {
      await this.goneBut(below as Segment, path, NO_TARGETS);
      if (await hasChildren(this.#buildContext, path, below as Segment)) parents.add(path);
    }
    const own = new Set(segment.stages.map(({ name }) => name));
    const gone = rows.map(({ path, rev, completed }) => {
      const had = completed.filter(({ stage }) => own.has(stage)).map(({ stage }) => stage);
      return { path, rev, had, removals: this.#removals(segment, path, completed), keep: parents.has(path) };
    });
    await this.#write({ segment: segment.index, targets: [], gone });
  }

  /**
   * Marks targets as gone before their removals are planned: those of this build, because a running attempt could still change
   * the row or add children, and parents, whose completed stages name children that are about to be removed.
   */
  async #withdrawn(segment: Segment, found: readonly TargetRow[], areParents: boolean): Promise<TargetRow[]> {
    const others: TargetRow[] = [];
    const paths: string[] = [];
    for (const row of found) {
      if ((areParents || this.#isSeen(row)) && row.done !== GONE_MARK) paths.push(row.path);
      else others.push(row);
    }
    if (paths.length === 0) return others;
    for (;;) {
      const rows = [...(await this.#buildContext.rows(segment, paths)).values()];
      const open = rows.filter(({ done }) => done !== GONE_MARK);
      if (open.length === 0) return [...others, ...rows];
      const gone = open.map(({ path, rev }) => ({ path, rev, removals: [], keep: true }));
      await this.#write({ segment: segment.index, targets: [], gone });
    }
  }

  #isSeen({ seen }: TargetRow): boolean {
    return seen === this.#buildContext.build.key;
  }

  #removals(segment: Segment, path: string, completed: CompletedStages): NewJob[] {
    const own = new Set(segment.stages.filter(({ remove }) => remove !== null).map(({ name }) => name));
    const { model, build } = this.#buildContext;
    return completed
      .filter(({ stage, result }) => own.has(stage) && result !== null)
      .map(({ stage, result }) => {
        const work = { build: build.key, path, segment: segment.index };
        return model.removeJob(model.place(stage), work, { result: result as ResultKey, gone: true });
      });
  }

  async #look(segment: Segment, live: Found, row: TargetRow | undefined): Promise<ListedTarget | null> {
    const isSeen = row !== undefined && this.#isSeen(row);
    if (isSeen && row.done !== GONE_MARK && row.hash === live.hash && row.value.hash === live.value.hash) return null;
    if (row !== undefined && row.fingerprint === live.fingerprint && this.planner.isUnchanged(row, live, segment))
      return listedTarget(live, row, { flow: null, passed: this.planner.unchanged(row, segment) });
    const old = row === undefined ? [] : row.done === GONE_MARK ? row.completed.map(undone) : row.completed;
    const planned = await this.planner.plan(live, segment, 0, live.inherited, old);
    const { artifacts } = live;
    return { ...listedTarget(live, row, planned), ...(artifacts === undefined ? {} : { artifacts }) };
  }

  async #expanded(parent: LiveTarget, completed: CompletedStages): Promise<void> {
    const segment = this.#buildContext.model.segments[parent.segment + 1] as Segment;
    const from = { ...parent, completed };
    for await (const rows of this.#buildContext.pages(segment, { parent: parent.path })) {
      const there = rows.filter(({ done }) => done !== GONE_MARK);
      const found = there.map((row) => this.#runtime.targets.child(row, from));
      await this.addTargets(segment, found, { rows: new Map(there.map((row) => [row.path, row])) });
      // These are removals that an earlier build did not finish.
      const left = rows.filter(({ done }) => done === GONE_MARK);
      if (left.length > 0) await this.#forget(segment, left);
    }
  }

  async #write(batch: Omit<ListedBatch, "build" | "pipeline">): Promise<void> {
    const { store, build, model } = this.#buildContext;
    if (batch.targets.length === 0 && batch.gone === undefined && batch.retried === undefined && batch.cursor === undefined)
      return;
    const fate = await store.work.listed(this.#lease, { ...batch, build: build.key, pipeline: model.name });
    if (fate !== "held") throw new LeaseLostError(this.#lease.id, "listing");
  }
}

export function pathsOf(targets: readonly { path: string }[]): string[] {
  return targets.map(({ path }) => path);
}

/** Marks a step of a target that was gone: the effects of its stages were removed, or will be. */
function undone(step: Step): Step {
  return { ...step, undone: true };
}

export function segmentBelow({ segments }: Model, { index, ends }: Segment): Segment | null {
  return ends === "expand" ? (segments[index + 1] as Segment) : null;
}

export async function hasChildren({ store, model }: BuildContext, parent: string, below: Segment): Promise<boolean> {
  const page = await store.work.targets({ pipeline: model.name, segment: below.index, parent, limit: 1 });
  return page.length > 0;
}
