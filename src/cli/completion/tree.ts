import type { Command, Option } from "commander";

/** What may follow on a command line, for each command. */
export interface Branch {
  /** "holdfast/jobs/list". */
  path: string;
  commands: { name: string; summary: string }[];
  options: Flag[];
  /** What its argument may be, where that is known. */
  choices: string[];
}

export interface Flag {
  names: string[];
  summary: string;
  takesValue: boolean;
  choices: string[];
}

/** Read from the commands themselves, so that none can be forgotten. */
export function branchesOf(command: Command, above = ""): Branch[] {
  const path = `${above}${command.name()}`;
  const help = command.createHelp();
  const options = [...help.visibleOptions(command), ...help.visibleGlobalOptions(command)];
  const branch: Branch = {
    path,
    commands: command.commands.map((child) => ({ name: child.name(), summary: child.summary() || child.description() })),
    options: options.map(flagOf),
    choices: command.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []),
  };
  return [branch, ...command.commands.flatMap((child) => branchesOf(child as Command, `${path}/`))];
}

/** Options after which a value comes, whatever the command. */
export function takingValues(branches: readonly Branch[]): string[] {
  const names = branches.flatMap(({ options }) => options.filter(({ takesValue }) => takesValue).flatMap(({ names }) => names));
  return [...new Set(names)];
}

function flagOf(option: Option): Flag {
  return {
    names: [option.short, option.long].filter((name) => name !== undefined),
    summary: option.description,
    takesValue: option.required || option.optional,
    choices: option.argChoices ?? [],
  };
}
