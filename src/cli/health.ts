import type { Command } from "commander";
import { type Duration, toMillis } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import { number, plural } from "../core/words.ts";
import { Operator } from "../runtime/operator.ts";
import { type Alarm, alarmsOf } from "../runtime/status/alarms.ts";
import { type Overview, workersIn } from "../runtime/status/overview.ts";
import { openExisting } from "./database.ts";
import { EXIT, exitCodeOf } from "./exit.ts";
import { answer } from "./render/output.ts";
import { oneLine, paint } from "./render/table.ts";
import { examples } from "./verb.ts";

export function healthCommand(parent: Command): void {
  parent
    .command("health")
    .summary("one line and an exit code, for probes")
    .description(
      "For probes: one line, and exit code 0 when all is well, 1 when not, 5 when the database is damaged. Not well: it " +
        "cannot be opened or written, jobs wait and nobody works (a process that only enqueues does not), jobs are quarantined. " +
        "Names that nobody works on, while others are, show in `status`; here --oldest finds them when their jobs wait too long.",
    )
    .option("--oldest <duration>", "not ok either when a job that could run has waited for longer, e.g. 10m")
    .addHelpText("after", examples("holdfast health", "holdfast health --oldest 10m || alert"))
    .action(async (options: { oldest?: string }, command: Command) => {
      const limits = options.oldest === undefined ? {} : { oldest: toMillis(options.oldest as Duration, "--oldest") };
      const overview = await look(command);
      if (overview instanceof HoldfastError) {
        process.exitCode = exitCodeOf(overview.code);
        const { code, message, hint } = overview;
        answer(command, { ok: false, reasons: [{ code, message, hint }] }, () => line(false, message));
        return;
      }
      const alarms = alarmsOf(overview, limits);
      const reasons = alarms.filter(({ grave }) => grave);
      if (reasons.length > 0) process.exitCode = EXIT.failed;
      answer(command, { ok: reasons.length === 0, reasons, counts: overview.counts }, () =>
        reasons.length === 0
          ? line(true, summary(overview))
          : line(false, reasons.map(({ message }: Alarm) => message).join("; ")),
      );
    });
}

/** Opening enters this process in the database: that it can be written is proven, too. */
async function look(command: Command): Promise<Overview | HoldfastError> {
  try {
    await using hf = await openExisting(command);
    const operator = new Operator(hf);
    operator.refuseDamaged();
    const overview = await operator.overview();
    // It may have been met just now.
    operator.refuseDamaged();
    return overview;
  } catch (error) {
    // A wrong path is no illness of the database.
    if (error instanceof HoldfastError && exitCodeOf(error.code) !== EXIT.usage) return error;
    throw error;
  }
}

function summary(overview: Overview): string {
  const { pending, running } = overview.counts;
  const builds = overview.builds.filter(({ state }) => state === "ACTIVE").length;
  const jobs = `${number(pending)} pending, ${number(running)} running, ${plural(workersIn(overview).length, "worker")}`;
  return builds === 0 ? jobs : `${jobs}, ${plural(builds, "build")} running`;
}

function line(ok: boolean, text: string): string {
  return `${ok ? paint("green", "ok") : paint("red", "not ok")}: ${oneLine(text)}`;
}
