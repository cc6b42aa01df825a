import type { Command } from "commander";
import { openExisting } from "../database.ts";
import { actOnJobs, examples } from "../verb.ts";

export function retryCommand(parent: Command): void {
  parent
    .command("retry")
    .summary("start failed or quarantined jobs anew")
    .description("Start failed or quarantined jobs anew, with fresh counts.")
    .argument("<ids...>", "ids of jobs")
    .addHelpText("after", examples("holdfast jobs retry 1p0k9r3zq00000007"))
    .action(async (ids: string[], _options: object, command: Command) => {
      await using hf = await openExisting(command);
      await actOnJobs(command, hf, ids, {
        done: "retried",
        act: (id) => hf.jobs.retry(id),
        refuse: ({ state }) => `It is ${state}; only failed and quarantined jobs can be retried.`,
      });
    });
}
