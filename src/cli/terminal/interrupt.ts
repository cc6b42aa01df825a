import { isImpatient, SIGNALS } from "../../runtime/signals.ts";
import { EXIT } from "../exit.ts";

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
