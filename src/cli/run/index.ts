import { hostname } from "node:os";
import type { Command } from "commander";
import { pipelineOf } from "../../core/pipeline.ts";
import { Model } from "../../runtime/builds/model.ts";
import { checkBuildOptions } from "../../runtime/builds/settings.ts";
import { addChoiceOptions, addPaceOptions, buildOptions, checkToken, readToken, type RunOptions } from "../arguments.ts";
import { WorkerProcesses } from "../commands/run-workers.ts";
import { openOrMake } from "../database.ts";
import { EXIT } from "../exit.ts";
import { findPipeline } from "../modules.ts";
import { displayBuild } from "../render/progress.ts";
import { oneLine, paint } from "../render/table.ts";
import { Interrupts } from "../signals.ts";
import { examples } from "../verb.ts";
import { begin, type Wanted } from "./begin.ts";
import { leading, led, type LedParts } from "./led.ts";

export function runCommand(parent: Command): void {
  const run = parent
    .command("run")
    .summary("build a pipeline: start, or go on where it was")
    .description(
      "Build a pipeline, and show how it goes. A build that was interrupted goes on where it was; one that is paused for its " +
        "budget goes on with --token and --budget, or asks on a terminal. What earlier builds have made and still holds is " +
        "reused. Ctrl-C lets what runs finish and leaves a build that goes on with the next run; a second one exits at once.\n\n" +
        "Exit code 0: SUCCESS, 1: FAILED, 2: wrong usage or a bad pipeline, 3: paused for its budget, 4: somebody else leads " +
        "the pipeline's build, 130: interrupted.",
    )
    .argument("<pipeline>", "a .ts or .js module whose default export is a pipeline, or the name of one in the config's modules");
  addChoiceOptions(addPaceOptions(run))
    .option("--fresh", "abandon a build that was interrupted, and start anew: finished work is reused")
    .option("--watch", "then build again whenever the source changes, until Ctrl-C")
    .addHelpText(
      "after",
      examples(
        "holdfast run docs.ts",
        "holdfast run docs.ts --budget 10 --workers 3",
        "holdfast run docs --rerun parse --only 'docs/api/**'",
        "holdfast run docs.ts --token hft_… --budget 20",
        "holdfast run docs.ts --watch",
      ),
    )
    .action(async (given: string, options: RunOptions, command: Command) => {
      checkToken(options);
      const { pipeline, file } = await findPipeline(given, command);
      const model = new Model(pipelineOf(pipeline), hostname());
      const wished = buildOptions(options);
      // Before there is a database: what is refused leaves nothing behind.
      checkBuildOptions(model, wished, "run");
      using interrupts = new Interrupts();
      using show = displayBuild(command);
      await using hf = await openOrMake(command, {
        program: `holdfast run ${given}`,
        log: show.log,
        delivers: true,
        onStop: () => interrupts.stop("`holdfast stop` asked for it"),
      });
      const crew = new WorkerProcesses({ command, pipeline, file, options, say: (text) => show.say(text) });
      const wanted: Wanted = {
        pipeline,
        model,
        options: wished,
        token: await readToken(options.token),
        fresh: options.fresh,
        again: `holdfast run ${given}`,
        anew: `holdfast run ${given} --fresh`,
        signal: interrupts.signal,
      };
      const parts = { hf, command, wanted, show, crew, interrupts };
      process.exitCode = await leading(parts, () => (options.watch ? watched(parts) : led(parts, (next) => begin(hf, next))));
    });
}

/** Until a signal, which is how it is meant to end: 0, unless it has left a build in the middle. */
async function watched(parts: LedParts): Promise<number> {
  const { hf, show, interrupts } = parts;
  let { wanted } = parts;
  using changes = hf.builds.changes(wanted.pipeline);
  for (;;) {
    await changes.mark();
    const code = await led({ ...parts, wanted }, (next) => begin(hf, next));
    if (interrupts.signal.aborted || code === EXIT.paused) return code;
    show.say(paint("dim", `Waiting for changes of ${oneLine(wanted.model.name)}'s source; Ctrl-C ends.`));
    if (!(await changes.next(interrupts.signal))) return EXIT.done;
    // What was asked for once is done.
    const { rerun: _, ...options } = wanted.options;
    wanted = { ...parts.wanted, options, token: undefined, fresh: false };
  }
}
