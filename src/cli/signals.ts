import { writeSync } from "node:fs";
import { closeAll } from "../runtime/shared-engine.ts";
import { isImpatient, SIGNALS } from "../runtime/signals.ts";
import { EXIT } from "./exit.ts";

/** Aborts at the first signal that asks to end, for commands that wait. A second one ends the process, as ever. */
export function untilInterrupted(): AbortSignal & Disposable {
  const controller = new AbortController();
  const heard = (signal: NodeJS.Signals) => controller.abort(signal);
  for (const signal of SIGNALS) process[isImpatient(signal) ? "once" : "on"](signal, heard);
  return Object.assign(controller.signal, {
    [Symbol.dispose]: () => {
      for (const signal of SIGNALS) process.off(signal, heard);
    },
  });
}

/** Aborts at the first signal, or when it is told; a signal after that exits at once, whatever it is in the middle of. */
export class Interrupts implements Disposable {
  readonly #controller = new AbortController();

  constructor() {
    for (const signal of SIGNALS) process.on(signal, this.#heard);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  stop(reason: string): void {
    this.#controller.abort(new Error(reason));
  }

  [Symbol.dispose](): void {
    for (const signal of SIGNALS) process.off(signal, this.#heard);
  }

  readonly #heard = (signal: NodeJS.Signals): void => {
    if (this.#controller.signal.aborted && isImpatient(signal)) process.exit(EXIT.interrupted);
    this.stop(signal);
  };
}

/** However long a goodbye takes: whoever has asked to end does not wait longer. In milliseconds. */
const CLOSE_TIMEOUT_MS = 2_000;

/**
 * A command that is told to end, and listens to no signal itself, says goodbye first: it would look like a crash else, and
 * where recovery waits for an operator's word, an operator's Ctrl-C would shut the database. The answer is whether it is leaving.
 */
export function closeOnSignals(): () => boolean {
  let leaving = false;
  for (const name of SIGNALS) {
    process.on(name, (signal) => {
      if (leaving && isImpatient(signal)) leave();
      // Whoever listens, too, knows what to do.
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

/**
 * While a command runs somebody's handlers, an end of the process is none of its own: a handler has called `process.exit`,
 * with whichever code. It did not work out then; a success, or a pause, would be a lie.
 */
export class ExitGuard implements Disposable {
  constructor() {
    process.once("exit", this.#ended);
  }

  [Symbol.dispose](): void {
    process.off("exit", this.#ended);
  }

  readonly #ended = (code: number): void => {
    // A second signal ends it like this.
    if (code === EXIT.interrupted) return;
    process.exitCode = EXIT.failed;
    writeSync(2, `A handler has ended this process in the middle of its work, with process.exit(${code}).\n`);
    writeSync(2, "hint: Throw an error instead. What was done so far is kept; run it again, and it goes on from there.\n");
  };
}
