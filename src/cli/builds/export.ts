import type { Command } from "commander";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";

export function exportCommand(parent: Command): void {
  parent
    .command("export")
    .summary("write what a build has made into a folder")
    .description(
      "Write what a build has made into a folder, whole or not at all, with manifest.json and checksums.txt, and print its path.",
    )
    .argument("<id>", "the build's id")
    .argument("<dir>", "the folder; there must be none yet")
    .option("--stage <stage>", "only this stage; may be repeated", (text: string, all: string[] = []) => [...all, text])
    .addHelpText(
      "after",
      examples(
        "holdfast builds export b1k7i1ug7v00000001 out/first",
        "holdfast builds export b1k7i1ug7v00000001 out/index --stage index",
      ),
    )
    .action(async (id: string, dir: string, { stage: stages }: { stage?: string[] }, command: Command) => {
      await using hf = await openExisting(command);
      const path = await hf.builds.export(id, dir, stages === undefined ? {} : { stages });
      answer(command, { build: id, path }, () => path);
    });
}
