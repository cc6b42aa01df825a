import { type Branch, takingValues } from "./tree.ts";

/** What is not known here is left to the shell, which completes the names of files. */
export function bash(branches: readonly Branch[]): string {
  return `# holdfast completion bash: load it with  source <(holdfast completion bash)
_holdfast() {
  local current="\${COMP_WORDS[COMP_CWORD]}" before="\${COMP_WORDS[COMP_CWORD - 1]}" at="holdfast" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "\${COMP_WORDS[i - 1]}" in
      ${takingValues(branches).join(" | ")}) continue ;;
    esac
    case "$at/\${COMP_WORDS[i]}" in
      ${branches
        .slice(1)
        .map(({ path }) => path)
        .join(" | ")}) at="$at/\${COMP_WORDS[i]}" ;;
    esac
  done
  case "$at $before" in
${branches.flatMap(values).join("\n")}
  esac
  case "$at $current" in
${branches.flatMap(words).join("\n")}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _holdfast holdfast
`;
}

/** After an option that takes a value: its choices, or nothing of ours. */
function values({ path, options }: Branch): string[] {
  return options
    .filter(({ takesValue }) => takesValue)
    .map(({ names, choices }) => {
      const patterns = names.map((name) => `"${path} ${name}"`).join(" | ");
      return `    ${patterns}) COMPREPLY=($(compgen -W "${choices.join(" ")}" -- "$current")); return ;;`;
    });
}

function words({ path, options, commands, choices }: Branch): string[] {
  const flags = options.flatMap(({ names }) => names);
  const others = [...commands.map(({ name }) => name), ...choices];
  return [`    "${path} -"*) words="${flags.join(" ")}" ;;`, `    "${path} "*) words="${others.join(" ")}" ;;`];
}
