import { writeSync } from "node:fs";
import { EXIT } from "../exit.ts";

/**
 * While a command runs somebody's handlers, an end of the process is none of its own: a handler has called `process.exit`,
 * with whichever code. It did not work out then; a success, or a pause, would be a lie.
 */
export class Unfinished implements Disposable {
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
