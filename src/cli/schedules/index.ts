import type { Command } from "commander";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { Operator } from "../../runtime/operator.ts";
import { noSuchSchedule } from "../../runtime/schedules.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { oneLine } from "../render/table.ts";
import { examples } from "../verb.ts";
import { scheduleTable } from "./schedule-table.ts";

/** What an operator does to a schedule, and how the answer says it. */
const ACTS = {
  pause: { does: "stop its ticks until it is resumed", done: "Paused" },
  resume: { does: "let it tick again, from the next tick on", done: "Resumed" },
  remove: { does: "remove it; its jobs stay", done: "Removed" },
} as const;

export function schedulesCommand(parent: Command): void {
  const schedules = parent
    .command("schedules")
    .summary("what is enqueued when: list, pause, resume, trigger, remove")
    .description("What is enqueued when: list the schedules; pause, resume, trigger or remove one of them.")
    .addHelpText("after", examples("holdfast schedules", "holdfast schedules pause nightly-report"));
  schedules
    .command("list", { isDefault: true })
    .summary("list the schedules (default)")
    .description("List the schedules, each with its next tick in its own time zone.")
    .addHelpText("after", examples("holdfast schedules list"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const items = await hf.schedules.list({ incomplete: true });
      const operator = new Operator(hf);
      answer(command, { items, ...operator.incomplete() }, () => scheduleTable(items, operator.now()));
    });
  for (const [name, { does, done }] of Object.entries(ACTS)) {
    schedules
      .command(name)
      .summary(does)
      .description(`${does[0]?.toUpperCase()}${does.slice(1)}.`)
      .argument("<key>", "the schedule's key, as in `holdfast schedules`")
      .addHelpText("after", examples(`holdfast schedules ${name} nightly-report`))
      .action(async (key: string, _options: object, command: Command) => {
        await using hf = await openExisting(command);
        await act(hf, name as keyof typeof ACTS, key);
        answer(command, { key, [done.toLowerCase()]: true }, () => `${done} ${oneLine(key)}.`);
      });
  }
  schedules
    .command("trigger")
    .summary("make a job of it now; its ticks stay as they are")
    .description("Make a job of it now; its ticks stay as they are.")
    .argument("<key>", "the schedule's key, as in `holdfast schedules`")
    .addHelpText("after", examples("holdfast schedules trigger nightly-report"))
    .action(async (key: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const { id, duplicate } = await hf.schedules.trigger(key);
      answer(command, { key, id, duplicate }, () =>
        duplicate ? `Job ${id} of ${oneLine(key)} is not finished yet.` : `Enqueued job ${id}.`,
      );
    });
}

async function act(hf: Holdfast, name: keyof typeof ACTS, key: string): Promise<void> {
  if (name !== "remove") return hf.schedules[name](key);
  // A typing mistake must not look like a success.
  if (!(await hf.schedules.remove(key))) throw noSuchSchedule(key, await hf.schedules.list());
}
