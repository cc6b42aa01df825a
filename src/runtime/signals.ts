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
  void Promise.allSettled([...stoppers].map((stop) => stop())).then((ends) =>
    process.exit(ends.every(({ status }) => status === "fulfilled") ? code : 1),
  );
}
