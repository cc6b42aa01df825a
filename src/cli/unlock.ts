import { randomUUID } from "node:crypto";
import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import type { LockView, Store } from "../store/store.ts";
import { openExisting } from "./database.ts";
import { examples } from "./help.ts";
import { age, ahead } from "./terminal/age.ts";
import { answer } from "./terminal/output.ts";
import { oneLine } from "./terminal/text.ts";

export function unlockCommand(parent: Command): void {
  parent
    .command("unlock")
    .summary("remove a lock that was left behind")
    .description("Remove a lock that was left behind. One that is still held is refused with exit code 4.")
    .argument("<name>", "the lock's name, as in `holdfast status`")
    .option("--force", "remove it even while it is held: its holder is not told")
    .addHelpText("after", examples("holdfast unlock nightly-index", "holdfast unlock nightly-index --force"))
    .action(async (name: string, options: { force?: boolean }, command: Command) => {
      await using hf = await openExisting(command);
      const { store, clock } = hf.engine;
      const lock = await store.getLock(name);
      if (lock === null) throw noSuchLock(name, await store.locks());
      const removed = options.force ? await store.breakLock(name) : await removeStale(store, name);
      if (!removed) throw held((await store.getLock(name)) ?? lock, clock.now());
      answer(
        command,
        { name, holder: lock.holder, forced: !lock.stale },
        () => `Unlocked ${oneLine(name)}: it was held by ${oneLine(lock.holder)}.`,
      );
    });
}

/**
 * Takes the lock over and lets it go. Looking whether it is stale and then breaking it would, between the two, break the
 * lock of somebody who has just acquired it.
 */
async function removeStale(store: Store, name: string): Promise<boolean> {
  const token = randomUUID();
  if (!(await store.acquireLock(name, "holdfast unlock", token, 60_000))) return false;
  return store.releaseLock(name, token);
}

function held({ name, holder, acquiredAt, expiresAt }: LockView, now: number): HoldfastError {
  return new HoldfastError(
    "LOCK_HELD",
    `The lock ${name} is held by ${holder}, since ${age(now - acquiredAt)}, until it expires in ${ahead(expiresAt - now)} or is renewed.`,
    "Wait for it, stop its holder, or add --force if you are sure that the holder is gone.",
  );
}

function noSuchLock(name: string, locks: readonly LockView[]): HoldfastError {
  const others = locks.map((lock) => lock.name).join(", ");
  return new HoldfastError(
    "NO_SUCH_LOCK",
    `There is no lock ${name}.`,
    others === "" ? "Nothing is locked." : `There are: ${others}.`,
  );
}
