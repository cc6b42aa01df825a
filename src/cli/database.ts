import { statSync } from "node:fs";
import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import { type Holdfast, open } from "../runtime/holdfast.ts";
import type { Log } from "../runtime/log.ts";
import { workerLog } from "./terminal/log.ts";

/** For commands that look or operate: they must not leave an empty database behind where a path was mistyped. */
export function openExisting(command: Command): Promise<Holdfast> {
  const path = pathOf(command);
  if (!holdsSomething(path)) {
    throw new HoldfastError(
      "NO_DATABASE",
      `There is no database at ${path}.`,
      "Name another with --db PATH or HOLDFAST_DB. `holdfast enqueue` and `holdfast work` make one.",
    );
  }
  return open(path, { program: programOf(command), log: workerLog("warn") });
}

export function openOrMake(command: Command, options: { program?: string; log?: Log } = {}): Promise<Holdfast> {
  return open(given(command), { program: programOf(command), log: workerLog("warn"), ...options });
}

export function pathOf(command: Command): string {
  return given(command) ?? process.env["HOLDFAST_DB"] ?? ".holdfast/work.db";
}

/** `holdfast jobs list`: what the process is called while it has the database open. */
export function programOf(command: Command): string {
  return command.parent === null ? command.name() : `${programOf(command.parent)} ${command.name()}`;
}

/** Undefined where `open` knows the default. */
function given(command: Command): string | undefined {
  return command.optsWithGlobals<{ db?: string }>().db;
}

function holdsSomething(path: string): boolean {
  const found = statSync(path, { throwIfNoEntry: false });
  return found !== undefined && (found.isDirectory() || found.size > 0);
}
