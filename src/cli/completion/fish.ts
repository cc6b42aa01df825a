import { type Branch, type Flag, takingValues } from "./tree.ts";

export function fish(branches: readonly Branch[]): string {
  return `# holdfast completion fish: load it with  holdfast completion fish | source
function __holdfast_at
    set -l at holdfast
    set -l before ""
    for word in (commandline -opc)[2..-1]
        if not contains -- "$before" ${takingValues(branches).join(" ")}
            switch "$at/$word"
                case ${branches
                  .slice(1)
                  .map(({ path }) => path)
                  .join(" ")}
                    set at "$at/$word"
            end
        end
        set before "$word"
    end
    test "$at" = "$argv[1]"
end
${branches.flatMap(lines).join("\n")}
`;
}

function lines({ path, commands, options, choices }: Branch): string[] {
  const start = `complete -c holdfast -n '__holdfast_at ${path}'`;
  return [
    ...commands.map(({ name, summary }) => `${start} -f -a ${name} -d ${quoted(summary)}`),
    ...(choices.length === 0 ? [] : [`${start} -f -a ${quoted(choices.join(" "))}`]),
    ...options.map((flag) => `${start} ${flagsOf(flag)} -d ${quoted(flag.summary)}`),
  ];
}

function flagsOf({ names, takesValue, choices }: Flag): string {
  const parts = names.map((name) => (name.startsWith("--") ? `-l ${name.slice(2)}` : `-s ${name.slice(1)}`));
  if (choices.length > 0) parts.push(`-x -a ${quoted(choices.join(" "))}`);
  else if (takesValue) parts.push("-r");
  return parts.join(" ");
}

function quoted(text: string): string {
  return `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
}
