/** Merges one branch after the other. Several of these run; at any time one of them is in the checkout. */
import { setTimeout as pause } from "node:timers/promises";
import { open } from "../../src/index.ts";
import { merge } from "./jobs.ts";
import { trunkAt } from "./trunk.ts";

const [database, checkout] = process.argv.slice(2) as [string, string];
const trunk = trunkAt(checkout);
const hf = await open(database);

const stop = new AbortController();
process.once("SIGTERM", () => stop.abort());
process.once("disconnect", () => stop.abort()); // it does not outlive the example

while (!stop.signal.aborted) {
  // Exclusive: while this claim lasts, no other process gets a job of this queue. It lasts as long as this process lives.
  await using claim = await hf.claim(merge, { worker: `worker ${process.pid}`, exclusive: true, renew: "auto", wait: "300ms" });
  if (claim === null) continue;
  const { branch } = claim.job.input;
  trunk.clean();
  // A process may have been killed after its commit and before it settled the job.
  if (trunk.has(branch)) {
    await claim.succeed("it was merged already");
    continue;
  }
  try {
    trunk.merge(branch);
    process.send?.({ testing: branch, attempt: claim.job.attempt });
    await pause(60, undefined, { signal: claim.signal }); // here its tests would run
    trunk.commit(branch);
    await claim.succeed();
  } catch (error) {
    await claim.fail(error, { retry: false });
  }
}
await hf.close();
process.disconnect?.();
