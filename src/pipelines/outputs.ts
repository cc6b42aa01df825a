import { fromBudget, toCost } from "../core/pipelines/budget.ts";
import { type Build, type Difference, type Why, explainRun } from "../core/pipelines/build-view.ts";
import { hasEnded, reasonText } from "../core/pipelines/build.ts";
import { changedMembers, type ContextParts, GONE_MARK, pathText, segmentsOf } from "../core/pipelines/work.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { didYouMean, Nearest } from "../core/text/options.ts";
import { editedStages, type PipelineDescription } from "../core/pipelines/pipeline.ts";
import { readMembers } from "./stage-attempt.ts";
import { targetPages } from "./stage-planner.ts";
import type { Values } from "./values.ts";
import { buildById, type BuildRow } from "../store/builds.ts";
import type { Store, WorkStore } from "../store/store.ts";
import { resultOf, type StoredResult } from "../store/work.ts";
import type { BuildSettings } from "./model.ts";

const PAGE = 200;

interface Output {
  target: string;
  output: unknown;
}

export class Outputs {
  readonly #store: Store;
  readonly #values: Values;

  constructor(store: Store, values: Values) {
    this.#store = store;
    this.#values = values;
  }

  async one(build: BuildRow, stage: string, target?: string): Promise<unknown> {
    const kind = kindOf(build, stage);
    if (target !== undefined && kind !== "expand") {
      const exact = await resultOf(this.#store.work, build.id, stage, target);
      if (exact !== null) return this.#load(exact, stage);
    }
    const found: (() => Promise<unknown>)[] = [];
    for await (const { path, id, load } of this.#each(build, stage, kind)) {
      if (target === undefined || id === target || pathText(path) === target) found.push(load);
      if (found.length > 1) break;
    }
    const [only] = found;
    if (only === undefined) throw noOutput(build.id, stage, target);
    if (found.length > 1) throw severalOutputs(stage, target);
    return only();
  }

  async *all(build: BuildRow, stage: string): AsyncIterable<Output> {
    for await (const { id, load } of this.#each(build, stage, kindOf(build, stage))) {
      yield { target: id, output: await load() };
    }
  }

  async *#each(
    build: BuildRow,
    stage: string,
    kind: string,
  ): AsyncIterable<{ path: string; id: string; load: () => Promise<unknown> }> {
    const { work } = this.#store;
    if (kind !== "expand") {
      for await (const results of resultPages(work, build.id, stage))
        for (const result of results) yield { path: result.path, id: result.target, load: () => this.#load(result, stage) };
      return;
    }
    const above = segmentsOf(described(build).stages).findIndex(({ stages }) => stages.at(-1)?.name === stage);
    const children = { pipeline: build.pipeline, segment: above + 1, limit: PAGE };
    for await (const rows of targetPages(work, children))
      for (const { path, id, value, done } of rows)
        if (done !== GONE_MARK) yield { path, id, load: () => this.#values.load(value) };
  }

  async #load(result: StoredResult, stage: string): Promise<unknown> {
    if (result.state !== "FAILED") return this.#values.load(result.output);
    throw new HoldfastError(
      "TARGET_FAILED",
      `Stage "${stage}" failed for ${JSON.stringify(pathText(result.path))}: ${result.error?.message ?? "unknown"}`,
      "Correct the cause and start a new build, which reuses all results.",
    );
  }
}

export async function* resultPages(work: WorkStore, build: string, stage: string): AsyncGenerator<StoredResult[]> {
  for (let after: string | undefined; ;) {
    const page = await work.results({ build, stage, limit: PAGE, ...(after === undefined ? {} : { after }) });
    yield page;
    after = page.at(-1)?.path;
    if (after === undefined) return;
  }
}

function kindOf(build: BuildRow, stage: string): string {
  const found = described(build).stages.find(({ name }) => name === stage);
  if (found === undefined) throw unknownStage(build, stage);
  return found.kind;
}

export function unknownStage(build: BuildRow, stage: string): HoldfastError {
  const names = described(build).stages.map(({ name }) => name);
  return new HoldfastError(
    "STAGE_UNKNOWN",
    `Build ${build.id} has no stage "${stage}".`,
    `${didYouMean(stage, names)}Its stages are ${names.join(", ") || "none"}.`,
  );
}

function noOutput(build: string, stage: string, target: string | undefined): HoldfastError {
  const what = target === undefined ? "" : ` for ${JSON.stringify(target)}`;
  return new HoldfastError(
    "NO_SUCH_OUTPUT",
    `Build ${build} has no output of stage "${stage}"${what}.`,
    "Call outputs(stage) to see the outputs. A target that failed or that the stage does not match has none.",
  );
}

function severalOutputs(stage: string, target: string | undefined): HoldfastError {
  if (target === undefined) {
    return new HoldfastError(
      "TARGET_NEEDED",
      `Stage "${stage}" has outputs of several targets.`,
      "Give the id of the target whose output you want.",
    );
  }
  return new HoldfastError(
    "TARGET_AMBIGUOUS",
    `Stage "${stage}" has several targets ${JSON.stringify(target)}, of different parents.`,
    "Give the parent's id, a slash, and the target's: \"parent/target\".",
  );
}

export async function explainBuild(store: Store, build: BuildRow, stage: string, target: string): Promise<Why> {
  const nearest = new Nearest(target);
  const after =
    (await resultOf(store.work, build.id, stage, target)) ?? (await resultNamed(store, build, stage, target, nearest));
  if (after === null) throw noResult(build, stage, target, nearest.found);
  const ran = after.build === build.id && after.state !== "REUSED";
  const before = ran ? await resultOf(store.work, build.id, stage, after.path, { before: true }) : after;
  return explainRun({
    ran,
    before: partsOf(before),
    after: partsOf(after) ?? NO_PARTS,
    members: await changesOf(before, after),
    forced: (JSON.parse(build.options) as BuildSettings).rerun.includes(stage),
    failedBefore: before?.state === "FAILED",
    edited: await isEdited(store, build, before, stage),
  });
}

function noResult(build: BuildRow, stage: string, target: string, near: readonly string[]): HoldfastError {
  const stages = described(build).stages.map(({ name }) => name);
  const message = `Build ${build.id} has no result of stage "${stage}" for ${JSON.stringify(target)}.`;
  if (!stages.includes(stage)) {
    const nearest = new Nearest(stage, 1);
    for (const name of stages) nearest.offer(name);
    const [meant] = nearest.found;
    const hint = `${meant === undefined ? "" : `Did you mean stage "${meant}"? `}Stages: ${stages.join(", ")}.`;
    return new HoldfastError("NO_SUCH_OUTPUT", message, hint);
  }
  const hint =
    near.length > 0
      ? `Did you mean ${near.map((one) => JSON.stringify(one)).join(" or ")}?`
      : "Check the target's id and the build's errors: the target may have failed earlier, or `match` skipped it.";
  return new HoldfastError("NO_SUCH_OUTPUT", message, hint);
}

/** Finds a child's result by its own id or by its full path. `nearest` receives all other names. */
async function resultNamed(
  store: Store,
  build: BuildRow,
  stage: string,
  target: string,
  nearest: Nearest,
): Promise<StoredResult | null> {
  const isIt = (one: StoredResult) => one.stage === stage && (one.target === target || pathText(one.path) === target);
  const found = (await store.work.results({ build: build.id, failed: true, limit: FAILURES })).filter(isIt);
  for await (const page of resultPages(store.work, build.id, stage)) {
    found.push(...page.filter(isIt));
    for (const { path } of page) nearest.offer(pathText(path));
    if (found.length > 1) break;
  }
  if (found.length > 1) throw severalOutputs(stage, target);
  return found[0] ?? null;
}

const FAILURES = 1_000;
const NO_PARTS: ContextParts = {
  stage: "",
  version: 0,
  key: null,
  input: "none",
  uses: {},
  target: { id: "", hash: "" },
  reuse: "target",
};

async function changesOf(before: StoredResult | null, after: StoredResult): Promise<Difference[]> {
  const [was, is] = [before, after].map((result) => partsOf(result)?.members);
  if (was === undefined || is === undefined || was === is) return [];
  return changedMembers(await readMembers(was), await readMembers(is));
}

function partsOf(result: StoredResult | null): (ContextParts & { members?: string }) | null {
  return result === null || result.parts === null ? null : (JSON.parse(result.parts) as ContextParts & { members?: string });
}

async function isEdited(store: Store, build: BuildRow, before: StoredResult | null, stage: string): Promise<boolean> {
  if (before === null || before.build === build.id) return false;
  const earlier = await buildById(store.builds, before.build);
  if (earlier === null) return false;
  return editedStages(described(earlier), described(build)).includes(stage);
}

export function described({ description }: BuildRow): PipelineDescription {
  return JSON.parse(description) as PipelineDescription;
}

const ERRORS = 20;

export async function viewBuild(store: Store, row: BuildRow, token?: string): Promise<Build> {
  const { id, pipeline, state, budget, spent, createdAt, finishedAt } = row;
  const failures =
    row.failed > 0 || row.listing === "failed" ? await store.work.results({ build: id, failed: true, limit: ERRORS }) : [];
  return {
    id,
    pipeline,
    state,
    reason: reasonText(row),
    budget: fromBudget(budget),
    spent: toCost(spent),
    ...(state === "BUDGET_PAUSE" && row.approved ? { approved: true as const } : {}),
    ...(token === undefined ? {} : { token }),
    createdAt,
    ...(finishedAt === null ? {} : { finishedAt }),
    stages: stageViews(row),
    errors: failures.map(({ stage, path, error }) => ({
      stage,
      // Children of different targets may have the same id.
      target: pathText(path),
      message: error?.message ?? "It failed.",
    })),
  };
}

/** Counts targets by stage. `left` counts those at the stage or before it in its segment, and 1 for a gather of a later round. */
function stageViews(row: BuildRow): Build["stages"] {
  const counts = new Map(row.stages.map((one) => [one.stage, one]));
  const views: Build["stages"] = {};
  for (const { stages, round } of segmentsOf(described(row).stages)) {
    let before = 0;
    for (const { name } of stages) {
      const { ran = 0, cached = 0, failed = 0, open = 0 } = counts.get(name) ?? {};
      before += open;
      const left = hasEnded(row.state) ? 0 : round > row.round ? Math.max(1, before) : before;
      views[name] = { ran, cached, failed, left };
    }
  }
  return views;
}
