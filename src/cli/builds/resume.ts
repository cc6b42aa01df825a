import { hostname } from "node:os";
import type { Command } from "commander";
import { HoldfastError } from "../../core/errors.ts";
import { pipelineOf } from "../../core/pipeline.ts";
import { Model } from "../../runtime/builds/model.ts";
import { warningsOf } from "../../runtime/builds/plan.ts";
import { Operator } from "../../runtime/operator.ts";
import { noSuchBuild } from "../../store/build-row.ts";
import type { BuildRow } from "../../store/builds.ts";
import { addPaceOptions, buildOptions, checkToken, readToken, type RunOptions } from "../arguments.ts";
import { WorkerProcesses } from "../commands/run-workers.ts";
import { configOf, modulesOf } from "../config.ts";
import { openExisting } from "../database.ts";
import { findPipeline, type FoundPipeline, pipelineNamed } from "../modules.ts";
import { displayBuild } from "../render/progress.ts";
import { resume, type Wanted } from "../run/begin.ts";
import { leading, led } from "../run/led.ts";
import { Interrupts } from "../signals.ts";
import { examples } from "../verb.ts";

export function resumeCommand(parent: Command): void {
  const command = parent
    .command("resume")
    .summary("go on with a build that was interrupted or paused")
    .description(
      "Go on with this build, as `holdfast run` would. One that is paused for its budget needs --token and --budget, unless " +
        "it was approved, or asks on a terminal. Exit codes are those of `holdfast run`.",
    )
    .argument("<id>", "the build's id")
    .option("--file <module>", "whose default export is its pipeline (default: the config's modules, by the pipeline's name)");
  addPaceOptions(command)
    .addHelpText(
      "after",
      examples(
        "holdfast builds resume b1k7i1ug7v00000001 --file docs.ts",
        "holdfast builds resume b1k7i1ug7v00000001 --token hft_… --budget 10",
      ),
    )
    .action(async (id: string, options: RunOptions & { file?: string }, command: Command) => {
      checkToken(options);
      using interrupts = new Interrupts();
      using show = displayBuild(command);
      await using hf = await openExisting(command, {
        log: show.log,
        recovery: "auto",
        delivers: true,
        onStop: () => interrupts.stop("`holdfast stop` asked for it"),
      });
      const operator = new Operator(hf);
      const row = await operator.build(id);
      if (row === null) throw noSuchBuild(id);
      const { pipeline, file } = await find(row, options.file, command);
      const model = new Model(pipelineOf(pipeline), hostname());
      const crew = new WorkerProcesses({ command, pipeline, file, options, say: (text) => show.say(text) });
      const wanted: Wanted = {
        pipeline,
        model,
        options: buildOptions(options),
        token: await readToken(options.token),
        again: `holdfast builds resume ${id}${options.file === undefined ? "" : ` --file ${options.file}`}`,
        signal: interrupts.signal,
      };
      const warnings = warningsOf(model, row);
      const parts = { hf, command, wanted, show, crew, interrupts };
      process.exitCode = await leading(parts, () =>
        led(parts, async (next) => resume(hf, (await operator.build(id)) as BuildRow, next, warnings)),
      );
    });
}

async function find({ id, pipeline: name }: BuildRow, file: string | undefined, command: Command): Promise<FoundPipeline> {
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
      `Build ${id} is of pipeline "${name}", and no config here says where that is defined.`,
      "Give --file with the module whose default export it is.",
    );
  }
  if (found.pipeline.name === name) return found;
  throw new HoldfastError(
    "USAGE",
    `Build ${id} is of pipeline "${name}", and ${found.file} exports "${found.pipeline.name}".`,
    "Give --file with the module whose default export it is.",
  );
}
