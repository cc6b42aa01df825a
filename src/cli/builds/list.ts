import { type Command, Option } from "commander";
import type { Build } from "../../core/build-view.ts";
import { BUILD_STATES, type BuildState } from "../../core/build.ts";
import type { Page } from "../../runtime/jobs.ts";
import { Operator } from "../../runtime/operator.ts";
import { isLeft, type OpenBuild } from "../../runtime/status/open-builds.ts";
import { atLeastOne } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";
import { buildTable, type ListedBuild } from "./build-table.ts";

interface Options {
  pipeline?: string;
  state?: BuildState;
  limit: number;
  after?: string;
}

export function listCommand(parent: Command): void {
  parent
    .command("list", { isDefault: true })
    .summary("list builds in the order they were made (default)")
    .description("List builds in the order they were made.")
    .option("--pipeline <name>", "only builds of this pipeline")
    .addOption(new Option("--state <state>", "only builds in this state").choices(BUILD_STATES))
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .option("--after <cursor>", "go on after the page that named this cursor")
    .addHelpText("after", examples("holdfast builds list", "holdfast builds list --pipeline docs --state BUDGET_PAUSE --json"))
    .action(async (options: Options, command: Command) => {
      await using hf = await openExisting(command);
      const page = withDead(await hf.builds.list(options), await new Operator(hf).openBuilds());
      answer(command, page, () => buildTable(page, new Operator(hf).now()));
    });
}

function withDead(page: Page<Build>, open: readonly OpenBuild[]): Page<ListedBuild> {
  const dead = new Set(open.filter(isLeft).map(({ id }) => id));
  return { ...page, items: page.items.map((build) => (dead.has(build.id) ? { ...build, orchestrator: "dead" } : build)) };
}
