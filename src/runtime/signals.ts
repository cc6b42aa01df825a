const SIGNALS = ["SIGINT", "SIGTERM"] as const;

/** The first signal stops gracefully, the second exits at once. */
export function onSignals(stop: () => Promise<void>): void {
  let first = true;
  const heard = (signal: NodeJS.Signals) => {
    const code = signal === "SIGINT" ? 130 : 143;
    if (!first) process.exit(code);
    first = false;
    stop().then(
      () => process.exit(code),
      () => process.exit(1),
    );
  };
  for (const signal of SIGNALS) process.on(signal, heard);
}
