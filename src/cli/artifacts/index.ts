import type { Command } from "commander";
import { examples } from "../verb.ts";
import { getCommand } from "./get.ts";
import { sweepCommand } from "./sweep.ts";

export function artifactsCommand(parent: Command): void {
  const artifacts = parent
    .command("artifacts")
    .summary("read stored bytes, or remove what nobody needs")
    .description("Read bytes that stages have stored, or remove those that nobody references any more.")
    .addHelpText("after", examples("holdfast artifacts sweep"));
  for (const add of [getCommand, sweepCommand]) add(artifacts);
}
