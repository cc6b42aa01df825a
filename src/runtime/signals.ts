import { inspect } from "node:util";
import { HoldfastError } from "../core/errors.ts";
import { closeAll } from "./shared-engine.ts";

/** Those that ask to end. A terminal that was closed ends every program of Node's, `nohup` or not: better in good order. */
export const SIGNALS = ["SIGHUP", "SIGINT", "SIGTERM"] as const;
const CODES: Partial<Record<NodeJS.Signals, number>> = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 };

/** A second one asks to end at once; but a closed terminal is told by its kernel and by its shell, and means the same. */
export function isImpatient(signal: NodeJS.Signals): boolean {
  return signal !== "SIGHUP";
}

/** Everybody in this process who wants to stop gracefully. */
const stoppers = new Set<() => Promise<void>>();
let stopping = false;

/**
 * The first signal stops everybody gracefully, and the process exits when the last of them is done; the second exits at
 * once. Returns the way to be left alone again.
 */
export function onSignals(stop: () => Promise<void>): () => void {
  if (stoppers.size === 0) for (const signal of SIGNALS) process.on(signal, heard);
  stoppers.add(stop);
  return () => {
    stoppers.delete(stop);
    if (stoppers.size === 0 && !stopping) for (const signal of SIGNALS) process.off(signal, heard);
  };
}

function heard(signal: NodeJS.Signals): void {
  const code = CODES[signal] ?? 143;
  if (stopping && isImpatient(signal)) process.exit(code);
  if (stopping) return;
  stopping = true;
  process.on("uncaughtException", uncaught);
  void stopAll().then((isClean) => process.exit(isClean ? code : 1));
}

/** Handles that listen to no signal are closed last: a process that exits with one open counts as crashed. */
async function stopAll(): Promise<boolean> {
  const ends = await Promise.allSettled([...stoppers].map((stop) => stop()));
  const [closed] = await Promise.allSettled([closeAll()]);
  return [...ends, closed].every(({ status }) => status === "fulfilled");
}

/**
 * A loop of the program that enqueues is rejected with CLOSED while the signal stops everything. If nothing catches that
 * error, it must not end the process before all is closed. Every other error ends it, as without this listener.
 */
function uncaught(error: unknown): void {
  if (error instanceof HoldfastError && error.code === "CLOSED") return;
  if (process.listenerCount("uncaughtException") > 1) return;
  process.stderr.write(`Uncaught ${inspect(error)}\n`);
  process.exit(1);
}
