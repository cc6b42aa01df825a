import type { Command } from "commander";
import { cancelCommand } from "./cancel.ts";
import { listCommand } from "./list.ts";
import { retryCommand } from "./retry.ts";
import { showCommand } from "./show.ts";

export function jobsCommand(parent: Command): void {
  const jobs = parent.command("jobs").description("Look at jobs, and retry or cancel them.");
  for (const add of [listCommand, showCommand, retryCommand, cancelCommand]) add(jobs);
}
