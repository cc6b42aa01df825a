import { HoldfastError } from "../../core/errors.ts";
import type { PipelineDescription } from "../../core/pipeline-description.ts";
import { GONE } from "../../core/segment.ts";
import { sayPath } from "../../core/target-id.ts";
import type { BuildRow } from "../../store/builds.ts";
import type { Store } from "../../store/store.ts";
import type { StoredResult } from "../../store/work.ts";
import type { Values } from "./values.ts";

const PAGE = 200;

/** One output of a build, by the target's own id. */
export interface Output {
  target: string;
  output: unknown;
}

/** What the stages of a build have made, whether it ran them or found them made. */
export class Outputs {
  readonly #store: Store;
  readonly #values: Values;

  constructor(store: Store, values: Values) {
    this.#store = store;
    this.#values = values;
  }

  /** Of a stage with one target that one needs not be named. */
  async one(build: BuildRow, stage: string, target?: string): Promise<unknown> {
    const kind = kindOf(build, stage);
    if (target !== undefined && kind !== "expand") {
      const exact = await this.#store.work.resultOf(build.id, stage, target);
      if (exact !== null) return this.#load(exact, stage);
    }
    const found: (() => Promise<unknown>)[] = [];
    for await (const { path, id, load } of this.#each(build, stage, kind)) {
      if (target === undefined || id === target || sayPath(path) === target) found.push(load);
      if (found.length > 1) break;
    }
    const [only] = found;
    if (only === undefined) throw noOutput(build.id, stage, target);
    if (found.length > 1) throw severalOutputs(stage, target);
    return only();
  }

  /** In the order of their paths. */
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
    for (let after: string | undefined; ;) {
      const page = { limit: PAGE, ...(after === undefined ? {} : { after }) };
      if (kind === "expand") {
        const rows = await this.#store.work.targetPage({
          pipeline: build.pipeline,
          segment: childSegment(build, stage),
          ...page,
        });
        for (const { path, id, value, done } of rows) if (done !== GONE) yield { path, id, load: () => this.#values.load(value) };
        after = rows.at(-1)?.path;
      } else {
        const results = await this.#store.work.resultsOf(build.id, stage, page);
        for (const result of results) yield { path: result.path, id: result.target, load: () => this.#load(result, stage) };
        after = results.at(-1)?.path;
      }
      if (after === undefined) return;
    }
  }

  async #load(result: StoredResult, stage: string): Promise<unknown> {
    if (result.state !== "FAILED") return this.#values.load(result.output);
    throw new HoldfastError(
      "TARGET_FAILED",
      `Stage "${stage}" failed for ${JSON.stringify(sayPath(result.path))}: ${result.error?.message ?? "unknown"}`,
      "Mend what it says, and start a new build: all that succeeded is reused.",
    );
  }
}

function kindOf(build: BuildRow, stage: string): string {
  const { stages } = JSON.parse(build.description) as PipelineDescription;
  const found = stages.find(({ name }) => name === stage);
  if (found !== undefined) return found.kind;
  throw new HoldfastError(
    "STAGE_UNKNOWN",
    `Build ${build.id} has no stage "${stage}".`,
    `Its stages are ${stages.map(({ name }) => name).join(", ") || "none"}.`,
  );
}

/** The segment of the targets that an expand has made. */
function childSegment(build: BuildRow, expand: string): number {
  const { stages } = JSON.parse(build.description) as PipelineDescription;
  const before = stages.slice(0, stages.findIndex(({ name }) => name === expand) + 1);
  return before.filter(({ kind }) => kind !== "stage").length;
}

function noOutput(build: string, stage: string, target: string | undefined): HoldfastError {
  const what = target === undefined ? "" : ` for ${JSON.stringify(target)}`;
  return new HoldfastError(
    "NO_SUCH_OUTPUT",
    `Build ${build} has no output of stage "${stage}"${what}.`,
    "Look at what it has with outputs(stage); a target that failed, or that the stage does not match, has none.",
  );
}

export function severalOutputs(stage: string, target: string | undefined): HoldfastError {
  if (target === undefined) {
    return new HoldfastError(
      "TARGET_NEEDED",
      `Stage "${stage}" has outputs of several targets.`,
      "Name the target whose output you want.",
    );
  }
  return new HoldfastError(
    "TARGET_AMBIGUOUS",
    `Stage "${stage}" has several targets ${JSON.stringify(target)}, of different parents.`,
    "Give the parent's id, a slash, and the target's: \"parent/target\".",
  );
}
