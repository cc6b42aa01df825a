import type { Command } from "commander";
import { openExisting } from "../database.ts";
import { examples } from "../help.ts";
import { answer } from "../terminal/output.ts";
import { oneLine } from "../terminal/text.ts";

export function abandonCommand(parent: Command): void {
  parent
    .command("abandon")
    .summary("end a build that will not be gone on with")
    .description(
      "End a build that will not be gone on with. If a process leads it, that one stops. What it has made is reused by the next.",
    )
    .argument("<id>", "the build's id")
    .requiredOption("--reason <text>", "why, in words: it is kept for those who ask later")
    .addHelpText("after", examples(`holdfast builds abandon b1k7i1ug7v00000001 --reason "wrong prompt"`))
    .action(async (id: string, { reason }: { reason: string }, command: Command) => {
      await using hf = await openExisting(command);
      const build = await hf.builds.abandon(id, reason);
      answer(command, build, () => `Abandoned build ${id} of "${oneLine(build.pipeline)}".`);
    });
}
