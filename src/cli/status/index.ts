import type { Command } from "commander";
import { type Duration, toMillis } from "../../core/duration.ts";
import { HoldfastError } from "../../core/errors.ts";
import { Operator } from "../../runtime/operator.ts";
import { alarmsOf } from "../../runtime/status/alarms.ts";
import { openExisting, pathOf } from "../database.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";
import { withAdvice } from "./advice.ts";
import { statusPage } from "./page.ts";
import { watch } from "./watch.ts";

/** Faster than this nobody reads, and looking is not free. */
const LEAST = 100;

export function statusCommand(parent: Command): void {
  parent
    .command("status")
    .summary("how the queues stand, and what needs attention")
    .description(
      "Show the queues, builds that have not ended, who works on them, locks, schedules, what was recovered, and what needs attention: names that nobody " +
        "works on, too. With --watch it is shown again and again until Ctrl-C, which exits 0; with --json that is a line each time.",
    )
    .option("--watch [interval]", "show it again and again (default: every 2s)")
    .addHelpText("after", examples("holdfast status", "holdfast status --watch 5s", "holdfast status --db work.db --json"))
    .action(async (options: { watch?: string | true }, command: Command) => {
      const interval = intervalOf(options.watch);
      await using hf = await openExisting(command);
      if (interval !== null) return await watch(hf, command, interval);
      const overview = await new Operator(hf).overview();
      const alarms = withAdvice(alarmsOf(overview), command);
      answer(command, { ...overview, alarms }, () => statusPage(pathOf(command), overview, alarms));
    });
}

function intervalOf(given: string | true | undefined): number | null {
  if (given === undefined) return null;
  const interval = given === true ? 2_000 : toMillis(given as Duration, "--watch");
  if (interval >= LEAST) return interval;
  throw new HoldfastError("DURATION_INVALID", `--watch is ${String(given)}.`, `Give at least ${LEAST}ms, e.g. 2s.`);
}
