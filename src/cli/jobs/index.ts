import type { Command } from "commander";
import { examples } from "../verb.ts";
import { cancelCommand } from "./cancel.ts";
import { listCommand } from "./list.ts";
import { retryCommand } from "./retry.ts";
import { showCommand } from "./show.ts";

export function jobsCommand(parent: Command): void {
  const jobs = parent
    .command("jobs")
    .summary("look at jobs, retry or cancel them")
    .description("Look at jobs, and retry or cancel them.")
    .addHelpText("after", examples("holdfast jobs list --state failed"));
  for (const add of [listCommand, showCommand, retryCommand, cancelCommand]) add(jobs);
}
