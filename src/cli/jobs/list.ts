import type { Command } from "commander";
import type { JobState } from "../../core/job.ts";
import { Operator } from "../../runtime/operator.ts";
import { atLeastOne, stateOption } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { jobTable } from "../job-table.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";

interface Options {
  queue?: string;
  name?: string;
  state?: JobState;
  limit: number;
  after?: string;
}

export function listCommand(parent: Command): void {
  parent
    .command("list")
    .summary("list jobs in the order they were made")
    .description("List jobs in the order they were made.")
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name")
    .addOption(stateOption())
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .option("--after <cursor>", "go on after the page that named this cursor")
    .addHelpText("after", examples("holdfast jobs list --state failed", "holdfast jobs list --queue mail --limit 10 --json"))
    .action(async (options: Options, command: Command) => {
      await using hf = await openExisting(command);
      const page = await hf.jobs.list(options);
      answer(command, page, () => jobTable(page, new Operator(hf).now()));
    });
}
