import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import { exposition } from "../core/exposition.ts";
import { type Facts, familiesOf } from "../core/metrics.ts";
import { unopened } from "../runtime/metrics.ts";
import { Operator } from "../runtime/operator.ts";
import { backupsOf, openExisting } from "./database.ts";
import { EXIT, exitCodeOf } from "./exit.ts";
import { answer, workerLog } from "./render/output.ts";
import { examples } from "./verb.ts";

export function metricsCommand(parent: Command): void {
  parent
    .command("metrics")
    .summary("figures for Prometheus, once")
    .description(
      "Print how the database stands as Prometheus reads it: jobs by queue and state, who works, builds, schedules, sinks, what " +
        "crashes did, the disk, backups, alarms. For node_exporter's textfile collector, or whatever scrapes a command. Where the " +
        "database is damaged, what can be read of it; where it cannot be opened, that it is not up. Either exits 0: the figures say so.",
    )
    .addHelpText(
      "after",
      examples(
        "holdfast metrics",
        "holdfast metrics > jobs.prom.new && mv jobs.prom.new /var/lib/node_exporter/jobs.prom",
        "holdfast metrics --json | jq '.families[].name'",
      ),
    )
    .action(async (_options: object, command: Command) => {
      const families = familiesOf(await look(command)).filter(({ samples }) => samples.length > 0);
      answer(command, { families }, () => exposition(families).trimEnd());
    });
}

async function look(command: Command): Promise<Facts> {
  try {
    await using hf = await openExisting(command);
    const folder = backupsOf(command);
    return await new Operator(hf).metrics(folder === undefined ? {} : { backups: { folder } });
  } catch (error) {
    // A wrong path is no figure.
    if (!(error instanceof HoldfastError) || exitCodeOf(error.code) === EXIT.usage) throw error;
    workerLog("warn").warn(error.message, { code: error.code });
    return unopened({ at: Date.now(), isDamaged: error.code === "DAMAGED" });
  }
}
