import type { Command } from "commander";
import { type Duration, toMillis } from "../../core/duration.ts";
import { number, plural } from "../../core/words.ts";
import { Operator } from "../../runtime/operator.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";

export function sweepCommand(parent: Command): void {
  parent
    .command("sweep")
    .summary("remove artifacts that nobody references")
    .description(
      "Remove artifacts that no build references any more. Builds may run meanwhile: nothing that is in use is removed.",
    )
    .option("--older-than <duration>", "and that nobody has stored for this long", "1d")
    .addHelpText("after", examples("holdfast artifacts sweep", "holdfast artifacts sweep --older-than 7d --json"))
    .action(async (options: { olderThan: string }, command: Command) => {
      const olderThan = toMillis(options.olderThan as Duration, "--older-than");
      await using hf = await openExisting(command);
      const swept = await new Operator(hf).sweepArtifacts(olderThan);
      answer(command, swept, () => {
        return `Removed ${plural(swept.removed, "artifact")} of ${number(swept.seen)}, ${number(swept.bytes)} bytes.`;
      });
    });
}
