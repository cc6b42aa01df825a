import type { Command } from "commander";
import { idsOrAll } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { actOnJobs, examples } from "../verb.ts";
import { isQuarantined, quarantinedIds } from "./quarantined.ts";

export function retryCommand(parent: Command): void {
  parent
    .command("retry")
    .summary("give quarantined jobs another chance")
    .description("Give quarantined jobs another chance, with fresh counts.")
    .argument("[ids...]", "ids of quarantined jobs")
    .option("--all", "all of them")
    .addHelpText("after", examples("holdfast quarantine retry 1p0k9r3zq00000007", "holdfast quarantine retry --all"))
    .action(async (ids: string[], options: { all?: boolean }, command: Command) => {
      idsOrAll(ids, options.all);
      await using hf = await openExisting(command);
      await actOnJobs(command, hf, options.all ? await quarantinedIds(hf) : ids, {
        done: "retried",
        act: async (id) => (await isQuarantined(hf, id)) && hf.jobs.retry(id),
        refuse: ({ state }) => `It is ${state}, not quarantined.`,
      });
    });
}
