import type { Command } from "commander";
import { resumeCommand } from "../commands/run.ts";
import { examples } from "../verb.ts";
import { approveCommand } from "./approve.ts";
import { abandonCommand, refuseCommand } from "./end.ts";
import { exportCommand } from "./export.ts";
import { listCommand } from "./list.ts";
import { showCommand } from "./show.ts";
import { tokenCommand } from "./token.ts";
import { whyCommand } from "./why.ts";

export function buildsCommand(parent: Command): void {
  const builds = parent
    .command("builds")
    .summary("look at builds, go on with them or end them")
    .description("Look at builds of pipelines, go on with them, approve budgets, end them, and take out what they have made.")
    .addHelpText("after", examples("holdfast builds", "holdfast builds show b1k7i1ug7v00000001"));
  for (const add of [
    listCommand,
    showCommand,
    resumeCommand,
    approveCommand,
    tokenCommand,
    refuseCommand,
    abandonCommand,
    whyCommand,
    exportCommand,
  ]) {
    add(builds);
  }
}
