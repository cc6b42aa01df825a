import type { Command } from "commander";
import { HoldfastError } from "../../core/errors.ts";
import { Operator } from "../../runtime/operator.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { oneLine } from "../render/table.ts";
import { examples } from "../verb.ts";
import { queueTable } from "./queue-table.ts";

export function queuesCommand(parent: Command): void {
  const queues = parent
    .command("queues")
    .summary("how each queue stands: list, pause, resume")
    .description("How each queue stands. A paused queue hands out nothing until it is resumed, to nobody.")
    .addHelpText("after", examples("holdfast queues", "holdfast queues pause mail"));
  queues
    .command("list", { isDefault: true })
    .summary("list the queues (default)")
    .description("List the queues, with what is in them.")
    .addHelpText("after", examples("holdfast queues list --json"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const items = await operator.queues();
      answer(command, { items, ...operator.incomplete() }, () => queueTable(items, operator.now()));
    });
  queues
    .command("pause")
    .summary("hand out nothing more of it, until it is resumed")
    .description("Hand out nothing more of it, until it is resumed. What runs goes on, what is enqueued waits.")
    .argument("<name>", "the queue's name, as in `holdfast queues`")
    .option("--ahead", "also a queue that nothing was ever put into")
    .addHelpText("after", examples("holdfast queues pause mail"))
    .action((name: string, options: { ahead?: boolean }, command: Command) => set(command, name, true, options.ahead));
  queues
    .command("resume")
    .summary("hand out its jobs again")
    .description("Hand out its jobs again, at once.")
    .argument("<name>", "the queue's name, as in `holdfast queues`")
    .addHelpText("after", examples("holdfast queues resume mail"))
    .action((name: string, _options: object, command: Command) => set(command, name, false));
}

async function set(command: Command, name: string, paused: boolean, ahead = false): Promise<void> {
  await using hf = await openExisting(command);
  const known = (await hf.queues.list()).map((queue) => queue.name);
  // A typing mistake must not look like a success.
  if (!ahead && !known.includes(name)) throw noSuchQueue(name, known, paused);
  const changed = await new Operator(hf).setPaused(name, paused);
  answer(command, { queue: name, paused, changed }, () => {
    const what = paused ? "paused" : "resumed";
    return changed ? `${oneLine(name)} is ${what}.` : `${oneLine(name)} ${paused ? "is paused" : "was not paused"} already.`;
  });
}

function noSuchQueue(name: string, known: readonly string[], paused: boolean): HoldfastError {
  const others = known.length === 0 ? "There is none yet." : `There are: ${known.join(", ")}.`;
  const ahead = paused ? " Add --ahead to pause it before its first job." : "";
  return new HoldfastError("NO_SUCH_QUEUE", `There is no queue ${name}.`, others + ahead);
}
