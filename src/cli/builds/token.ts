import type { Command } from "commander";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";

export function tokenCommand(parent: Command): void {
  parent
    .command("token")
    .summary("make another confirmation token for a paused build")
    .description(
      "Make another confirmation token for a build that is paused for its budget, and print it. It can be used once, within an " +
        "hour; those before it do not count any more. That it was made is in the audit, the token itself is kept nowhere.",
    )
    .argument("<id>", "the build's id")
    .addHelpText("after", examples("holdfast builds token b1k7i1ug7v00000001"))
    .action(async (id: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const token = await hf.builds.mintToken(id);
      answer(command, { build: id, token }, () => token);
    });
}
