import type { Command } from "commander";
import { age } from "../../core/age.ts";
import { number } from "../../core/words.ts";
import { Operator } from "../../runtime/operator.ts";
import type { SinkView } from "../../store/sinks.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { type Column, paint, table } from "../render/table.ts";
import { examples } from "../verb.ts";

export function sinksCommand(parent: Command): void {
  parent
    .command("sinks")
    .summary("who is told, and how far behind each is")
    .description("Show every sink and durable subscriber: how far behind it is, whether it fails, and why.")
    .addHelpText("after", examples("holdfast events sinks"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const sinks = await operator.sinks();
      answer(command, { sinks }, () =>
        sinks.length === 0 ? paint("dim", "Nobody is told.") : table(columns(operator.now()), sinks),
      );
    });
}

function columns(now: number): Column<SinkView>[] {
  const ago = (at: number | null) => (at === null ? "" : age(now - at));
  return [
    { title: "NAME", value: ({ name }) => name, least: 8 },
    { title: "KIND", value: ({ kind }) => kind },
    { title: "BEHIND", right: true, value: ({ behind }) => number(behind) },
    { title: "OLDEST", right: true, value: ({ oldestAt }) => ago(oldestAt) },
    { title: "DELIVERED", right: true, value: ({ deliveredAt }) => (deliveredAt === null ? "never" : `${ago(deliveredAt)} ago`) },
    {
      title: "FAILED",
      right: true,
      value: ({ failures }) => (failures === 0 ? "" : `${number(failures)}×`),
      style: () => "yellow",
    },
    { title: "ERROR", value: ({ error, failedAt }) => (error === null ? "" : `${error} (${ago(failedAt)} ago)`), least: 12 },
  ];
}
