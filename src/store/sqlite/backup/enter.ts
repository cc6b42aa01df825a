import { HoldfastError } from "../../../core/errors.ts";
import type { Alive } from "../../alive.ts";
import type { DriverName } from "../driver.ts";
import { isSwitching, settleRestore } from "./switch.ts";

/** How long a restore is waited for, in milliseconds: its files change their names in a moment. */
const PATIENCE = 5_000;

/**
 * Before a process opens a database it shows that it lives, and then looks whether the files are about to be replaced; who
 * replaces them looks the other way round. So nobody is left with a file that has lost its name.
 */
export async function enter(path: string, driver: DriverName, alive: Alive): Promise<string> {
  for (;;) {
    const token = alive.hold();
    if (!isSwitching(path)) return token;
    alive.close();
    await untilRestored(path, driver);
  }
}

/** What a dead process has left of a restore is brought to its end first; one that lives is waited for. */
export async function untilRestored(path: string, driver: DriverName): Promise<void> {
  for (const since = performance.now(); ;) {
    settleRestore(path, driver);
    if (!isSwitching(path)) return;
    if (performance.now() - since > PATIENCE) throw restoring(path);
    await new Promise((resume) => setTimeout(resume, 20));
  }
}

function restoring(path: string): HoldfastError {
  return new HoldfastError("IN_USE", `${path} is being restored.`, "Try again when that is done.");
}
