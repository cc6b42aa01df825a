import { type Command, Option } from "commander";
import { type Duration, sayMillis, toMillis } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import type { Pipeline } from "../core/pipeline.ts";
import type { Definition } from "../runtime/definition.ts";
import { isImpatient, SIGNALS } from "../runtime/signals.ts";
import { atLeastOne } from "./arguments.ts";
import { configOf, modulesOf } from "./config.ts";
import { openOrMake, pathOf, programOf } from "./database.ts";
import { EXIT } from "./exit.ts";
import { definitionsIn, pipelinesIn } from "./modules.ts";
import { answer, workerLog } from "./render/output.ts";
import { oneLine, paint } from "./render/table.ts";
import { ExitGuard } from "./signals.ts";
import { examples } from "./verb.ts";

interface Options {
  concurrency: number;
  drain: string;
  /** Started by a run of this pipeline: it works on nothing else, and ends with it. */
  forRun?: string;
}

export function workCommand(parent: Command): void {
  parent
    .command("work")
    .summary("run jobs until a signal, or `holdfast stop`")
    .description(
      "Run the jobs that these modules define, and the stages of their pipelines while somebody builds them, until a signal or " +
        "`holdfast stop` ends it. A second signal exits at once, with 130.",
    )
    .argument(
      "[files...]",
      ".ts or .js modules that export jobs with their handlers, or pipelines (default: the config's modules)",
    )
    .option("--concurrency <number>", "how many jobs run at once", atLeastOne, 10)
    .option("--drain <duration>", "how long running jobs may finish after a signal; the rest is given back", "10s")
    .addOption(new Option("--for-run <pipeline>", "work on this pipeline alone, and end with who has started it").hideHelp())
    .addHelpText(
      "after",
      examples("holdfast work", "holdfast work jobs.ts", "holdfast work jobs/*.ts --concurrency 32 --drain 1m"),
    )
    .action(async (files: string[], options: Options, command: Command) => {
      const drain = toMillis(options.drain as Duration, "--drain");
      const modules = files.length > 0 ? files : modulesGiven(command);
      const { forRun } = options;
      const defined = forRun === undefined ? await definitionsIn(modules) : [];
      const exported = (await pipelinesIn(modules)).map(({ pipeline }) => pipeline);
      const pipelines = exported.filter(({ name }) => forRun === undefined || name === forRun);
      const definitions = withHandlers(defined, modules, pipelines.length > 0);
      // A supervisor may be quick: from here on a signal must not be lost, or the jobs would wait for their leases.
      const { heard, stop } = listen(drain, configOf(command)?.options.onStop, options.forRun !== undefined);
      await using hf = await openOrMake(command, {
        program: [programOf(command), ...files].join(" "),
        log: workerLog("info"),
        delivers: true,
        onStop: stop,
      });
      using _ = new ExitGuard();
      const worker = hf.work([...definitions, ...pipelines], { concurrency: options.concurrency });
      tell(command, definitions, pipelines, options.concurrency);

      const reason = await heard;
      answer(command, { event: "stopping", ...reason }, () => paint("yellow", sayStopping(reason)));
      await worker.stop({ drain: reason.drain });
      await hf.close();
      answer(command, { event: "stopped" }, () => "Stopped.");
    });
}

function modulesGiven(command: Command): string[] {
  const config = configOf(command);
  if (config !== null) return modulesOf(config);
  throw new HoldfastError(
    "USAGE",
    "No module was named, and there is no config here that names some.",
    "Name the files: holdfast work jobs.ts. Or list them in holdfast.config.ts, which `holdfast init` writes.",
  );
}

function withHandlers(definitions: Definition[], files: readonly string[], hasPipelines: boolean): Definition[] {
  const runnable = definitions.filter(({ run }) => run !== undefined);
  if (runnable.length > 0 || hasPipelines) return runnable;
  const names = definitions.map(({ name }) => `"${name}"`).join(", ");
  throw new HoldfastError(
    "NO_HANDLER",
    names === "" ? `No job is exported by ${files.join(", ")}.` : `No handler comes with ${names}.`,
    "Export what job({ name, run }) returns, or def.handle(run): by default, by name, or in an array.",
  );
}

function tell(command: Command, definitions: readonly Definition[], pipelines: readonly Pipeline[], concurrency: number): void {
  const path = pathOf(command);
  const jobs = definitions.map(({ name, version, queue }) => ({ name, version, queue }));
  const built = pipelines.map(({ name }) => name);
  const about = { pid: process.pid, db: path, concurrency, jobs, ...(built.length === 0 ? {} : { pipelines: built }) };
  answer(command, { event: "working", ...about }, () => {
    const names = [...jobs.map(({ name, version }) => (version === 1 ? name : `${name} v${version}`)), ...built];
    const about = paint("dim", `(pid ${process.pid}, ${concurrency} at once)`);
    return `Working on ${oneLine(path)}: ${paint("bold", oneLine(names.join(", ")))} ${about}`;
  });
}

/** By a signal, or asked by `holdfast stop`, which says how long. */
type Reason = { signal: NodeJS.Signals; drain: number } | { asked: true; drain: number };

function sayStopping(reason: Reason): string {
  const time = `running jobs have ${sayMillis(reason.drain)} to finish.`;
  if ("signal" in reason) return `Stopping: ${time} Again to exit at once.`;
  return `Stopping, as \`holdfast stop\` asked: ${time} A signal exits at once.`;
}

/** Resolves with the first word to stop; a signal after it ends the process, whatever it is in the middle of. */
function listen(
  drain: number,
  onStop: ((drain: number) => void) | undefined,
  withParent = false,
): { heard: Promise<Reason>; stop: (drain: number) => void } {
  const { promise, resolve } = Promise.withResolvers<Reason>();
  let stopping = false;
  for (const name of SIGNALS) {
    process.on(name, (signal) => {
      // A terminal sends it to both; the parent says when it is over.
      if (withParent && signal !== "SIGTERM") return;
      if (stopping && isImpatient(signal)) process.exit(EXIT.interrupted);
      stopping = true;
      resolve({ signal, drain });
    });
  }
  if (withParent) {
    process.once("disconnect", () => resolve({ asked: true, drain }));
    // It may have died while this one was loading its modules.
    if (!process.connected) resolve({ asked: true, drain });
  }
  const stop = (asked: number) => {
    // The config may have something of its own to stop.
    onStop?.(asked);
    stopping = true;
    resolve({ asked: true, drain: asked });
  };
  return { heard: promise, stop };
}
