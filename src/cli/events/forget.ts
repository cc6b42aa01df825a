import type { Command } from "commander";
import { HoldfastError } from "../../core/errors.ts";
import { Operator } from "../../runtime/operator.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { oneLine } from "../render/table.ts";
import { examples } from "../verb.ts";

export function forgetCommand(parent: Command): void {
  parent
    .command("forget")
    .summary("forget a sink or subscriber that will not come back")
    .description(
      "Forget a sink or durable subscriber, and what it has not got yet. Until then nothing is removed that it has not got. One that is still in use starts anew.",
    )
    .argument("<name>", "its name, as in `holdfast events sinks`")
    .addHelpText("after", examples("holdfast events forget old-audit"))
    .action(async (name: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const sinks = await operator.sinks();
      const known = sinks.find((sink) => sink.name === name);
      if (known === undefined || !(await operator.forgetSink(name))) {
        throw noSuchSink(
          name,
          sinks.map((sink) => sink.name),
        );
      }
      answer(command, { name, behind: known.behind }, () => `Forgot ${oneLine(name)}; it was ${known.behind} behind.`);
    });
}

function noSuchSink(name: string, others: readonly string[]): HoldfastError {
  return new HoldfastError(
    "NO_SUCH_SINK",
    `There is no sink or subscriber ${name}.`,
    others.length === 0 ? "Nobody is told." : `There are: ${others.join(", ")}.`,
  );
}
