import type { Command } from "commander";
import { examples } from "../verb.ts";
import { listCommand } from "./list.ts";
import { purgeCommand } from "./purge.ts";
import { retryCommand } from "./retry.ts";

export function quarantineCommand(parent: Command): void {
  const quarantine = parent
    .command("quarantine")
    .summary("jobs that crashed their workers: look, retry, remove")
    .description("Jobs that crashed their workers, or whose input cannot be read: look at them, retry or remove them.")
    .addHelpText("after", examples("holdfast quarantine list"));
  for (const add of [listCommand, retryCommand, purgeCommand]) add(quarantine);
}
