import type { Command } from "commander";

/** A command's answer: one JSON document with --json, text for people otherwise. */
export function answer(command: Command, value: object, text: () => string): void {
  process.stdout.write(`${isJson(command) ? JSON.stringify(value) : text()}\n`);
}

export function isJson(command: Command): boolean {
  return command.optsWithGlobals<{ json?: boolean }>().json === true;
}
