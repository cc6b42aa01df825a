import { setTimeout as pause } from "node:timers/promises";
import { type Command, Option } from "commander";
import { type Duration, durationText, toMillis } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { Pipeline } from "../../core/pipelines/pipeline.ts";
import { plural } from "../../core/text/text.ts";
import type { Definition } from "../../engine/definition.ts";
import { Operator } from "../../operator/operator.ts";
import { forcesExit, STOP_SIGNALS } from "../../engine/shared-engine.ts";
import type { ProcessView } from "../../store/processes.ts";
import { atLeast } from "../arguments.ts";
import { configOf, modulesOf } from "../config.ts";
import { openExisting, openOrCreate, pathOf, programOf } from "../database.ts";
import { EXIT } from "../exit.ts";
import { definitionsIn, pipelinesIn } from "../modules.ts";
import { answer, isJson, workerLog } from "../render/output.ts";
import { oneLine, paint } from "../render/table.ts";
import { guardExit, untilInterrupted } from "../signals.ts";
import { addCommand } from "../verb.ts";

interface WorkOptions {
  concurrency: number;
  drain: string;
  /** The pipeline of the run that started this process. The process works on nothing else, and exits with that run. */
  forRun?: string;
}

export function workCommand(parent: Command): void {
  addCommand(parent, "work", {
    description:
      "Run the jobs and pipeline stages that these modules define, until a signal or `holdfast stop`. A second signal " +
      "exits at once, with 130.",
    examples: ["holdfast work", "holdfast work jobs.ts", "holdfast work jobs/*.ts --concurrency 32 --drain 1m"],
  })
    .argument(
      "[files...]",
      ".ts or .js modules that export jobs with their handlers, or pipelines (default: the config's modules)",
    )
    .option("--concurrency <number>", "how many jobs run at once", atLeast(1), 10)
    .option("--drain <duration>", "how long running jobs may take after a signal; the rest is released", "10s")
    .addOption(new Option("--for-run <pipeline>", "work on this pipeline alone, and end with who has started it").hideHelp())
    .action(async (files: string[], options: WorkOptions, command: Command) => {
      const drain = toMillis(options.drain as Duration, "--drain");
      const modules = files.length > 0 ? files : modulesGiven(command);
      const { forRun } = options;
      const defined = forRun === undefined ? await definitionsIn(modules) : [];
      const exported = (await pipelinesIn(modules)).map(({ pipeline }) => pipeline);
      const pipelines = exported.filter(({ name }) => forRun === undefined || name === forRun);
      const definitions = withHandlers(defined, modules, pipelines.length > 0);
      // A supervisor may send a signal early. If it were lost, the jobs would stay leased until the leases expire.
      const { heard, stop } = listenForStop(drain, configOf(command)?.options.onStop, options.forRun !== undefined);
      await using hf = await openOrCreate(command, {
        program: [programOf(command), ...files].join(" "),
        log: workerLog("info"),
        delivers: true,
        onStop: stop,
      });
      using _ = guardExit();
      const worker = hf.work([...definitions, ...pipelines], { concurrency: options.concurrency });
      printWorking(command, definitions, pipelines, options.concurrency);

      const reason = await heard;
      answer(command, { event: "stopping", ...reason }, () => paint("yellow", stoppingText(reason)));
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
    "No module was given, and this folder has no config that lists any.",
    "Give the files: holdfast work jobs.ts. Or list them in holdfast.config.ts, which `holdfast init` writes.",
  );
}

function withHandlers(definitions: Definition[], files: readonly string[], hasPipelines: boolean): Definition[] {
  const runnable = definitions.filter(({ run }) => run !== undefined);
  if (runnable.length > 0 || hasPipelines) return runnable;
  const names = definitions.map(({ name }) => `"${name}"`).join(", ");
  throw new HoldfastError(
    "NO_HANDLER",
    names === "" ? `No job is exported by ${files.join(", ")}.` : `No handler is exported with ${names}.`,
    "Export what job({ name, run }) returns, or def.handle(run): by default, by name, or in an array.",
  );
}

function printWorking(
  command: Command,
  definitions: readonly Definition[],
  pipelines: readonly Pipeline[],
  concurrency: number,
): void {
  const path = pathOf(command);
  const jobs = definitions.map(({ name, version, queue }) => ({ name, version, queue }));
  const built = pipelines.map(({ name }) => name);
  const about = { pid: process.pid, db: path, concurrency, jobs, ...(built.length === 0 ? {} : { pipelines: built }) };
  answer(command, { event: "working", ...about }, () => {
    const names = [...jobs.map(({ name, version }) => (version === 1 ? name : `${name} v${version}`)), ...built];
    const about = paint("dim", `(pid ${process.pid}, at most ${concurrency} jobs at once)`);
    return `Working on ${oneLine(path)}: ${paint("bold", oneLine(names.join(", ")))} ${about}`;
  });
}

type StopReason = { signal: NodeJS.Signals; drain: number } | { asked: true; drain: number };

function stoppingText(reason: StopReason): string {
  const time = `running jobs have ${durationText(reason.drain)} to finish.`;
  if ("signal" in reason) return `Stopping: ${time} A second signal exits at once.`;
  return `Stopping, as \`holdfast stop\` asked: ${time} A signal exits at once.`;
}

function listenForStop(
  drain: number,
  onStop: ((drain: number) => void) | undefined,
  withParent = false,
): { heard: Promise<StopReason>; stop: (drain: number) => void } {
  const { promise, resolve } = Promise.withResolvers<StopReason>();
  let stopping = false;
  for (const name of STOP_SIGNALS) {
    process.on(name, (signal) => {
      // A terminal sends the signal to both processes; the parent decides when to stop.
      if (withParent && signal !== "SIGTERM") return;
      if (stopping && forcesExit(signal)) process.exit(EXIT.interrupted);
      stopping = true;
      resolve({ signal, drain });
    });
  }
  if (withParent) {
    process.once("disconnect", () => resolve({ asked: true, drain }));
    // The parent may have died while this process loaded its modules.
    if (!process.connected) resolve({ asked: true, drain });
  }
  const stop = (asked: number) => {
    onStop?.(asked);
    stopping = true;
    resolve({ asked: true, drain: asked });
  };
  return { heard: promise, stop };
}

const STOP_GRACE_MS = 20_000;
const POLL_MS = 200;

export function stopCommand(parent: Command): void {
  addCommand(parent, "stop", {
    description:
      "Ask every `holdfast work` process to stop gracefully, and wait until they have. The request goes through the " +
      "database, so it also reaches workers in other containers and of other users. Other programs stop only if they " +
      "open the database with `onStop`. Exit code 0 when no worker is left, 1 when one is still running; those are " +
      "named.",
    examples: ["holdfast stop", "holdfast stop 4711 --drain 1m", "holdfast stop --wait 0s"],
  })
    .argument("[pids...]", "only these, as in `holdfast status`", (text: string, all: number[] = []) => [
      ...all,
      atLeast(1)(text),
    ])
    .option("--drain <duration>", "how long running jobs may take; the rest is released", "10s")
    .option("--wait <duration>", "how long to wait for them (default: 20s more than --drain)")
    .action(async (pids: number[], options: { drain: string; wait?: string }, command: Command) => {
      const drain = toMillis(options.drain as Duration, "--drain");
      const wait = options.wait === undefined ? drain + STOP_GRACE_MS : toMillis(options.wait as Duration, "--wait");
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const chosen = chooseProcesses(await operator.livingProcesses(), pids);
      // Processes without workers are left alone, unless the operator named them.
      const unasked = chosen.filter((process) => !process.stoppable && (pids.length > 0 || process.works.length > 0));
      const asked = chosen.filter((process) => process.stoppable);
      await operator.askToStop(
        asked.map(({ id }) => id),
        drain,
      );
      const say = isJson(command) ? () => {} : (text: string) => void process.stdout.write(`${text}\n`);
      if (asked.length > 0) {
        say(`Asked ${plural(asked.length, "process", "processes")} to stop; running jobs have ${durationText(drain)} to finish.`);
      }
      using over = untilInterrupted();
      const left = await untilGone(operator, asked, wait, over, (process) =>
        say(`${paint("green", "gone")} ${processText(process)}`),
      );
      const deaf = await stillThere(operator, unasked);
      if (over.aborted) process.exitCode = EXIT.interrupted;
      else if (left.length + deaf.length > 0) process.exitCode = EXIT.failed;
      const gone = asked.filter(({ id }) => !left.some((one) => one.id === id));
      answer(command, { asked: named(asked), gone: named(gone), left: named(left), deaf: named(deaf) }, () =>
        [
          ...left.map((process) => `${paint("yellow", "still there")} ${processText(process)}`),
          ...deaf.map(
            (process) => `${paint("yellow", "still running")} ${processText(process)}: it does not heed \`holdfast stop\``,
          ),
          left.length + deaf.length > 0 ? "Not all of them have stopped." : asked.length > 0 ? "Stopped." : "No process to stop.",
        ].join("\n"),
      );
    });
}

/** Returns the processes with these pids. A mistyped pid is an error. In containers several processes may have the same pid. */
function chooseProcesses(processes: ProcessView[], pids: readonly number[]): ProcessView[] {
  if (pids.length === 0) return processes;
  const missing = pids.find((pid) => !processes.some((process) => process.pid === pid));
  if (missing === undefined) return processes.filter(({ pid }) => pids.includes(pid));
  const others = processes.filter(({ stoppable }) => stoppable).map(({ pid }) => pid);
  throw new HoldfastError(
    "NO_SUCH_PROCESS",
    `No living process ${missing} has this database open.`,
    others.length === 0 ? "No process has it open." : `Processes: ${others.join(", ")}.`,
  );
}

async function stillThere(operator: Operator, unasked: readonly ProcessView[]): Promise<ProcessView[]> {
  if (unasked.length === 0) return [];
  const now = new Map((await operator.livingProcesses()).map((process) => [process.id, process]));
  return unasked.filter(({ id, works }) => {
    const process = now.get(id);
    return process !== undefined && (works.length === 0 || process.works.length > 0);
  });
}

async function untilGone(
  operator: Operator,
  asked: readonly ProcessView[],
  wait: number,
  over: AbortSignal,
  onGone: (gone: ProcessView) => void,
): Promise<ProcessView[]> {
  const until = performance.now() + wait;
  let left = [...asked];
  while (left.length > 0) {
    const there = new Set<ProcessId>((await operator.livingProcesses()).map(({ id }) => id));
    for (const process of left) if (!there.has(process.id)) onGone(process);
    left = left.filter(({ id }) => there.has(id));
    const more = until - performance.now();
    if (left.length === 0 || more <= 0 || over.aborted) break;
    await pause(Math.min(POLL_MS, more), null, { signal: over }).catch(() => {});
  }
  return left;
}

function named(processes: readonly ProcessView[]): Pick<ProcessView, "pid" | "host" | "program">[] {
  return processes.map(({ pid, host, program }) => ({ pid, host, program }));
}

function processText({ pid, host, program }: ProcessView): string {
  return `pid ${pid} on ${oneLine(host)} (${oneLine(program)})`;
}
