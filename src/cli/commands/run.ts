import { hostname } from "node:os";
import { isDeepStrictEqual } from "node:util";
import type { Command } from "commander";
import { fromBudget, type Amount, type Cost } from "../../core/pipelines/budget.ts";
import type { Build } from "../../core/pipelines/build-view.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { type Pipeline, pipelineOf } from "../../core/pipelines/pipeline.ts";
import type { BuildHandle } from "../../pipelines/orchestrator.ts";
import { type BuildOptions, checkBuildOptions, Model } from "../../pipelines/model.ts";
import { warningsOf } from "../../pipelines/plan.ts";
import type { Holdfast } from "../../holdfast.ts";
import { Operator } from "../../operator/operator.ts";
import type { BuildRow } from "../../store/builds.ts";
import {
  addChoiceOptions,
  addPaceOptions,
  buildOptions,
  checkToken,
  environmentToken,
  readToken,
  type RunOptions,
} from "../arguments.ts";
import { configOf, modulesOf } from "../config.ts";
import { openExisting, openOrCreate, sameDatabase, whereOf } from "../database.ts";
import { EXIT } from "../exit.ts";
import { findPipeline, type FoundPipeline, pipelineNamed } from "../modules.ts";
import { isJson } from "../render/output.ts";
import { type BuildDisplay, buildSummary, displayBuild, nextStep } from "../render/progress.ts";
import { oneLine, paint, printable } from "../render/table.ts";
import { guardExit, type Interrupts, listenForInterrupts } from "../signals.ts";
import { addCommand } from "../verb.ts";
import { askBudget, nextCommandsText, pausedText, tokenFor, totalToFinish } from "./run-budget.ts";
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";

export function runCommand(parent: Command): void {
  const run = addCommand(parent, "run", {
    description:
      "Build a pipeline, and show its progress. An interrupted build is resumed; a build that is paused at its budget " +
      "needs --token and --budget, or asks on a terminal. Valid results of earlier builds are reused. Ctrl-C lets running " +
      "attempts finish, and the next run resumes the build; a second Ctrl-C exits at once.\n\n" +
      "Exit code 0: SUCCESS, 1: FAILED, 2: wrong usage or a bad pipeline, 3: paused at its budget, 4: another process " +
      "builds the pipeline, 130: interrupted.",
    examples: [
      "holdfast run docs.ts",
      "holdfast run docs.ts --budget 10 --workers 3",
      "holdfast run docs --rerun parse --only 'docs/api/**'",
      "holdfast run docs.ts --token hft_… --budget 20",
      "holdfast run docs.ts --watch",
    ],
  }).argument("<pipeline>", "a .ts or .js module whose default export is a pipeline, or the name of one in the config's modules");
  addChoiceOptions(addPaceOptions(run))
    .option("--fresh", "abandon an interrupted build and start a new one, which reuses all results")
    .option("--watch", "then build again whenever the source changes, until Ctrl-C")
    .action(async (given: string, options: RunOptions, command: Command) => {
      checkToken(options);
      const { pipeline, file } = await findPipeline(given, command);
      const model = new Model(pipelineOf(pipeline), hostname());
      const chosen = buildOptions(options);
      // Checked before the database is created: a usage error must leave nothing behind.
      checkBuildOptions(model, chosen, "run");
      using interrupts = listenForInterrupts();
      using display = displayBuild(command);
      await using hf = await openOrCreate(command, {
        program: `holdfast run ${given}`,
        log: display.log,
        delivers: true,
        onStop: () => interrupts.stop("`holdfast stop` asked for it"),
      });
      const workers = new WorkerProcesses({ command, pipeline, file, options, say: (text) => display.say(text) });
      const wanted: WantedBuild = {
        pipeline,
        model,
        options: chosen,
        token: await readToken(options.token),
        fresh: options.fresh,
        again: `holdfast run ${given}${sameDatabase(command)}`,
        anew: `holdfast run ${given} --fresh${sameDatabase(command)}`,
        signal: interrupts.signal,
      };
      const parts = { hf, command, wanted, display, workers, interrupts };
      process.exitCode = await withWorkers(parts, () =>
        options.watch ? buildOnChanges(parts) : orchestrate(parts, (next) => begin(hf, next)),
      );
    });
}

async function buildOnChanges(parts: RunParts): Promise<number> {
  const { hf, display, interrupts } = parts;
  let { wanted } = parts;
  using changes = hf.builds.changes(wanted.pipeline);
  for (;;) {
    await changes.mark();
    const code = await orchestrate({ ...parts, wanted }, (next) => begin(hf, next));
    if (interrupts.signal.aborted || code === EXIT.paused) return code;
    display.say(paint("dim", `Waiting for changes of ${oneLine(wanted.model.name)}'s source; Ctrl-C ends.`));
    if (!(await changes.next(interrupts.signal))) return EXIT.done;
    // --rerun, --token and --fresh apply to the first build only.
    const { rerun: _, ...options } = wanted.options;
    wanted = { ...parts.wanted, options, token: undefined, fresh: false };
  }
}

export function resumeCommand(parent: Command): void {
  const resume = addCommand(parent, "resume", {
    summary: "resume a build that was interrupted or paused",
    description:
      "Resume this build, as `holdfast run` would. One that is paused at its budget needs --token and --budget, unless " +
      "it was approved, or asks on a terminal. Exit codes are those of `holdfast run`.",
    examples: [
      "holdfast builds resume b1k7i1ug7v00000001 --file docs.ts",
      "holdfast builds resume b1k7i1ug7v00000001 --token hft_… --budget 10",
    ],
  })
    .argument("<id>", "the build's id")
    .option("--file <module>", "module whose default export is the pipeline (default: the config's modules)");
  addPaceOptions(resume).action(async (id: string, options: RunOptions & { file?: string }, command: Command) => {
    checkToken(options);
    using interrupts = listenForInterrupts();
    using display = displayBuild(command);
    await using hf = await openExisting(command, {
      log: display.log,
      recovery: "auto",
      delivers: true,
      onStop: () => interrupts.stop("`holdfast stop` asked for it"),
    });
    const operator = new Operator(hf);
    const row = await operator.build(id);
    const { pipeline, file } = await findPipelineOf(row, options.file, command);
    const model = new Model(pipelineOf(pipeline), hostname());
    const workers = new WorkerProcesses({ command, pipeline, file, options, say: (text) => display.say(text) });
    const wanted: WantedBuild = {
      pipeline,
      model,
      options: buildOptions(options),
      token: await readToken(options.token),
      again: `holdfast builds resume ${id}${options.file === undefined ? "" : ` --file ${options.file}`}${sameDatabase(command)}`,
      signal: interrupts.signal,
    };
    const warnings = warningsOf(model, row);
    const parts = { hf, command, wanted, display, workers, interrupts };
    process.exitCode = await withWorkers(parts, () =>
      orchestrate(parts, async (next) => resumeBuild(hf, await operator.build(id), next, warnings)),
    );
  });
}

async function findPipelineOf(
  { id, pipeline: name }: BuildRow,
  file: string | undefined,
  command: Command,
): Promise<FoundPipeline> {
  const config = configOf(command);
  const found =
    file !== undefined
      ? await findPipeline(file, command)
      : config !== null
        ? await pipelineNamed(name, modulesOf(config), config.file)
        : null;
  if (found === null) {
    throw new HoldfastError(
      "USAGE",
      `Build ${id} belongs to pipeline "${name}", which no config in this folder defines.`,
      "Give --file FILE, the module whose default export is that pipeline.",
    );
  }
  if (found.pipeline.name === name) return found;
  throw new HoldfastError(
    "USAGE",
    `Build ${id} belongs to pipeline "${name}", but ${found.file} exports "${found.pipeline.name}".`,
    "Give --file FILE, the module whose default export is that pipeline.",
  );
}

interface RunParts {
  hf: Holdfast;
  command: Command;
  wanted: WantedBuild;
  display: BuildDisplay;
  workers: WorkerProcesses;
  interrupts: Interrupts;
}

async function withWorkers({ workers, interrupts }: RunParts, run: () => Promise<number>): Promise<number> {
  using _ = guardExit();
  try {
    return await run();
  } catch (error) {
    if (error !== interrupts.signal.reason) throw error;
    return EXIT.interrupted;
  } finally {
    await workers.end();
  }
}

async function orchestrate(parts: RunParts, begin: (wanted: WantedBuild) => Promise<BegunBuild>): Promise<number> {
  const { hf, command, display, interrupts } = parts;
  const operator = new Operator(hf);
  for (let { wanted } = parts; ;) {
    const begun = await begin(wanted);
    const build = "paused" in begun ? begun.paused : await followBuild(parts, begun);
    const row = await operator.build(build.id);
    if (build.state !== "BUDGET_PAUSE") {
      display.end(build, () =>
        `${buildSummary(build, operator.now())}\n${paint("dim", nextStep(build, { again: wanted.again, same: sameDatabase(command) }))}`.trimEnd(),
      );
      return exitCode(build, interrupts.signal.aborted);
    }
    const canAsk =
      !isJson(command) && process.stdin.isTTY === true && process.stdout.isTTY === true && !interrupts.signal.aborted;
    const toFinish = await totalToFinish(hf, row, wanted);
    display.end(build, () => {
      const paused = pausedText(row, build, toFinish);
      const text = "paused" in begun ? paused : `${buildSummary(build, operator.now())}\n${paused}`;
      return canAsk
        ? text
        : `${text}\n${nextCommandsText(row, { again: wanted.again, same: sameDatabase(command) }, build.token)}`;
    });
    const paid = canAsk ? await askForBudget(parts, row, build, wanted, toFinish) : null;
    if (paid === null) return EXIT.paused;
    wanted = { ...parts.wanted, options: { ...parts.wanted.options, budget: paid.budget }, token: paid.token };
  }
}

async function askForBudget(
  { hf, command, display, interrupts }: RunParts,
  row: BuildRow,
  build: Build,
  { options, again }: WantedBuild,
  toFinish: Amount | null,
): Promise<{ token: string; budget: Cost } | null> {
  // The budget that the build was started with was too small, so only another budget is an answer.
  const isNew = !isDeepStrictEqual(options.budget, fromBudget(row.budget));
  const budget = await askBudget(row, toFinish, isNew ? options.budget : undefined, interrupts.signal);
  if (budget !== null) return { token: await tokenFor(hf, build), budget };
  display.say(nextCommandsText(row, { again, same: sameDatabase(command) }, build.token));
  return null;
}

async function followBuild(
  { hf, display, workers, interrupts }: RunParts,
  begun: Exclude<BegunBuild, { paused: Build }>,
): Promise<Build> {
  const { handle, how, warnings } = begun;
  if (how === "resumed") display.say(paint("dim", `Resuming build ${handle.id}.`));
  for (const warning of warnings) display.say(paint("yellow", `warning: ${warning}`));
  workers.start();
  const stopping = (): void => {
    display.say(
      paint(
        "yellow",
        "Stopping: running attempts have 10s to finish; the next run does the rest. A second Ctrl-C exits at once.",
      ),
    );
    void workers.end();
  };
  if (interrupts.signal.aborted) stopping();
  else interrupts.signal.addEventListener("abort", stopping, { once: true });
  try {
    for await (const build of handle.progress()) {
      if (build.state !== "ACTIVE") continue;
      const { listing } = await new Operator(hf).build(handle.id);
      display.progress({ build, listing: listing === "running", processes: workers.size + 1 });
    }
    return await handle.done();
  } finally {
    interrupts.signal.removeEventListener("abort", stopping);
  }
}

function exitCode({ state }: Build, interrupted: boolean): number {
  if (state === "SUCCESS") return EXIT.done;
  return state === "CRASHED" && interrupted ? EXIT.interrupted : EXIT.failed;
}

export interface WantedBuild {
  pipeline: Pipeline;
  model: Model;
  options: BuildOptions;
  token?: string | undefined;
  fresh?: boolean | undefined;
  again: string;
  anew?: string;
  signal: AbortSignal;
}

type BegunBuild = { handle: BuildHandle; how: "started" | "resumed"; warnings: string[] } | { paused: Build };

async function begin(hf: Holdfast, wanted: WantedBuild): Promise<BegunBuild> {
  const { pipeline, model, options, signal } = wanted;
  const operator = new Operator(hf);
  const warnings = warningsOf(model, await operator.newestBuild(model.name));
  const open = await operator.unfinishedBuild(model.name);
  if (open === null || (wanted.fresh && open.state === "CRASHED")) {
    if (wanted.token !== undefined) throw nothingPaused(model.name);
    // `start` abandons an interrupted build.
    return { handle: await hf.builds.start(pipeline, { ...options, signal }), how: "started", warnings };
  }
  return resumeBuild(hf, open, wanted, warnings, "run");
}

async function resumeBuild(
  { builds }: Holdfast,
  row: BuildRow,
  wanted: WantedBuild,
  warnings: string[],
  command: "run" | "resume" = "resume",
): Promise<BegunBuild> {
  const { pipeline, options, signal } = wanted;
  const isPaused = row.state === "BUDGET_PAUSE";
  const token = wanted.token ?? (isPaused && options.budget !== undefined ? environmentToken() : undefined);
  if (isPaused && !row.approved && token === undefined) return { paused: (await builds.get(row.id)) as Build };
  const paid = isPaused && token !== undefined ? { token } : {};
  const given = { ...options, ...paid, signal };
  try {
    const resumed = command === "run" ? builds.resume(pipeline, row.id, given) : builds.resumeByOperator(pipeline, row.id, given);
    return { handle: await resumed, how: "resumed", warnings };
  } catch (error) {
    if (error instanceof HoldfastError && NOT_RESUMABLE.has(error.code)) throw notResumable(error, row, wanted.anew);
    throw error;
  }
}

const NOT_RESUMABLE = new Set(["PIPELINE_CHANGED", "OPTION_INVALID", "TARGET_ELSEWHERE"]);

function notResumable({ code, message }: HoldfastError, { id, state }: BuildRow, anew: string | undefined): HoldfastError {
  const leaveOut = code === "OPTION_INVALID" ? "Leave it out to resume the build. Or " : "";
  const hint =
    state === "CRASHED" && anew !== undefined
      ? `${anew} abandons it and starts a new build, which reuses all results.`
      : `holdfast builds abandon ${id} --reason "…" abandons it; then start a new build, which reuses all results.`;
  return new HoldfastError(code, message, leaveOut + hint);
}

function nothingPaused(pipeline: string): HoldfastError {
  return new HoldfastError(
    "USAGE",
    `A token was given, and no build of pipeline "${pipeline}" is paused.`,
    "Leave --token out to start one.",
  );
}

const STOP_TIMEOUT_MS = 15_000;

interface WorkerProcessesOptions extends FoundPipeline {
  command: Command;
  options: Pick<RunOptions, "workers" | "concurrency">;
  say: (text: string) => void;
}

/** The worker processes of a run. Each one finishes its jobs and exits when its channel to this process closes. */
export class WorkerProcesses {
  readonly #parts: WorkerProcessesOptions;
  readonly #there = new Set<ChildProcess>();
  #started = false;
  #ending = false;

  constructor(parts: WorkerProcessesOptions) {
    this.#parts = parts;
  }

  get size(): number {
    return this.#there.size;
  }

  start(): void {
    if (this.#started) return;
    this.#started = true;
    for (let i = 0; i < (this.#parts.options.workers ?? 0); i++) this.#hire();
  }

  async end(): Promise<void> {
    this.#ending = true;
    await Promise.all([...this.#there].map((child) => stopChild(child)));
  }

  #hire(): void {
    const { command, file, pipeline, options, say } = this.#parts;
    const { config, schema, artifacts } = command.optsWithGlobals<{ config?: string; schema?: string; artifacts?: string }>();
    const named = Object.entries({ config, schema, artifacts }).flatMap(([name, value]) =>
      value === undefined ? [] : [`--${name}`, value],
    );
    const many = options.concurrency === undefined ? [] : ["--concurrency", String(options.concurrency)];
    const args = [process.argv[1] as string, "work", file, "--json", "--for-run", pipeline.name, ...many, ...named];
    const where = whereOf(command);
    const child = spawn(process.execPath, [...process.execArgv, ...args], {
      // An address may contain a password, and every user of the host can read arguments.
      env: { ...process.env, ...(where === undefined ? {} : { HOLDFAST_DB: where }) },
      stdio: ["ignore", "ignore", "pipe", "ipc"],
    });
    this.#there.add(child);
    const stderr = child.stderr;
    if (stderr !== null) {
      createInterface({ input: stderr }).on("line", (line) => say(`${paint("dim", `[${child.pid}]`)} ${printable(line)}`));
    }
    child.on("error", (error) => this.#gone(child, `could not be started: ${error.message}`));
    child.on("exit", (code, signal) => this.#gone(child, signal === null ? `ended with ${code}` : `was killed by ${signal}`));
  }

  #gone(child: ChildProcess, how: string): void {
    if (!this.#there.delete(child) || this.#ending) return;
    const left = this.#there.size + 1;
    this.#parts.say(
      paint("yellow", `Worker ${child.pid ?? ""} ${oneLine(how)}; what it had is done by the others (${left} left).`),
    );
  }
}

async function stopChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  if (child.connected) child.disconnect();
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
  await gone;
  clearTimeout(timer);
}
