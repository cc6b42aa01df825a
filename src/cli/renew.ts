import { setTimeout as pause } from "node:timers/promises";
import type { Command } from "commander";
import { ahead } from "../core/age.ts";
import { type Duration, toMillis } from "../core/duration.ts";
import { LeaseLostError } from "../core/errors.ts";
import { renewalInterval } from "../core/lease.ts";
import type { HeldClaim } from "../runtime/claim-token.ts";
import { Operator } from "../runtime/operator.ts";
import { openExisting } from "./database.ts";
import { EXIT } from "./exit.ts";
import { answer, workerLog } from "./render/output.ts";
import { oneLine } from "./render/table.ts";
import { untilInterrupted } from "./signals.ts";
import { examples } from "./verb.ts";

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
      const lease = toMillis(options.lease, "--lease");
      using end = options.keep ? awaitEnd() : null;
      await using hf = await openExisting(command);
      const claim = new Operator(hf).claimOf(token);
      const tell = ({ expiresAt }: { expiresAt: number }) =>
        answer(command, { id: claim.id, expiresAt }, () => `Job ${oneLine(claim.id)} is held for ${ahead(lease)} from now.`);
      if (end === null) return tell(await claim.renew(lease));
      await keep(claim, lease, end.over, tell);
      if (end.signalled.aborted) process.exitCode = EXIT.interrupted;
    });
}

/** The end of standard input, or a signal. Listened for from the start: quick work is settled before this has begun. */
function awaitEnd(): { over: AbortSignal; signalled: AbortSignal } & Disposable {
  const signalled = untilInterrupted();
  const ended = new AbortController();
  for (const event of ["end", "close", "error"]) process.stdin.once(event, () => ended.abort());
  process.stdin.resume();
  const over = AbortSignal.any([ended.signal, signalled]);
  return { over, signalled, [Symbol.dispose]: () => signalled[Symbol.dispose]() };
}

/** `tell` hears of the first renewal. */
async function keep(
  claim: HeldClaim,
  lease: number,
  over: AbortSignal,
  tell: (renewed: { expiresAt: number }) => void,
): Promise<void> {
  let renewedAt: number | null = null;
  while (!over.aborted) {
    const asked = performance.now();
    let wait = renewalInterval(lease);
    try {
      const renewed = await claim.renew(lease);
      if (renewedAt === null) tell(renewed);
      renewedAt = asked;
    } catch (error) {
      // Settled by the script at this very moment: that is why its input ends.
      if (over.aborted) return;
      // A full disk or a busy file is no reason to give up while the lease lasts.
      if (renewedAt === null || error instanceof LeaseLostError || asked - renewedAt > lease) throw error;
      workerLog("warn").warn("the lease could not be renewed; it is tried again", { error: String(error) });
      wait = Math.min(AGAIN, wait);
    }
    await pause(wait, null, { signal: over }).catch(() => {});
  }
}
