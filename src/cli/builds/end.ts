import type { Command } from "commander";
import type { Build } from "../../core/build-view.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { oneLine } from "../render/table.ts";
import { examples } from "../verb.ts";

export function abandonCommand(parent: Command): void {
  addCommand(parent, {
    name: "abandon",
    summary: "abandon a build",
    description: "Abandon a build. Its orchestrator stops, if it has one. The next build reuses its results.",
    example: 'holdfast builds abandon b1k7i1ug7v00000001 --reason "wrong prompt"',
    done: "Abandoned",
    end: (hf, id, reason) => hf.builds.abandon(id, reason),
  });
}

export function refuseCommand(parent: Command): void {
  addCommand(parent, {
    name: "refuse",
    summary: "refuse a paused build a larger budget",
    description:
      "Refuse a build that is paused for its budget any more money. It ends FAILED, for the reason budget_refused, and its " +
      "token is no longer valid. The next build reuses its results.",
    example: 'holdfast builds refuse b1k7i1ug7v00000001 --reason "too expensive"',
    done: "Refused",
    end: (hf, id, reason) => hf.builds.refuse(id, reason),
  });
}

interface EndCommand {
  name: string;
  summary: string;
  description: string;
  example: string;
  done: string;
  end: (hf: Holdfast, id: string, reason: string) => Promise<Build>;
}

function addCommand(parent: Command, { name, summary, description, example, done, end }: EndCommand): void {
  parent
    .command(name)
    .summary(summary)
    .description(description)
    .argument("<id>", "the build's id")
    .requiredOption("--reason <text>", "why; it is stored with the build and in the audit")
    .addHelpText("after", examples(example))
    .action(async (id: string, { reason }: { reason: string }, command: Command) => {
      await using hf = await openExisting(command);
      const build = await end(hf, id, reason);
      answer(command, build, () => `${done} build ${id} of "${oneLine(build.pipeline)}".`);
    });
}
