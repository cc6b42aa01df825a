import { type Branch, takingValues } from "./tree.ts";

/** Works as a file \`_holdfast\` in $fpath, and sourced. */
export function zsh(branches: readonly Branch[]): string {
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
      (${branches
        .slice(1)
        .map(({ path }) => path)
        .join("|")}) at="$at/\${words[i]}" ;;
    esac
  done
  case "$at \${words[CURRENT - 1]}" in
${branches.flatMap(values).join("\n")}
  esac
  case "$at $PREFIX" in
${branches.flatMap(words).join("\n")}
  esac
  if (( $#items )); then _describe holdfast items; else _files; fi
}
if [[ "$funcstack[1]" == "_holdfast" ]]; then _holdfast "$@"; else compdef _holdfast holdfast; fi
`;
}

function values({ path, options }: Branch): string[] {
  return options
    .filter(({ takesValue }) => takesValue)
    .map(({ names, choices }) => {
      const patterns = names.map((name) => `"${path} ${name}"`).join("|");
      return `    (${patterns}) ${choices.length > 0 ? `compadd -- ${choices.join(" ")}` : "_files"}; return ;;`;
    });
}

function words({ path, options, commands, choices }: Branch): string[] {
  const flags = options.flatMap(({ names, summary }) => names.map((name) => item(name, summary)));
  const others = [...commands.map(({ name, summary }) => item(name, summary)), ...choices.map((choice) => item(choice, ""))];
  return [`    ("${path} -"*) items=(${flags.join(" ")}) ;;`, `    ("${path} "*) items=(${others.join(" ")}) ;;`];
}

function item(name: string, summary: string): string {
  const text = summary === "" ? name : `${name}:${summary}`;
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
