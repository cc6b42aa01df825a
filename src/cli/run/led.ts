import { isDeepStrictEqual } from "node:util";
import type { Command } from "commander";
import { fromBudget } from "../../core/budget.ts";
import type { Build } from "../../core/build-view.ts";
import type { Amount, Cost } from "../../core/cost.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { Operator } from "../../runtime/operator.ts";
import type { BuildRow } from "../../store/builds.ts";
import { askBudget, sayHow, sayPaused, tokenFor, totalToFinish } from "../commands/run-budget.ts";
import type { WorkerProcesses } from "../commands/run-workers.ts";
import { EXIT } from "../exit.ts";
import { isJson } from "../render/output.ts";
import { type BuildDisplay, buildSummary, nextStep } from "../render/progress.ts";
import { paint } from "../render/table.ts";
import { ExitGuard, type Interrupts } from "../signals.ts";
import type { Begun, Wanted } from "./begin.ts";

export interface LedParts {
  hf: Holdfast;
  command: Command;
  wanted: Wanted;
  show: BuildDisplay;
  crew: WorkerProcesses;
  interrupts: Interrupts;
}

/** The exit code of leading builds, also where that is interrupted. The crew ends with it. */
export async function leading({ crew, interrupts }: LedParts, lead: () => Promise<number>): Promise<number> {
  using _ = new ExitGuard();
  try {
    return await lead();
  } catch (error) {
    if (error !== interrupts.signal.reason) throw error;
    return EXIT.interrupted;
  } finally {
    await crew.end();
  }
}

/** Leads one build to its end, or to where it has to be left; whoever sits at a terminal is asked for money. Answers the exit code. */
export async function led(parts: LedParts, begin: (wanted: Wanted) => Promise<Begun>): Promise<number> {
  const { hf, command, show, interrupts } = parts;
  const operator = new Operator(hf);
  for (let { wanted } = parts; ;) {
    const begun = await begin(wanted);
    const build = "paused" in begun ? begun.paused : await followed(parts, begun);
    const row = (await operator.build(build.id)) as BuildRow;
    if (build.state !== "BUDGET_PAUSE") {
      show.end(build, () => `${buildSummary(build, operator.now())}\n${paint("dim", nextStep(build, wanted.again))}`.trimEnd());
      return exitOf(build, interrupts.signal.aborted);
    }
    const asks = !isJson(command) && process.stdin.isTTY === true && process.stdout.isTTY === true && !interrupts.signal.aborted;
    const toFinish = await totalToFinish(hf, row, wanted);
    show.end(build, () => {
      const paused = sayPaused(row, build, toFinish);
      const said = "paused" in begun ? paused : `${buildSummary(build, operator.now())}\n${paused}`;
      return asks ? said : `${said}\n${sayHow(row, wanted.again, build.token)}`;
    });
    const paid = asks ? await asked(parts, row, build, wanted, toFinish) : null;
    if (paid === null) return EXIT.paused;
    wanted = { ...parts.wanted, options: { ...parts.wanted.options, budget: paid.budget }, token: paid.token };
  }
}

async function asked(
  { hf, show, interrupts }: LedParts,
  row: BuildRow,
  build: Build,
  { options, again }: Wanted,
  toFinish: Amount | null,
): Promise<{ token: string; budget: Cost } | null> {
  // What it was started with has not been enough.
  const isNew = !isDeepStrictEqual(options.budget, fromBudget(row.budget));
  const budget = await askBudget(row, toFinish, isNew ? options.budget : undefined, interrupts.signal);
  if (budget !== null) return { token: await tokenFor(hf, build), budget };
  show.say(sayHow(row, again, build.token));
  return null;
}

async function followed({ hf, show, crew, interrupts }: LedParts, begun: Exclude<Begun, { paused: Build }>): Promise<Build> {
  const { handle, how, warnings } = begun;
  if (how === "resumed") show.say(paint("dim", `Going on with build ${handle.id}.`));
  for (const warning of warnings) show.say(paint("yellow", `warning: ${warning}`));
  crew.start();
  const stopping = (): void => {
    show.say(
      paint("yellow", "Stopping: what runs may finish within 10s, the rest is left for the next run. Again to exit at once."),
    );
    void crew.end();
  };
  if (interrupts.signal.aborted) stopping();
  else interrupts.signal.addEventListener("abort", stopping, { once: true });
  try {
    for await (const build of handle.progress()) {
      if (build.state !== "ACTIVE") continue;
      const row = await new Operator(hf).build(handle.id);
      show.progress({ build, listing: row?.listing === "running", processes: crew.size + 1 });
    }
    return await handle.done();
  } finally {
    interrupts.signal.removeEventListener("abort", stopping);
  }
}

function exitOf({ state }: Build, interrupted: boolean): number {
  if (state === "SUCCESS") return EXIT.done;
  return state === "CRASHED" && interrupted ? EXIT.interrupted : EXIT.failed;
}
