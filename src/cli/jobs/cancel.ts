import type { Command } from "commander";
import { openExisting } from "../database.ts";
import { actOnJobs, examples } from "../verb.ts";

export function cancelCommand(parent: Command): void {
  parent
    .command("cancel")
    .summary("cancel jobs that have not finished")
    .description("Cancel jobs that have not finished. A running one's signal aborts, and nothing of the attempt is kept.")
    .argument("<ids...>", "ids of jobs")
    .addHelpText("after", examples("holdfast jobs cancel 1p0k9r3zq00000007"))
    .action(async (ids: string[], _options: object, command: Command) => {
      await using hf = await openExisting(command);
      await actOnJobs(command, hf, ids, {
        done: "cancelled",
        act: (id) => hf.jobs.cancel(id),
        refuse: ({ state }) => `It is ${state} already.`,
      });
    });
}
