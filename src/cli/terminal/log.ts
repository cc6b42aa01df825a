import type { Log } from "../../runtime/log.ts";
import { paint, type Style } from "./colours.ts";
import { oneLine } from "./text.ts";

const LEVELS = ["debug", "info", "warn", "error"] as const;
type Level = (typeof LEVELS)[number];
const STYLES: Record<Level, Style> = { debug: "dim", info: "blue", warn: "yellow", error: "red" };

/** On standard error, from this level on. */
export function workerLog(from: Level): Log {
  return writtenLog(from, (line) => void process.stderr.write(`${line}\n`));
}

/** Line by line, to wherever it goes. */
export function writtenLog(from: Level, write: (line: string) => void): Log {
  const at = (level: Level) => {
    if (LEVELS.indexOf(level) < LEVELS.indexOf(from)) return () => {};
    return (message: string, data?: object) => write(lineOf(level, message, data));
  };
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

function lineOf(level: Level, message: string, data?: object): string {
  const about = data === undefined ? "" : ` ${paint("dim", oneLine(JSON.stringify(data)), process.stderr)}`;
  return `${paint(STYLES[level], level, process.stderr)} ${oneLine(message)}${about}`;
}
