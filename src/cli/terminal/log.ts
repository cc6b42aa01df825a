import type { Log } from "../../runtime/log.ts";
import { paint, type Style } from "./colours.ts";
import { oneLine } from "./text.ts";

const LEVELS = ["debug", "info", "warn", "error"] as const;
type Level = (typeof LEVELS)[number];
const STYLES: Record<Level, Style> = { debug: "dim", info: "blue", warn: "yellow", error: "red" };

/** On standard error, from this level on. */
export function workerLog(from: Level): Log {
  const at = (level: Level) =>
    LEVELS.indexOf(level) < LEVELS.indexOf(from) ? () => {} : (message: string, data?: object) => write(level, message, data);
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

function write(level: Level, message: string, data?: object): void {
  const about = data === undefined ? "" : ` ${paint("dim", oneLine(JSON.stringify(data)), process.stderr)}`;
  process.stderr.write(`${paint(STYLES[level], level, process.stderr)} ${oneLine(message)}${about}\n`);
}
