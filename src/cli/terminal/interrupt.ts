const SIGNALS = ["SIGINT", "SIGTERM"] as const;

/** Aborts at the first signal that asks to end, for commands that wait. A second one ends the process, as ever. */
export function untilInterrupted(): AbortSignal & Disposable {
  const controller = new AbortController();
  const heard = (signal: NodeJS.Signals) => controller.abort(signal);
  for (const signal of SIGNALS) process.once(signal, heard);
  return Object.assign(controller.signal, {
    [Symbol.dispose]: () => {
      for (const signal of SIGNALS) process.off(signal, heard);
    },
  });
}
