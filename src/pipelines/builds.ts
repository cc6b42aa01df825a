import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { fromBudget, isRefusedUse, toBudget, TOKEN_BYTES, tokenOf, type Cost } from "../core/pipelines/budget.ts";
import type { Build, Why } from "../core/pipelines/build-view.ts";
import { BUILD_STATES, type BuildState, hasEnded } from "../core/pipelines/build.ts";
import { checkCount, checkOneOf, checkText, limitArguments, refuseUnknown } from "../core/text/options.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { type Pipeline, pipelineOf } from "../core/pipelines/pipeline.ts";
import type { Definition } from "../engine/definition.ts";
import type { Engine } from "../engine/engine.ts";
import { describeError } from "../engine/log.ts";
import { incompleteOf, notReadable, type Page } from "../engine/client.ts";
import type { Worker } from "../engine/worker.ts";
import { PipelineRuntime } from "./pipeline-runtime.ts";
import { definitionsOf } from "./stage-runner.ts";
import { exportBuild } from "./export.ts";
import { BuildHandle, Orchestrator, sourceChanges, watchBuilds } from "./orchestrator.ts";
import { explainBuild, Outputs, viewBuild } from "./outputs.ts";
import { askFirst, type Plan, plan } from "./plan.ts";
import {
  type BuildOptions,
  type BuildSettings,
  checkBuildOptions,
  type CheckedOptions,
  checkNames,
  Model,
  programHash,
} from "./model.ts";
import { Values } from "./values.ts";
import type { SourceChanges } from "./sources/changes.ts";
import {
  abandonment,
  buildById,
  type BuildRow,
  type NewOrchestratorLock,
  noSuchBuild,
  type OrchestratorLockRow,
  type StartedBuild,
} from "../store/builds.ts";

interface BuildsParts {
  refuseClosed: () => void;
  refuseClosing: () => void;
  work: (defs: readonly Definition[], concurrency: number) => Worker;
}

export class Builds {
  static {
    limitArguments(this.prototype, "builds", {
      start: 2,
      resume: 3,
      watch: 2,
      plan: 2,
      approve: 2,
      mintToken: 1,
      abandon: 2,
      refuse: 2,
      get: 1,
      list: 1,
      why: 3,
      output: 3,
      export: 3,
      changes: 1,
      resumeByOperator: 3,
      definitions: 1,
      stopAll: 0,
    });
  }

  readonly #engine: Engine;
  readonly #parts: BuildsParts;
  readonly #sites = new Map<string, PipelineRuntime>();
  readonly #orchestrators = new Set<Orchestrator>();

  /** @internal */
  constructor(engine: Engine, parts: BuildsParts) {
    this.#engine = engine;
    this.#parts = parts;
  }

  /** Starts a build in this process. Results of earlier builds are reused. */
  async start<T, I, O, All>(pipeline: Pipeline<T, I, O, All>, options: BuildOptions = {}): Promise<BuildHandle<All>> {
    this.#parts.refuseClosing();
    const runtime = this.#runtime(pipeline);
    const checked = checkBuildOptions(runtime.model, options, "builds.start");
    checked.signal?.throwIfAborted();
    // Fail before a build exists.
    await runtime.ready();
    await askFirst(runtime, checked, checked.signal ?? new AbortController().signal);
    const { model } = runtime;
    const lead = await this.#lead(model);
    const answer = await this.#engine.store.builds.start({
      pipeline: model.name,
      queue: model.queue,
      hash: model.hash,
      description: JSON.stringify(model.description),
      options: JSON.stringify(checked.settings),
      budget: checked.budget,
      maxFailures: checked.maxFailures,
      stages: [...model.places].map(({ stage }) => stage.name),
      lead,
      listing: model.listingJob(null, 0),
    });
    return this.#leading(runtime, answer, lead, checked);
  }

  /** Resumes a build that was stopped, has crashed, or is paused; a paused one needs a token and a new budget. */
  async resume<T, I, O, All>(
    pipeline: Pipeline<T, I, O, All>,
    id: string,
    options: BuildOptions & {
      /** Approval token of a paused build; `budget` is the new budget. */
      token?: string;
    } = {},
  ): Promise<BuildHandle<All>> {
    return this.#resume(pipeline, id, options, "program");
  }

  /** @internal Resumes a build, and also runs targets again that may have killed the orchestrator. */
  resumeByOperator(pipeline: Pipeline, id: string, options: BuildOptions & { token?: string }): Promise<BuildHandle> {
    return this.#resume(pipeline, id, options, "operator");
  }

  async #resume<T, I, O, All>(
    pipeline: Pipeline<T, I, O, All>,
    id: string,
    options: BuildOptions & { token?: string },
    by: "program" | "operator",
  ): Promise<BuildHandle<All>> {
    this.#parts.refuseClosing();
    const runtime = this.#runtime(pipeline);
    const checked = checkBuildOptions(runtime.model, options, "builds.resume");
    checked.signal?.throwIfAborted();
    await runtime.ready();
    const { model } = runtime;
    const row = await this.#need(id);
    refuseElsewhere(row, model);
    refuseOtherOptions(row, options, checked);
    const lead = await this.#lead(model);
    const approval =
      options.token === undefined ? {} : { approval: { token: options.token, budget: options.budget ?? fromBudget(row.budget) } };
    const resume = () =>
      this.#engine.store.builds.start({
        build: id,
        hash: model.hash,
        description: JSON.stringify(model.description),
        lead,
        byOperator: by === "operator",
        ...approval,
      });
    const answer = await (options.token === undefined ? resume() : watched(this.#engine, id, resume));
    return this.#leading(runtime, answer, lead, checked);
  }

  /** Builds after each change of the source until the signal aborts. It resumes an interrupted build; a paused one waits. */
  watch<T, I, O, All>(pipeline: Pipeline<T, I, O, All>, options: BuildOptions = {}): AsyncIterable<Build> {
    this.#parts.refuseClosing();
    const runtime = this.#runtime(pipeline);
    const { signal = new AbortController().signal } = checkBuildOptions(runtime.model, options, "builds.watch");
    const { concurrency } = options;
    return watchBuilds({
      runtime,
      signal,
      start: (isFirst) => this.start(pipeline, isFirst ? options : { ...options, rerun: [] }),
      resume: (id) => this.resume(pipeline, id, { signal, ...(concurrency === undefined ? {} : { concurrency }) }),
    });
  }

  /** Approves a new budget without running anything; the next resume needs no token. */
  async approve(id: string, options: { token: string; budget: Cost }): Promise<Build> {
    this.#parts.refuseClosed();
    refuseUnknown(options, ["token", "budget"], "builds.approve");
    const { token, budget } = options;
    checkText(id, "The id of a build");
    checkText(token, "token");
    toBudget(budget, "The new budget");
    const { store, actor } = this.#engine;
    const row = await watched(this.#engine, id, () => store.builds.authorize(id, { token, budget }, actor));
    return this.#view(row ?? (await this.#need(id)));
  }

  /** Creates a confirmation token for a paused build and revokes earlier ones. */
  async mintToken(id: string): Promise<string> {
    this.#parts.refuseClosed();
    checkText(id, "The id of a build");
    const bytes = crypto.getRandomValues(new Uint8Array(TOKEN_BYTES));
    if ((await this.#engine.store.builds.authorize(id, { bytes }, this.#engine.actor)) === null) throw noSuchBuild(id);
    return tokenOf(bytes);
  }

  async get(id: string): Promise<Build | null> {
    this.#parts.refuseClosed();
    checkText(id, "The id of a build");
    const row = await buildById(this.#engine.store.builds, id);
    const { damaged } = this.#engine.store.damage;
    if (row === null && damaged !== null) throw notReadable(`Build ${id}`, damaged);
    return row === null ? null : this.#view(row);
  }

  async list(
    options: { pipeline?: string; state?: BuildState; order?: "newest" | "oldest"; limit?: number; after?: string } = {},
  ): Promise<Page<Build>> {
    this.#parts.refuseClosed();
    refuseUnknown(options, ["pipeline", "state", "order", "limit", "after"], "builds.list");
    const { pipeline, state, order, limit = 50, after } = options;
    if (order !== undefined) checkOneOf(order, ["newest", "oldest"], "order");
    if (pipeline !== undefined) checkText(pipeline, "pipeline");
    if (state !== undefined) checkOneOf(state, BUILD_STATES, "state");
    if (after !== undefined) checkText(after, "after");
    const page = await this.#engine.store.builds.list({ ...options, limit: checkCount(limit, "limit", 1) });
    const items = await Promise.all(page.items.map((row) => this.#view(row)));
    return { items, ...(page.next === undefined ? {} : { next: page.next }), ...incompleteOf(this.#engine.store.damage) };
  }

  /** Abandons a build. The next build reuses its results. */
  async abandon(id: string, reason: string): Promise<Build> {
    const { store, actor } = this.#engine;
    return this.#end(id, reason, () => store.builds.move(id, abandonment(reason), { by: actor }));
  }

  /** Refuses a paused build more money: it ends FAILED, for the reason `budget_refused`. The next build reuses its results. */
  async refuse(id: string, reason: string): Promise<Build> {
    const { store, actor } = this.#engine;
    const refused = { move: "fail", reason: "budget_refused", note: reason } as const;
    return this.#end(id, reason, () => store.builds.move(id, refused, { by: actor }));
  }

  async #end(id: string, reason: string, move: () => Promise<BuildRow | null>): Promise<Build> {
    this.#parts.refuseClosed();
    checkText(id, "The id of a build");
    checkText(reason, "The reason");
    const row = await move();
    if (row === null) throw noSuchBuild(id);
    await this.#engine.janitor.clearWork(row.pipeline);
    return this.#view(row);
  }

  /** Shows what a build would run, reuse and cost now. Changes nothing. */
  async plan<T, I, O, All>(pipeline: Pipeline<T, I, O, All>, options: BuildOptions = {}): Promise<Plan> {
    this.#parts.refuseClosed();
    const runtime = this.#runtime(pipeline);
    const checked = checkBuildOptions(runtime.model, options, "builds.plan");
    return plan(runtime, checked, checked.signal ?? new AbortController().signal);
  }

  /** Explains, input by input, why a stage ran for a target in a build or was reused. */
  async why(id: string, stage: string, target: string): Promise<Why> {
    this.#parts.refuseClosed();
    checkText(stage, "The name of a stage");
    checkText(target, "The id of a target");
    return explainBuild(this.#engine.store, await this.#need(id), stage, target);
  }

  /** The output of a stage for a target. The target can be left out if the stage has only one. */
  async output(id: string, stage: string, target?: string): Promise<unknown> {
    this.#parts.refuseClosed();
    checkText(stage, "The name of a stage");
    if (target !== undefined) checkText(target, "The id of a target");
    return this.#outputs().one(await this.#need(id), stage, target);
  }

  /** Writes all outputs of a build into a folder, atomically, and returns its path. */
  async export(id: string, dir: string, options: { stages?: string[] } = {}): Promise<string> {
    this.#parts.refuseClosed();
    refuseUnknown(options, ["stages"], "builds.export");
    if (options.stages !== undefined) checkNames(options.stages, "stages");
    checkText(dir, "The folder of an export");
    const artifacts = await this.#engine.artifacts();
    return exportBuild({ store: this.#engine.store, artifacts }, await this.#need(id), dir, options.stages);
  }

  /** @internal */
  changes(pipeline: Pipeline): SourceChanges {
    return sourceChanges(this.#runtime(pipeline));
  }

  /** @internal */
  definitions(pipeline: Pipeline): Definition[] {
    return definitionsOf(this.#runtime(pipeline));
  }

  /** @internal */
  async stopAll(): Promise<void> {
    await Promise.all([...this.#orchestrators].map((orchestrator) => orchestrator.stop()));
  }

  #runtime(pipeline: unknown): PipelineRuntime {
    const definition = pipelineOf(pipeline);
    const known = this.#sites.get(definition.name);
    if (known?.model.definition === definition) return known;
    const runtime = new PipelineRuntime(this.#engine, new Model(definition, hostname()));
    this.#sites.set(definition.name, runtime);
    return runtime;
  }

  #leading<All>(
    runtime: PipelineRuntime,
    answer: StartedBuild,
    { token }: NewOrchestratorLock,
    { concurrency, signal }: CheckedOptions,
  ): BuildHandle<All> {
    if ("conflict" in answer) throw conflict(answer.conflict);
    if ("paused" in answer) throw paused(runtime.model.name, answer.paused);
    const orchestrator = new Orchestrator({
      engine: this.#engine,
      model: runtime.model,
      row: answer,
      lock: { pipeline: runtime.model.name, token },
      worker: this.#parts.work(definitionsOf(runtime), concurrency),
      onLeave: runtime.lead(answer.key),
    });
    this.#orchestrators.add(orchestrator);
    void orchestrator.ended.then(() => this.#orchestrators.delete(orchestrator));
    return new BuildHandle<All>(this.#engine.store, orchestrator, this.#outputs(), signal);
  }

  async #lead({ definition }: Model): Promise<NewOrchestratorLock> {
    // Fail before a build exists.
    this.#engine.requireKeeper();
    return {
      token: randomUUID(),
      holder: this.#engine.self,
      pid: process.pid,
      host: hostname(),
      program: this.#engine.program,
      programHash: await programHash(definition),
    };
  }

  #outputs(): Outputs {
    return new Outputs(this.#engine.store, new Values(() => this.#engine.artifacts()));
  }

  async #need(id: string): Promise<BuildRow> {
    checkText(id, "The id of a build");
    const row = await buildById(this.#engine.store.builds, id);
    if (row === null) throw noSuchBuild(id);
    return row;
  }

  #view(row: BuildRow): Promise<Build> {
    return viewBuild(this.#engine.store, row);
  }
}

/** Audits a rejected token, without its text, in a transaction of its own, because the rejected one was rolled back. */
async function watched<T>(engine: Engine, build: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    if (error instanceof HoldfastError && isRefusedUse(error.code)) await writeDown(engine, build, error.code);
    throw error;
  }
}

/** Rejections within this time share one audit entry, so that a script that guesses tokens does not fill the log. */
const FOLD_MS = 3_600_000;

async function writeDown({ store, log, clock }: Engine, build: string, code: string): Promise<void> {
  const isRepeat = async (): Promise<boolean> => {
    const newest = await store.audit.page({ subject: build, after: 0, limit: 20, last: true });
    return newest.some(({ action, at, after }) => {
      if (action !== "build.token_refused" || Math.abs(clock.now() - at) >= FOLD_MS) return false;
      return (after as { refused?: unknown } | null)?.refused === code;
    });
  };
  await isRepeat()
    .then((repeat) => (repeat ? undefined : record(store, build, code)))
    .catch((error: unknown) =>
      log.warn("that a token was refused could not be written down", { build, code, ...describeError(error) }),
    );
}

function record(store: Engine["store"], build: string, code: string): Promise<void> {
  return store.audit.record({ action: "build.token_refused", name: build, build, after: { refused: code } });
}

function paused(pipeline: string, id: string): HoldfastError {
  return new HoldfastError(
    "BUDGET_PAUSED",
    `Pipeline "${pipeline}" has a build that is paused at its budget: ${id}.`,
    `Call builds.resume with a token and a new budget, or without them once builds.approve was called, or abandon it. builds.mintToken("${id}") creates a token.`,
  );
}

function conflict({ pipeline, build, pid, host, program, programHash, acquiredAt }: OrchestratorLockRow): HoldfastError {
  const since = new Date(acquiredAt).toISOString();
  return new HoldfastError(
    "LOCK_CONFLICT",
    `Build ${build} of pipeline "${pipeline}" is run by process ${pid} on ${host} (${program}, program hash ${programHash.slice(0, 12) || "unknown"}), since ${since}.`,
    "Wait until it has ended, or stop that process. If it hangs, run `holdfast unlock`.",
  );
}

/** Rejects a build whose targets and queue belong to another host. */
function refuseElsewhere({ id, pipeline, queue, state }: BuildRow, model: Model): void {
  if (queue === model.queue || pipeline !== model.name || hasEnded(state)) return;
  throw new HoldfastError(
    "TARGET_ELSEWHERE",
    `The targets of build ${id} are files on another host (${queue.slice(queue.lastIndexOf("@") + 1)}).`,
    "Resume the build there, or abandon it and start one here. With `snapshot: true` and shared artifacts any host can process them.",
  );
}

function refuseOtherOptions(
  row: BuildRow,
  options: BuildOptions & { token?: string },
  { settings, maxFailures, budget }: CheckedOptions,
): void {
  const before = JSON.parse(row.options) as BuildSettings;
  const other =
    (options.rerun !== undefined && differs(settings.rerun, before.rerun) && "rerun") ||
    (options.only !== undefined && differs(settings.only, before.only) && "only") ||
    (options.maxFailures !== undefined && maxFailures !== row.maxFailures && "maxFailures");
  if (other) {
    throw new HoldfastError(
      "OPTION_INVALID",
      `Build ${row.id} was started with another \`${other}\`, which cannot change on resume.`,
      `Leave \`${other}\` out, or abandon the build and start a new one, which reuses all results.`,
    );
  }
  if (options.token !== undefined || options.budget === undefined || !differs(budget, row.budget)) return;
  throw new HoldfastError(
    "TOKEN_NEEDED",
    `The budget of build ${row.id} differs, and changing it needs a confirmation token.`,
    "Leave `budget` out, or give the token of the paused build.",
  );
}

function differs(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) !== JSON.stringify(b);
}
