import { setTimeout as pause } from "node:timers/promises";
import type { Command } from "commander";
import { type Duration, toMillis } from "../core/duration.ts";
import { LeaseLostError } from "../core/errors.ts";
import { renewalInterval } from "../core/lease.ts";
import { type HeldClaim, heldBy } from "../runtime/claim-token.ts";
import { openExisting } from "./database.ts";
import { EXIT } from "./exit.ts";
import { examples } from "./help.ts";
import { ahead } from "./terminal/age.ts";
import { untilInterrupted } from "./terminal/interrupt.ts";
import { workerLog } from "./terminal/log.ts";
import { answer } from "./terminal/output.ts";
import { oneLine } from "./terminal/text.ts";

/** What cannot be written for a moment is tried again after this long. */
const AGAIN = 500;

export function renewCommand(parent: Command): void {
  parent
    .command("renew")
    .summary("hold a claimed job for longer")
    .description(
      "Hold a claimed job for longer, from now on. With --keep it goes on renewing until its standard input ends: behind a " +
        "pipe of the script that does the job it ends with that script, even when the script is killed. A lost lease is refused " +
        "with exit code 1 (LEASE_LOST).",
    )
    .argument("<claim>", "as `holdfast claim` printed it")
    .option("--lease <duration>", "how long from now", "5m")
    .option("--keep", "go on renewing until standard input ends")
    .addHelpText(
      "after",
      examples('holdfast renew "$CLAIM" --lease 10m', 'exec 9> >(holdfast renew "$CLAIM" --lease 1m --keep)   # bash'),
    )
    .action(async (token: string, options: { lease: Duration; keep?: boolean }, command: Command) => {
      await using hf = await openExisting(command);
      const claim = heldBy(hf.engine, token);
      const { expiresAt } = await claim.renew(options.lease);
      answer(command, { id: claim.id, expiresAt }, () => {
        return `Job ${oneLine(claim.id)} is held for ${ahead(toMillis(options.lease, "--lease"))} from now.`;
      });
      if (options.keep && !(await keep(claim, toMillis(options.lease, "--lease")))) process.exitCode = EXIT.interrupted;
    });
}

/** True when standard input has ended, false after a signal. */
async function keep(claim: HeldClaim, lease: number): Promise<boolean> {
  using signalled = untilInterrupted();
  const ended = new AbortController();
  for (const event of ["end", "close", "error"]) process.stdin.once(event, () => ended.abort());
  process.stdin.resume();
  const over = AbortSignal.any([ended.signal, signalled]);
  let renewedAt = performance.now();
  for (let wait = renewalInterval(lease); !over.aborted;) {
    await pause(wait, null, { signal: over }).catch(() => {});
    if (over.aborted) break;
    const asked = performance.now();
    try {
      await claim.renew(lease);
      renewedAt = asked;
      wait = renewalInterval(lease);
    } catch (error) {
      // Settled by the script at this very moment: that is why its input ends.
      if (over.aborted) break;
      // A full disk or a busy file is no reason to give up while the lease lasts.
      if (error instanceof LeaseLostError || asked - renewedAt > lease) throw error;
      workerLog("warn").warn("the lease could not be renewed; it is tried again", { error: String(error) });
      wait = Math.min(AGAIN, renewalInterval(lease));
    }
  }
  return !signalled.aborted;
}
