import { type Command, CommanderError } from "commander";
import type { Log } from "../../engine/log.ts";
import { EXIT, exitCodeOf } from "../exit.ts";
import { oneLine, paint, printable, type Style } from "./table.ts";

export function answer(command: Command, value: object | null, text: () => string): void {
  process.stdout.write(`${isJson(command) ? JSON.stringify(value) : text()}\n`);
}

/** Writes a line. Resolves to false if the reader has closed the pipe. */
export function writeLine(text: string): Promise<boolean> {
  return new Promise((resolve) => process.stdout.write(`${text}\n`, (error) => resolve(error === null || error === undefined)));
}

export function writeLines(lines: readonly string[]): void {
  if (lines.length > 0) process.stdout.write(`${lines.join("\n")}\n`);
}

export function isJson(command: Command): boolean {
  return command.optsWithGlobals<{ json?: boolean }>().json === true;
}

const LEVELS = ["debug", "info", "warn", "error"] as const;
type Level = (typeof LEVELS)[number];
const LEVEL_STYLES: Record<Level, Style> = { debug: "dim", info: "blue", warn: "yellow", error: "red" };

export function workerLog(from: Level): Log {
  return writtenLog(from, (line) => void process.stderr.write(`${line}\n`));
}

export function writtenLog(from: Level, write: (line: string) => void): Log {
  const at = (level: Level) => {
    if (LEVELS.indexOf(level) < LEVELS.indexOf(from)) return () => {};
    return (message: string, data?: object) => write(logLine(level, message, data));
  };
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

function logLine(level: Level, message: string, data?: object): string {
  const about = data === undefined ? "" : ` ${paint("dim", oneLine(JSON.stringify(data)), process.stderr)}`;
  return `${paint(LEVEL_STYLES[level], level, process.stderr)} ${oneLine(message)}${about}`;
}

interface Failure {
  code: string;
  message: string;
  hint: string;
  stack?: string;
}

export function reportFailure(thrown: unknown, json: boolean): number {
  // Commander also throws after it printed help or the version.
  if (thrown instanceof CommanderError && thrown.exitCode === 0) return EXIT.done;
  // A group was called without a command, and its help was printed.
  if (thrown instanceof CommanderError && thrown.code === "commander.help" && !json) return EXIT.usage;
  const failure = toFailure(thrown);
  if (json) process.stdout.write(`${JSON.stringify({ error: failure })}\n`);
  else process.stderr.write(failureText(failure));
  return exitCodeOf(failure.code);
}

function toFailure(thrown: unknown): Failure {
  if (thrown instanceof CommanderError) {
    if (thrown.code === "commander.help")
      return { code: "USAGE", message: "A command is missing.", hint: "Add --help to see them." };
    const message = thrown.message.replace(/^error: /, "").replace(/\n\((.*)\)$/, ". $1");
    const dash = /^unknown option '-\w/.test(message) ? " Put -- before an id that begins with a dash." : "";
    return { code: "USAGE", message, hint: `Add --help to see what the command takes.${dash}` };
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

/** Checks the shape, because a user's module may import another copy of this package. */
function isHoldfastError(thrown: unknown): thrown is Error & { code: string; hint: string } {
  if (!(thrown instanceof Error)) return false;
  const { code, hint } = thrown as { code?: unknown; hint?: unknown };
  return typeof code === "string" && typeof hint === "string";
}

function failureText(failure: Failure): string {
  const label = paint(["red", "bold"], "error:", process.stderr);
  if (failure.stack !== undefined) return `${label} ${printable(failure.stack)}\n`;
  const code = paint("dim", `[${failure.code}]`, process.stderr);
  return `${label} ${printable(failure.message)} ${code}\n${paint("cyan", "hint:", process.stderr)}  ${printable(failure.hint)}\n`;
}
