import type { Command } from "commander";
import { type Cost, sayCost } from "../../core/cost.ts";
import { HoldfastError } from "../../core/errors.ts";
import { environmentToken, parseCost, readToken, TOKEN_SOURCES } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { oneLine } from "../render/table.ts";
import { examples } from "../verb.ts";

export function approveCommand(parent: Command): void {
  parent
    .command("approve")
    .summary("give a paused build a new budget; the next run goes on")
    .description(
      "Give a build that is paused for its budget a new one, without running anything. The next `run` goes on with it.",
    )
    .argument("<id>", "the build's id")
    .option("--token <token>", `its confirmation token; ${TOKEN_SOURCES}; \`holdfast builds token\` makes another`)
    .requiredOption("--budget <usd>", "how much it may spend in all: 10, or usd=10,tokens=100000", parseCost)
    .addHelpText("after", examples("holdfast builds approve b1k7i1ug7v00000001 --token hft_… --budget 10"))
    .action(async (id: string, { token: given, budget }: { token?: string; budget: Cost }, command: Command) => {
      const token = (await readToken(given)) ?? environmentToken();
      if (token === undefined) throw noToken(id);
      await using hf = await openExisting(command);
      const build = await hf.builds.approve(id, { token, budget });
      answer(
        command,
        build,
        () =>
          `Approved: build ${id} of "${oneLine(build.pipeline)}" may spend ${sayCost(build.budget)}. The next run goes on with it.`,
      );
    });
}

function noToken(id: string): HoldfastError {
  return new HoldfastError(
    "USAGE",
    "No confirmation token was given.",
    `Give --token, with - to read standard input, or set HOLDFAST_TOKEN. holdfast builds token ${id} makes one.`,
  );
}
