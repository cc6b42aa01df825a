import type { Command } from "commander";
import { listEvents } from "./list.ts";
import { forgetCommand } from "./forget.ts";
import { sinksCommand } from "./sinks.ts";

export function eventsCommand(parent: Command): void {
  const events = listEvents(parent.command("events"));
  for (const add of [sinksCommand, forgetCommand]) add(events);
}
