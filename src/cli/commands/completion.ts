import { Argument, type Command, type Option } from "commander";
import { addCommand } from "../verb.ts";

const SHELLS = { bash, zsh, fish };

export function completionCommand(parent: Command): void {
  addCommand(parent, "completion", {
    description: "Print a script that completes commands, options and their values in a shell.",
    examples: ["source <(holdfast completion bash)", "source <(holdfast completion zsh)", "holdfast completion fish | source"],
  })
    .addArgument(new Argument("<shell>", "for which shell").choices(Object.keys(SHELLS)))
    .action((shell: keyof typeof SHELLS) => void process.stdout.write(SHELLS[shell](branchesOf(parent))));
}

interface Branch {
  path: string;
  commands: { name: string; summary: string }[];
  options: Flag[];
  choices: string[];
}

interface Flag {
  names: string[];
  summary: string;
  takesValue: boolean;
  choices: string[];
}

export function branchesOf(command: Command, above = ""): Branch[] {
  const path = `${above}${command.name()}`;
  const help = command.createHelp();
  help.showGlobalOptions = true;
  const options = [...help.visibleOptions(command), ...help.visibleGlobalOptions(command)];
  const branch: Branch = {
    path,
    commands: command.commands.map((child) => ({ name: child.name(), summary: child.summary() || child.description() })),
    options: options.map(flagOf),
    choices: command.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []),
  };
  return [branch, ...command.commands.flatMap((child) => branchesOf(child as Command, `${path}/`))];
}

function valuesOf({ options }: Branch): Flag[] {
  return options.filter(({ takesValue }) => takesValue);
}

function takingValues(branches: readonly Branch[]): string[] {
  return [...new Set(branches.flatMap(valuesOf).flatMap(({ names }) => names))];
}

function pathsIn(branches: readonly Branch[], separator: string): string {
  return branches
    .slice(1)
    .map(({ path }) => path)
    .join(separator);
}

function flagOf(option: Option): Flag {
  return {
    names: [option.short, option.long].filter((name) => name !== undefined),
    summary: option.description,
    takesValue: option.required || option.optional,
    choices: option.argChoices ?? [],
  };
}

/** Returns a bash script. Where the script offers no words, bash completes file names. */
function bash(branches: readonly Branch[]): string {
  return `# holdfast completion bash: load it with  source <(holdfast completion bash)
_holdfast() {
  local current="\${COMP_WORDS[COMP_CWORD]}" before="\${COMP_WORDS[COMP_CWORD - 1]}" at="holdfast" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "\${COMP_WORDS[i - 1]}" in
      ${takingValues(branches).join(" | ")}) continue ;;
    esac
    case "$at/\${COMP_WORDS[i]}" in
      ${pathsIn(branches, " | ")}) at="$at/\${COMP_WORDS[i]}" ;;
    esac
  done
  case "$at $before" in
${branches.flatMap(bashValues).join("\n")}
  esac
  case "$at $current" in
${branches.flatMap(bashWords).join("\n")}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _holdfast holdfast
`;
}

function bashValues(branch: Branch): string[] {
  return valuesOf(branch).map(({ names, choices }) => {
    const patterns = names.map((name) => `"${branch.path} ${name}"`).join(" | ");
    return `    ${patterns}) COMPREPLY=($(compgen -W "${choices.join(" ")}" -- "$current")); return ;;`;
  });
}

function bashWords({ path, options, commands, choices }: Branch): string[] {
  const flags = options.flatMap(({ names }) => names);
  const others = [...commands.map(({ name }) => name), ...choices];
  return [`    "${path} -"*) words="${flags.join(" ")}" ;;`, `    "${path} "*) words="${others.join(" ")}" ;;`];
}

/** Returns a zsh script that works as a file `_holdfast` in $fpath, and sourced. */
function zsh(branches: readonly Branch[]): string {
  return `#compdef holdfast
# holdfast completion zsh: load it with  source <(holdfast completion zsh)
_holdfast() {
  local at="holdfast" i
  local -a items
  for ((i = 2; i < CURRENT; i++)); do
    case "\${words[i - 1]}" in
      (${takingValues(branches).join("|")}) continue ;;
    esac
    case "$at/\${words[i]}" in
      (${pathsIn(branches, "|")}) at="$at/\${words[i]}" ;;
    esac
  done
  case "$at \${words[CURRENT - 1]}" in
${branches.flatMap(zshValues).join("\n")}
  esac
  case "$at $PREFIX" in
${branches.flatMap(zshWords).join("\n")}
  esac
  if (( $#items )); then _describe holdfast items; else _files; fi
}
if [[ "$funcstack[1]" == "_holdfast" ]]; then _holdfast "$@"; else compdef _holdfast holdfast; fi
`;
}

function zshValues(branch: Branch): string[] {
  return valuesOf(branch).map(({ names, choices }) => {
    const patterns = names.map((name) => `"${branch.path} ${name}"`).join("|");
    return `    (${patterns}) ${choices.length > 0 ? `compadd -- ${choices.join(" ")}` : "_files"}; return ;;`;
  });
}

function zshWords({ path, options, commands, choices }: Branch): string[] {
  const flags = options.flatMap(({ names, summary }) => names.map((name) => zshItem(name, summary)));
  const others = [
    ...commands.map(({ name, summary }) => zshItem(name, summary)),
    ...choices.map((choice) => zshItem(choice, "")),
  ];
  return [`    ("${path} -"*) items=(${flags.join(" ")}) ;;`, `    ("${path} "*) items=(${others.join(" ")}) ;;`];
}

function zshItem(name: string, summary: string): string {
  const text = summary === "" ? name : `${name}:${summary}`;
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function fish(branches: readonly Branch[]): string {
  return `# holdfast completion fish: load it with  holdfast completion fish | source
function __holdfast_at
    set -l at holdfast
    set -l before ""
    for word in (commandline -opc)[2..-1]
        if not contains -- "$before" ${takingValues(branches).join(" ")}
            switch "$at/$word"
                case ${pathsIn(branches, " ")}
                    set at "$at/$word"
            end
        end
        set before "$word"
    end
    test "$at" = "$argv[1]"
end
${branches.flatMap(fishLines).join("\n")}
`;
}

function fishLines({ path, commands, options, choices }: Branch): string[] {
  const start = `complete -c holdfast -n '__holdfast_at ${path}'`;
  return [
    ...commands.map(({ name, summary }) => `${start} -f -a ${name} -d ${fishQuoted(summary)}`),
    ...(choices.length === 0 ? [] : [`${start} -f -a ${fishQuoted(choices.join(" "))}`]),
    ...options.map((flag) => `${start} ${fishFlags(flag)} -d ${fishQuoted(flag.summary)}`),
  ];
}

function fishFlags({ names, takesValue, choices }: Flag): string {
  const parts = names.map((name) => (name.startsWith("--") ? `-l ${name.slice(2)}` : `-s ${name.slice(1)}`));
  if (choices.length > 0) parts.push(`-x -a ${fishQuoted(choices.join(" "))}`);
  else if (takesValue) parts.push("-r");
  return parts.join(" ");
}

function fishQuoted(text: string): string {
  return `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
}
