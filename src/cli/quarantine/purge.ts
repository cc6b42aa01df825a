import type { Command } from "commander";
import { HoldfastError } from "../../core/errors.ts";
import { plural } from "../../core/words.ts";
import { Operator } from "../../runtime/operator.ts";
import { idsOrAll } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { actOnJobs, examples } from "../verb.ts";
import { isQuarantined, quarantinedIds } from "./quarantined.ts";

export function purgeCommand(parent: Command): void {
  parent
    .command("purge")
    .summary("remove quarantined jobs for good")
    .description("Remove quarantined jobs for good, their inputs too.")
    .argument("[ids...]", "ids of quarantined jobs")
    .option("--all", "all of them; needs --yes")
    .option("--yes", "do not ask")
    .addHelpText("after", examples("holdfast quarantine purge 1p0k9r3zq00000007", "holdfast quarantine purge --all --yes"))
    .action(async (ids: string[], options: { all?: boolean; yes?: boolean }, command: Command) => {
      idsOrAll(ids, options.all);
      await using hf = await openExisting(command);
      const chosen = options.all ? await quarantinedIds(hf) : ids;
      if (options.all && !options.yes) throw unsure(chosen.length);
      await actOnJobs(command, hf, chosen, {
        done: "purged",
        act: async (id) => (await isQuarantined(hf, id)) && (await new Operator(hf).purge(id)),
        refuse: ({ state }) => `It is ${state}, not quarantined.`,
      });
    });
}

function unsure(count: number): HoldfastError {
  return new HoldfastError(
    "USAGE",
    `This would remove ${plural(count, "quarantined job")} for good, so nothing was removed.`,
    "Add --yes if that is what you want, or give the ids of those to remove.",
  );
}
