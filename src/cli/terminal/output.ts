import type { Command } from "commander";

/** A command's answer: one JSON document with --json, text for people otherwise. */
export function answer(command: Command, value: object | null, text: () => string): void {
  process.stdout.write(`${isJson(command) ? JSON.stringify(value) : text()}\n`);
}

/** False when nobody can read it any more: the other end of the pipe is closed. */
export function handOver(text: string): Promise<boolean> {
  return new Promise((resolve) => process.stdout.write(`${text}\n`, (error) => resolve(error === null || error === undefined)));
}

export function isJson(command: Command): boolean {
  return command.optsWithGlobals<{ json?: boolean }>().json === true;
}
