import { CommanderError } from "commander";
import { EXIT, exitCodeOf } from "./exit.ts";
import { paint } from "./terminal/colours.ts";
import { printable } from "./terminal/text.ts";

interface Failure {
  code: string;
  message: string;
  hint: string;
  /** Only of errors that nobody foresaw. */
  stack?: string;
}

/** Says what went wrong, and returns the exit code for it. */
export function report(thrown: unknown, json: boolean): number {
  // Help and the version come as exceptions too, after they were printed.
  if (thrown instanceof CommanderError && thrown.exitCode === 0) return EXIT.done;
  // A group of commands without one of them: its help was printed.
  if (thrown instanceof CommanderError && thrown.code === "commander.help" && !json) return EXIT.usage;
  const failure = toFailure(thrown);
  if (json) process.stdout.write(`${JSON.stringify({ error: failure })}\n`);
  else process.stderr.write(sentence(failure));
  return exitCodeOf(failure.code);
}

function toFailure(thrown: unknown): Failure {
  if (thrown instanceof CommanderError) {
    if (thrown.code === "commander.help")
      return { code: "USAGE", message: "A command is missing.", hint: "Add --help to see them." };
    const message = thrown.message.replace(/^error: /, "").replace(/\n\((.*)\)$/, ". $1");
    return { code: "USAGE", message, hint: "Add --help to see what the command takes." };
  }
  if (isHoldfastError(thrown)) return { code: thrown.code, message: thrown.message, hint: thrown.hint };
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  return {
    code: "UNEXPECTED",
    message: error.message,
    hint: "This was not foreseen; the stack says where it happened.",
    stack: error.stack ?? error.message,
  };
}

/** By its shape: a user's module may bring another copy of this package. */
function isHoldfastError(thrown: unknown): thrown is Error & { code: string; hint: string } {
  if (!(thrown instanceof Error)) return false;
  const { code, hint } = thrown as { code?: unknown; hint?: unknown };
  return typeof code === "string" && typeof hint === "string";
}

function sentence(failure: Failure): string {
  const label = paint(["red", "bold"], "error:", process.stderr);
  if (failure.stack !== undefined) return `${label} ${printable(failure.stack)}\n`;
  const code = paint("dim", `[${failure.code}]`, process.stderr);
  return `${label} ${printable(failure.message)} ${code}\n${paint("cyan", "hint:", process.stderr)}  ${printable(failure.hint)}\n`;
}
