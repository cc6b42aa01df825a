import { setTimeout as pause } from "node:timers/promises";
import type { Command } from "commander";
import { type Duration, sayMillis, toMillis } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import type { ProcessId } from "../core/ids.ts";
import { plural } from "../core/words.ts";
import { Operator } from "../runtime/operator.ts";
import type { ProcessView } from "../store/processes.ts";
import { atLeastOne } from "./arguments.ts";
import { openExisting } from "./database.ts";
import { EXIT } from "./exit.ts";
import { answer, isJson } from "./render/output.ts";
import { oneLine, paint } from "./render/table.ts";
import { untilInterrupted } from "./signals.ts";
import { examples } from "./verb.ts";

/** What a process may take beyond its drain, to notice and to end. */
const BEYOND = 20_000;
const LOOK = 200;

/** A process, for the answer. */
interface Named {
  pid: number;
  host: string;
  program: string;
}

export function stopCommand(parent: Command): void {
  parent
    .command("stop")
    .summary("ask the workers to stop, and wait until they are gone")
    .description(
      "Ask every process that was started by `holdfast work` to stop gracefully, as a SIGTERM would, and wait until they are " +
        "gone. They are asked through the database and no signal is sent, so it reaches workers in other containers and of other " +
        "users, too. Programs with workers of their own do not heed it unless they open the database with `onStop`. Exit code 0 " +
        "when nobody works any more, 1 when somebody goes on; those are named.",
    )
    .argument("[pids...]", "only these, as in `holdfast status`", (text: string, all: number[] = []) => [
      ...all,
      atLeastOne(text),
    ])
    .option("--drain <duration>", "how long running jobs may finish; the rest is given back", "10s")
    .option("--wait <duration>", "how long to wait for them (default: 20s more than --drain)")
    .addHelpText("after", examples("holdfast stop", "holdfast stop 4711 --drain 1m", "holdfast stop --wait 0s"))
    .action(async (pids: number[], options: { drain: string; wait?: string }, command: Command) => {
      const drain = toMillis(options.drain as Duration, "--drain");
      const wait = options.wait === undefined ? drain + BEYOND : toMillis(options.wait as Duration, "--wait");
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const chosen = choose(await operator.livingProcesses(), pids);
      // Who only enqueues or looks is none of our business, unless it was named.
      const unasked = chosen.filter((process) => !process.stoppable && (pids.length > 0 || process.works.length > 0));
      const asked = chosen.filter((process) => process.stoppable);
      // Those that were asked before stop as they were told then.
      await operator.askToStop(
        asked.map(({ id }) => id),
        drain,
      );
      const say = isJson(command) ? () => {} : (text: string) => void process.stdout.write(`${text}\n`);
      if (asked.length > 0) {
        say(`Asked ${plural(asked.length, "process", "processes")} to stop; running jobs have ${sayMillis(drain)} to finish.`);
      }
      using over = untilInterrupted();
      const left = await untilGone(operator, asked, wait, over, (process) => say(`${paint("green", "gone")} ${name(process)}`));
      const deaf = await stillThere(operator, unasked);
      if (over.aborted) process.exitCode = EXIT.interrupted;
      else if (left.length + deaf.length > 0) process.exitCode = EXIT.failed;
      const gone = asked.filter(({ id }) => !left.some((one) => one.id === id));
      answer(command, { asked: asked.map(named), gone: gone.map(named), left: left.map(named), deaf: deaf.map(named) }, () =>
        [
          ...left.map((process) => `${paint("yellow", "still there")} ${name(process)}`),
          ...deaf.map((process) => `${paint("yellow", "goes on")} ${name(process)}: it does not heed \`holdfast stop\``),
          left.length + deaf.length > 0 ? "Not all of them have stopped." : asked.length > 0 ? "Stopped." : "No process to stop.",
        ].join("\n"),
      );
    });
}

/** A typing mistake must not look like a success. In containers several may have the same pid: all of them are meant. */
function choose(processes: ProcessView[], pids: readonly number[]): ProcessView[] {
  if (pids.length === 0) return processes;
  const missing = pids.find((pid) => !processes.some((process) => process.pid === pid));
  if (missing === undefined) return processes.filter(({ pid }) => pids.includes(pid));
  const others = processes.filter(({ stoppable }) => stoppable).map(({ pid }) => pid);
  throw new HoldfastError(
    "NO_SUCH_PROCESS",
    `No living process ${missing} has this database open.`,
    others.length === 0 ? "There is none that could be asked to stop." : `These can be asked: ${others.join(", ")}.`,
  );
}

/** One that ended or stopped working meanwhile, by itself or by a signal, does not go on. */
async function stillThere(operator: Operator, unasked: readonly ProcessView[]): Promise<ProcessView[]> {
  if (unasked.length === 0) return [];
  const now = new Map((await operator.livingProcesses()).map((process) => [process.id, process]));
  return unasked.filter(({ id, works }) => {
    const process = now.get(id);
    return process !== undefined && (works.length === 0 || process.works.length > 0);
  });
}

/** Those that are still there at the end. */
async function untilGone(
  operator: Operator,
  asked: readonly ProcessView[],
  wait: number,
  over: AbortSignal,
  tell: (gone: ProcessView) => void,
): Promise<ProcessView[]> {
  const until = performance.now() + wait;
  let left = [...asked];
  while (left.length > 0) {
    const there = new Set<ProcessId>((await operator.livingProcesses()).map(({ id }) => id));
    for (const process of left) if (!there.has(process.id)) tell(process);
    left = left.filter(({ id }) => there.has(id));
    const more = until - performance.now();
    if (left.length === 0 || more <= 0 || over.aborted) break;
    await pause(Math.min(LOOK, more), null, { signal: over }).catch(() => {});
  }
  return left;
}

function named({ pid, host, program }: ProcessView): Named {
  return { pid, host, program };
}

function name({ pid, host, program }: ProcessView): string {
  return `pid ${pid} on ${oneLine(host)} (${oneLine(program)})`;
}
