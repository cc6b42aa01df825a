import type { Command } from "commander";
import { program } from "../src/cli/program.ts";
import { cell, generatedBy } from "./source.ts";

/** docs/cli.md, from the commands of src/cli. */
export async function cliReference(): Promise<string> {
  const commands = actionsOf(await program());
  const rows = commands.map((command) => `| \`${cell(usageOf(command))}\` | ${cell(command.summary())} |`);
  const sections = commands.map((command) => {
    const options = command
      .createHelp()
      .visibleOptions(command)
      .filter(({ long }) => long !== "--help");
    const takes = options.map(({ flags, description, defaultValue }) => {
      const given = defaultValue === undefined || typeof defaultValue === "boolean" ? "" : ` (default: ${String(defaultValue)})`;
      return `| \`${cell(flags)}\` | ${cell(description + given)} |`;
    });
    const table = takes.length === 0 ? [] : ["", "| option | |", "|---|---|", ...takes];
    return [`## ${pathOf(command)}`, "", command.description(), ...table].join("\n");
  });
  return [
    generatedBy("scripts/cli-reference.ts"),
    "",
    "# Reference of commands",
    "",
    "Every command with its arguments and options. [commands.md](commands.md) has the global options and exit codes.",
    "",
    "| command | what it does |",
    "|---|---|",
    ...rows,
    "",
    `${sections.join("\n\n")}\n`,
  ].join("\n");
}

/** Commands that do something; a group alone does not. */
function actionsOf(command: Command): Command[] {
  const acts = (command as unknown as { _actionHandler: unknown })._actionHandler !== null;
  const below = command.commands.flatMap((child) => actionsOf(child as Command));
  return command.parent !== null && (acts || below.length === 0) ? [command, ...below] : below;
}

function usageOf(command: Command): string {
  const takes = command.registeredArguments.map((argument) => {
    const name = argument.variadic ? `${argument.name()}...` : argument.name();
    return argument.required ? `<${name}>` : `[${name}]`;
  });
  return [pathOf(command), ...takes].join(" ");
}

function pathOf(command: Command): string {
  return command.parent === null ? command.name() : `${pathOf(command.parent as Command)} ${command.name()}`;
}
