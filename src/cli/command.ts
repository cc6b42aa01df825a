import { Command, type ErrorOptions } from "commander";
import { HoldfastError } from "../core/errors.ts";

/** A command whose unknown commands are said to be unknown, with what there is instead. */
export class KnownCommand extends Command {
  override createCommand(name?: string): Command {
    return new KnownCommand(name);
  }

  override error(message: string, options?: ErrorOptions): never {
    if (options?.code === "commander.unknownCommand") throw unknown(message.replace(/^error: /, ""), this);
    if (options?.code === "commander.excessArguments") {
      // `holdfast queues frob` comes here as an argument too many for the group's default.
      for (const group of [this, this.parent]) {
        const word = group === null ? undefined : wrongWord(group);
        if (group !== null && word !== undefined) throw unknown(`unknown command '${word}'`, group);
      }
    }
    return super.error(message, options);
  }
}

/** What stands where one of its commands should. */
function wrongWord({ commands, args: [word] }: Command): string | undefined {
  return commands.length === 0 || commands.some((command) => command.name() === word) ? undefined : word;
}

function unknown(message: string, { commands }: Command): HoldfastError {
  const names = commands.map((command) => command.name()).join(", ");
  return new HoldfastError("USAGE", message.replace(/\n\((.*)\)$/, ". $1"), `There is ${names}. Add --help to see what they do.`);
}
