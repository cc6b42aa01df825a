import type { Command } from "commander";
import { Operator } from "../../runtime/operator.ts";
import { atLeastOne } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { jobTable } from "../job-table.ts";
import { answer } from "../render/output.ts";
import { paint } from "../render/table.ts";
import { examples } from "../verb.ts";

export function listCommand(parent: Command): void {
  parent
    .command("list")
    .summary("list the quarantined jobs")
    .description("List the quarantined jobs.")
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name")
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .option("--after <cursor>", "go on after the page that named this cursor")
    .addHelpText("after", examples("holdfast quarantine list"))
    .action(async (options: { queue?: string; name?: string; limit: number; after?: string }, command: Command) => {
      await using hf = await openExisting(command);
      const page = await hf.jobs.list({ ...options, state: "quarantined" });
      answer(command, page, () =>
        page.items.length === 0 ? paint("dim", "Nothing is quarantined.") : jobTable(page, new Operator(hf).now()),
      );
    });
}
