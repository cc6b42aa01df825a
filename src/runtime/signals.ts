const SIGNALS = ["SIGINT", "SIGTERM"] as const;

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
  const code = signal === "SIGINT" ? 130 : 143;
  if (stopping) process.exit(code);
  stopping = true;
  void Promise.allSettled([...stoppers].map((stop) => stop())).then((ends) =>
    process.exit(ends.every(({ status }) => status === "fulfilled") ? code : 1),
  );
}
