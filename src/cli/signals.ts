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

export class Interrupts implements Disposable {
  readonly #controller = new AbortController();

  constructor() {
    for (const signal of STOP_SIGNALS) process.on(signal, this.#heard);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  stop(reason: string): void {
    this.#controller.abort(new Error(reason));
  }

  [Symbol.dispose](): void {
    for (const signal of STOP_SIGNALS) process.off(signal, this.#heard);
  }

  readonly #heard = (signal: NodeJS.Signals): void => {
    if (this.#controller.signal.aborted && forcesExit(signal)) process.exit(EXIT.interrupted);
    this.stop(signal);
  };
}

const CLOSE_TIMEOUT_MS = 2_000;

/** Closes the database before a signal ends the command: else Ctrl-C would look like a crash. Returns whether it is exiting. */
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

/** Exits with 1 if a handler calls `process.exit`: the handler's own code could be mistaken for success. */
export class ExitGuard implements Disposable {
  constructor() {
    process.once("exit", this.#ended);
  }

  [Symbol.dispose](): void {
    process.off("exit", this.#ended);
  }

  readonly #ended = (code: number): void => {
    if (code === EXIT.interrupted) return;
    process.exitCode = EXIT.failed;
    writeSync(2, `A handler has ended this process in the middle of its work, with process.exit(${code}).\n`);
    writeSync(2, "hint: Throw an error instead. What was done so far is kept; run it again to continue.\n");
  };
}
