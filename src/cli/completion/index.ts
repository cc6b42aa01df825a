import { Argument, type Command } from "commander";
import { examples } from "../verb.ts";
import { bash } from "./bash.ts";
import { fish } from "./fish.ts";
import { branchesOf } from "./tree.ts";
import { zsh } from "./zsh.ts";

const SHELLS = { bash, zsh, fish };

export function completionCommand(parent: Command): void {
  parent
    .command("completion")
    .summary("print a script that completes commands in a shell")
    .description("Print a script that completes commands, options and their values in a shell.")
    .addArgument(new Argument("<shell>", "for which shell").choices(Object.keys(SHELLS)))
    .addHelpText(
      "after",
      examples("source <(holdfast completion bash)", "source <(holdfast completion zsh)", "holdfast completion fish | source"),
    )
    .action((shell: keyof typeof SHELLS) => void process.stdout.write(SHELLS[shell](branchesOf(parent))));
}
