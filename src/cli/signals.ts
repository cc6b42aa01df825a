import { writeSync } from "node:fs";
import { closeAll, forcesExit, STOP_SIGNALS } from "../engine/shared-engine.ts";
import { EXIT } from "./exit.ts";

/** A signal for commands that wait: aborts at the first SIGINT, SIGTERM or SIGHUP. A second one ends the process. */
export function untilInterrupted(): AbortSignal & Disposable {
  const controller = new AbortController();
  const heard = (signal: NodeJS.Signals) => controller.abort(signal);
  for (const signal of STOP_SIGNALS) process[forcesExit(signal) ? "once" : "on"](signal, heard);
  return Object.assign(controller.signal, {
    [Symbol.dispose]: () => {
      for (const signal of STOP_SIGNALS) process.off(signal, heard);
    },
  });
}

export interface Interrupts extends Disposable {
  readonly signal: AbortSignal;
  stop(reason: string): void;
}

/** Aborts at the first signal, or when `stop` is called. A second signal exits at once. */
export function listenForInterrupts(): Interrupts {
  const controller = new AbortController();
  const stop = (reason: string) => controller.abort(new Error(reason));
  const heard = (signal: NodeJS.Signals) => {
    if (controller.signal.aborted && forcesExit(signal)) process.exit(EXIT.interrupted);
    stop(signal);
  };
  for (const signal of STOP_SIGNALS) process.on(signal, heard);
  const dispose = () => STOP_SIGNALS.forEach((signal) => process.off(signal, heard));
  return { signal: controller.signal, stop, [Symbol.dispose]: dispose };
}

const CLOSE_TIMEOUT_MS = 2_000;

/** Closes the database before a signal ends the command: else Ctrl-C would look like a crash. Tells if it is exiting. */
export function closeOnSignals(): () => boolean {
  let leaving = false;
  for (const name of STOP_SIGNALS) {
    process.on(name, (signal) => {
      if (leaving && forcesExit(signal)) leave();
      if (leaving || process.listenerCount(signal) > 1) return;
      leaving = true;
      setTimeout(leave, CLOSE_TIMEOUT_MS);
      void closeAll().then(leave, leave);
    });
  }
  return () => leaving;
}

function leave(): never {
  process.exit(EXIT.interrupted);
}

/** Exits with 1 if a handler calls `process.exit`, because the handler's own code could be mistaken for success. */
export function guardExit(): Disposable {
  process.once("exit", reportExit);
  return { [Symbol.dispose]: () => process.off("exit", reportExit) };
}

function reportExit(code: number): void {
  if (code === EXIT.interrupted) return;
  process.exitCode = EXIT.failed;
  writeSync(2, `A handler has ended this process in the middle of its work, with process.exit(${code}).\n`);
  writeSync(2, "hint: Throw an error instead. What was done so far is kept; run it again to continue.\n");
}
