import type { Command } from "commander";
import type { Why } from "../../core/why.ts";
import { number } from "../../core/words.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { paint, table } from "../render/table.ts";
import { examples } from "../verb.ts";

export function whyCommand(parent: Command): void {
  parent
    .command("why")
    .summary("why a stage ran for a target, or was reused")
    .description(
      "Show why a build ran a stage for a target, or reused its result: which of version, key, input and target changed.",
    )
    .argument("<id>", "the build's id")
    .argument("<stage>", "the stage's name")
    .argument("<target>", "the target's id")
    .addHelpText("after", examples("holdfast builds why b1k7i1ug7v00000001 parse docs/intro.md"))
    .action(async (id: string, stage: string, target: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const why = await hf.builds.why(id, stage, target);
      answer(command, why, () => page(why));
    });
}

function page({ ran, reason, parts }: Why): string {
  const said = reason.replace(/^\w+/, (word) => paint(ran ? "cyan" : "green", word));
  if (parts.length === 0) return said;
  const changes = table(
    [
      { title: "PART", value: ({ part }) => part },
      { title: "BEFORE", value: ({ before }) => say(before), least: 12, style: () => "dim" },
      { title: "AFTER", value: ({ after }) => say(after), least: 12 },
    ],
    parts.slice(0, MOST),
  );
  const more = parts.length > MOST ? `\n${paint("dim", `and ${number(parts.length - MOST)} more; --json has them all.`)}` : "";
  return `${said}\n${changes}${more}`;
}

/** A gather may have thousands of members. */
const MOST = 100;

function say(value: unknown): string {
  return value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}
