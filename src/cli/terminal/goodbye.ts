import { closeAll } from "../../runtime/shared-engine.ts";
import { isImpatient, SIGNALS } from "../../runtime/signals.ts";
import { EXIT } from "../exit.ts";

/** However long a goodbye takes: whoever has asked to end does not wait longer. In milliseconds. */
const PATIENCE = 2_000;

/**
 * A command that is told to end, and listens to no signal itself, says goodbye first: it would look like a crash else, and
 * where recovery waits for an operator's word, an operator's Ctrl-C would shut the database. The answer is whether it is leaving.
 */
export function sayGoodbye(): () => boolean {
  let leaving = false;
  for (const name of SIGNALS) {
    process.on(name, (signal) => {
      if (leaving && isImpatient(signal)) leave();
      // Whoever listens, too, knows what to do.
      if (leaving || process.listenerCount(signal) > 1) return;
      leaving = true;
      setTimeout(leave, PATIENCE);
      void closeAll().then(leave, leave);
    });
  }
  return () => leaving;
}

function leave(): never {
  process.exit(EXIT.interrupted);
}
